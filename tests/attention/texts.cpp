// SPDX-License-Identifier: Apache-2.0
#include "texts.h"

#include <algorithm>
#include <stdexcept>

namespace strobe::test {
namespace {

constexpr DType kReal = DType::float32;

std::vector<TextCase> texts(const TextShape& s) {
  const std::int64_t rows = std::max<std::int64_t>(std::max(s.rows_q, s.rows_k), 1);
  const std::int64_t heads = std::max<std::int64_t>(s.heads_q, 1);
  const std::int64_t batch = std::max<std::int64_t>(s.batch, 1);
  return {
      {"score + slope[head] * (k - q)", "", {{{"slope", kReal, 1}, {heads}}}},
      {"score + bias[head][k - q + 40]", "", {{{"bias", DType::float16, 2}, {heads, 81}}}},
      {"30 * tanh(score / 30)", "", {}},
      {"", "k <= q + k_len - q_len", {}},
      {"", "document[batch][k] == document[batch][q]", {{{"document", DType::int32, 2}, {batch, rows}, 2}}},
      {"score * temperature[head] + bias[q][k]",
       "",
       {{{"temperature", kReal, 1}, {heads}}, {{"bias", kReal, 2}, {std::max<std::int64_t>(s.rows_q, 1), rows}}}},
      {"score - gate[batch][head][q] + gate[batch][head][k]",
       "q_len > 3 || k != 2",
       {{{"gate", DType::bfloat16, 3}, {batch, heads, rows}}}},
      {"", "(q - k) % 3 == 0 || k < 5", {}},
      {"sigmoid(score) * 4 - shift", "", {{{"shift", kReal, 0}, {1}}}},
      {"score + (k > q ? -inf : log(float(q - k + 1)) * weight)", "", {{{"weight", kReal, 0}, {1}}}},
      {"max(score, 0.1 * score) + exp(-abs(float(k - q)) / 10)", "!(k == 7 && head == 0)", {}},
      {"score * rsqrt(1 + pow(score, 2) * 0.01) + table[(k - q) % 7 + 3][head_kv]",
       "",
       {{{"table", DType::bfloat16, 2}, {10, std::max<std::int64_t>(s.heads_kv, 1)}}}},
      {"", "allowed[head][k / 4]", {{{"allowed", DType::uint8, 2}, {heads, rows / 4 + 1}, 3}}},
      {"score + weight[index[k]]", "", {{{"index", DType::int64, 1}, {rows}, 9}, {{"weight", kReal, 1}, {8}}}},
      {"score + (q == k ? 1.5 : sin(float(k)) * cos(float(q)))", "min(q / 16, k / 16) * 16 <= max(q, 3) && true", {}},
      {"sqrt(abs(score) + 1) * exp2(-0.25) + int(3.7) - tanh(score) * floor(2.5)", "", {}},
  };
}

}  // namespace

std::vector<TextCase> all_texts(const TextShape& shape) { return texts(shape); }

std::vector<TextCase> unnormalized_texts(const TextShape& shape) {
  const std::int64_t heads = std::max<std::int64_t>(shape.heads_q, 1);
  return {
      {"sigmoid(score)", "", {}},
      {"score * sigmoid(score) / k_len", "k <= q + k_len - q_len", {}},
      {"sigmoid(score - log(float(k_len)) + shift[head])", "", {{{"shift", kReal, 1}, {heads}, 0, true}}},
      {"max(score, 0) * weight[k - q + 40] + (k % 3 == 0 ? -inf : 0.0)",
       "k != 2",
       {{{"weight", kReal, 1}, {81}, 0, true}}},
      {"pow(score, 2) * 0.1 - score", "(q - k) % 2 == 0", {}},
  };
}

ScoreFunction TextCase::function() const {
  std::vector<CaptureType> types;
  for (const CapturedTensor& capture : captures) types.push_back(capture.type);
  Result<ScoreFunction> function = ScoreFunction::parse(score, mask, types);
  if (!function.ok()) throw std::invalid_argument(function.status().message());
  return *function;
}

std::string explained_without_texts(const Plan& plan) {
  const std::string text = plan.explain();
  return text.substr(0, text.find("texts         "));
}

TextCase random_text(const TextShape& shape, Random& random) {
  std::vector<TextCase> all = texts(shape);
  TextCase text = all[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(all.size()) - 1))];
  for (CapturedTensor& capture : text.captures) {
    const bool real = capture.largest == 0;
    capture.wants_gradient = real && random.chance(0.8);
  }
  return text;
}

}  // namespace strobe::test
