// SPDX-License-Identifier: Apache-2.0
#include "random_text.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace strobe::test {
namespace {

using expression::Variable;

std::string binary(const char* op, const std::string& a, const std::string& b) {
  return fmt::format("({} {} {})", a, op, b);
}

double element(int capture, std::span<const std::int64_t> indices, std::uint64_t seed) {
  std::uint64_t hash = seed ^ static_cast<std::uint64_t>(capture) * 0x9E3779B97F4A7C15U;
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= kExtent) return 0.0;
    hash = (hash ^ static_cast<std::uint64_t>(index)) * 0xBF58476D1CE4E5B9U;
    hash ^= hash >> 31U;
  }
  const double uniform = static_cast<double>(hash >> 11U) * 0x1p-53;
  switch (captures()[static_cast<std::size_t>(capture)].dtype) {
    case DType::int32: return std::floor(uniform * 6.0) - 1.0;
    case DType::uint8: return uniform < 0.5 ? 0.0 : 1.0;
    default: return static_cast<float>(2.0 * uniform - 1.0);
  }
}

}  // namespace

const std::vector<CaptureType>& captures() {
  static const std::vector<CaptureType> all{{"vector", DType::float32, 1},
                                            {"matrix", DType::float32, 2},
                                            {"index", DType::int32, 1},
                                            {"flag", DType::uint8, 1}};
  return all;
}

std::string random_integer(Random& random, int depth) {
  if (depth == 0 || random.chance(0.25)) {
    if (random.chance(0.3)) return fmt::format("{}", random.integer(0, 9));
    return random.one_of<std::string>({"q", "k", "head", "head_kv", "batch", "q_len", "k_len"});
  }
  const auto next = [&] { return random_integer(random, depth - 1); };
  switch (random.integer(0, 9)) {
    case 0: return binary("+", next(), next());
    case 1: return binary("-", next(), next());
    case 2: return binary("*", next(), next());
    case 3: return binary("/", next(), fmt::format("{}", random.integer(1, 9)));
    case 4: return binary("%", next(), random.chance(0.8) ? fmt::format("{}", random.integer(1, 9)) : next());
    case 5: return fmt::format("{}({}, {})", random.chance(0.5) ? "min" : "max", next(), next());
    case 6: return fmt::format("abs({})", next());
    case 7: return fmt::format("index[{}]", next());
    case 8: return "-" + next();
    default: return fmt::format("({} ? {} : {})", random_boolean(random, depth - 1), next(), next());
  }
}

std::string random_boolean(Random& random, int depth) {
  if (depth == 0) return random.one_of<std::string>({"k <= q", "q == k", "head < 2", "k % 3 == 0"});
  const auto next = [&] { return random_boolean(random, depth - 1); };
  switch (random.integer(0, 4)) {
    case 0: return binary("&&", next(), next());
    case 1: return binary("||", next(), next());
    case 2: return "!" + binary("&&", next(), next());
    case 3: return fmt::format("flag[{}]", random_integer(random, depth - 1));
    default:
      return binary(random.one_of<const char*>({"<", "<=", ">", ">=", "==", "!="}), random_integer(random, depth - 1),
                    random_integer(random, depth - 1));
  }
}

std::string random_real(Random& random, int depth) {
  if (depth == 0 || random.chance(0.15)) {
    if (random.chance(0.4)) return "score";
    if (random.chance(0.4)) return fmt::format("{:.3f}", 0.1 + 2.0 * random.uniform());
    return random.one_of<std::string>(
        {"vector[head]", "matrix[head][k - q + 5]", "matrix[q % 7][k % 5]", "vector[k / 4]"});
  }
  const auto next = [&] { return random_real(random, depth - 1); };
  switch (random.integer(0, 17)) {
    case 0: return binary("+", next(), next());
    case 1: return binary("-", next(), next());
    case 2:
    case 3: return binary("*", next(), next());
    case 4: return fmt::format("({} / (1.5 + abs({})))", next(), next());
    case 5: return fmt::format("{}({}, {})", random.chance(0.5) ? "min" : "max", next(), next());
    case 6: return fmt::format("abs({})", next());
    case 7: return fmt::format("{}(tanh({}))", random.one_of<const char*>({"exp", "exp2"}), next());
    case 8: return fmt::format("log(1.25 + abs({}))", next());
    case 9: return fmt::format("{}({})", random.one_of<const char*>({"tanh", "sigmoid", "sin", "cos"}), next());
    case 10: return fmt::format("{}(0.5 + abs({}))", random.one_of<const char*>({"sqrt", "rsqrt"}), next());
    case 11: return fmt::format("pow({}, {})", next(), random.integer(0, 3));
    case 12: return fmt::format("float({})", random_integer(random, depth - 1));
    case 13: return "-" + next();
    case 14: return fmt::format("floor({} + 0.37)", next());  // corners are seldom where values are
    case 15: return fmt::format("pow(0.5 + abs({}), {})", next(), -random.integer(1, 3));
    case 16:
      return fmt::format("pow(0.5 + abs({}), {})", next(),
                         random.one_of<const char*>({"0.5", "-0.5", "1.5", "-2.25", "0.3", "-0.7"}));
    default: return fmt::format("({} ? {} : {})", random_boolean(random, depth - 1), next(), next());
  }
}

expression::Point random_point(Random& random) {
  expression::Point point;
  const auto set = [&](Variable variable, double value) {
    point.variables[static_cast<std::size_t>(variable)] = value;
  };
  set(Variable::score, static_cast<float>(2.0 * random.normal()));
  for (const Variable variable : {Variable::q, Variable::k}) set(variable, static_cast<double>(random.integer(0, 31)));
  set(Variable::head, static_cast<double>(random.integer(0, 3)));
  set(Variable::head_kv, static_cast<double>(random.integer(0, 1)));
  set(Variable::batch, static_cast<double>(random.integer(0, 2)));
  set(Variable::q_len, 32.0);
  set(Variable::k_len, 32.0);
  const auto seed = static_cast<std::uint64_t>(random.integer(0, 1 << 30));
  point.load = [seed](int capture, std::span<const std::int64_t> indices) { return element(capture, indices, seed); };
  return point;
}

double score_at(const expression::Formula& formula, const expression::Point& point) {
  const auto ids = expression::reachable(formula.graph(), std::array{formula.score()});
  return expression::evaluate(formula.graph(), ids, point).back();
}

bool mask_at(const expression::Formula& formula, const expression::Point& point) {
  const auto ids = expression::reachable(formula.graph(), std::array{formula.mask()});
  return expression::evaluate(formula.graph(), ids, point).back() != 0.0;
}

}  // namespace strobe::test
