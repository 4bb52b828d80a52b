// SPDX-License-Identifier: Apache-2.0
#include "reference/plain/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace strobe::reference::plain {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The key that query i stands at: masks and ALiBi count their distances from it.
std::int64_t center_of(const Head& head, std::int64_t i) {
  if (head.part) return head.part->q + i - head.part->k;
  return head.options.causal == CausalMask::top_left ? i : i + head.k.rows - head.q.rows;
}

/// MASK: the keys that query i sees.
std::vector<std::int64_t> visible_keys(const Head& head, std::int64_t i) {
  const auto& [left, right] = head.options.window;
  const std::int64_t center = center_of(head, i);
  const auto chunk_of = [&](std::int64_t key) {
    const std::int64_t position = head.part ? head.part->k + key : key;
    return std::floor(static_cast<double>(position) / static_cast<double>(head.options.chunk));
  };
  const std::int64_t size = head.modifiers.block_size();
  std::vector<std::int64_t> keys;
  for (std::int64_t j = 0; j < head.k.rows; ++j) {
    if (head.options.causal != CausalMask::none && j > center) continue;
    if (left >= 0 && center - j > left) continue;
    if (right >= 0 && j - center > right) continue;
    if (head.options.chunk > 0 && chunk_of(j) != chunk_of(center)) continue;
    if (head.modifiers.has_blocks() && !head.modifiers.shows_block(i / size, j / size)) continue;
    const std::int64_t node = j - (head.k.rows - head.q.rows);
    if (head.modifiers.has_tree() && node >= 0 && !head.modifiers.shows_node(i, node)) continue;
    if (head.modifiers.text().has_mask() && !head.modifiers.text().shows(i, j)) continue;
    keys.push_back(j);
  }
  return keys;
}

/// s_ij and its derivative with respect to scale (q_i.k_j + qv_i.v_j): the softcap's and the text's.
struct Score {
  double value;
  double slope;
  double text_slope = 1.0;
  double given = 0.0;  // what the text is given

  double whole_slope() const { return slope * text_slope; }
};

Score score(const Head& head, std::int64_t i, std::int64_t j) {
  double product = 0.0;
  for (std::int64_t c = 0; c < head.q.columns; ++c) product += head.q(i, c) * head.k(j, c);
  for (std::int64_t c = 0; c < head.qv.columns; ++c) product += head.qv(i, c) * head.v(j, c);
  Score s{head.scale * product, 1.0};
  if (head.options.softcap > 0.0F) {
    const double softcap = head.options.softcap;
    const double t = std::tanh(s.value / softcap);
    s = {softcap * t, 1.0 - t * t};
  }
  const auto distance = static_cast<double>(std::abs(center_of(head, i) - j));
  if (head.modifiers.has_alibi()) s.value -= head.modifiers.slope() * distance;
  if (head.modifiers.has_bias()) s.value += head.modifiers.bias(i, j);
  if (!head.modifiers.text().has_score()) return s;
  const TextScore text = head.modifiers.text().apply(i, j, {s.value, 0.0});
  return {text.value.value, s.slope, text.slope.value, s.value};
}

bool is_normalized(const Head& head) { return head.options.normalize == Normalization::softmax; }

/// P_ij of a score where nothing is normalized: the score itself. One of -inf has no weight.
double unnormalized(double score) { return score == -kInfinity ? 0.0 : score; }

/// Z_ij: 0 with the dropout probability, else what keeps the expectation.
double dropout_factor(const Head& head, std::int64_t i, std::int64_t j) {
  return head.modifiers.has_dropout() ? head.modifiers.dropout_factor(i, j) : 1.0;
}

}  // namespace

HeadOutput forward(const Head& head) {
  HeadOutput out{.o{head.q.rows, head.v.columns}, .lse = std::vector<double>(head.q.rows, -kInfinity)};
  const double sink = head.modifiers.sink().value_or(-kInfinity);
  for (std::int64_t i = 0; i < head.q.rows; ++i) {
    // 1. The scores s_ij of the visible keys, and the largest.
    const std::vector<std::int64_t> keys = visible_keys(head, i);
    std::vector<double> s;
    for (const std::int64_t j : keys) s.push_back(score(head, i, j).value);
    const double largest = s.empty() ? -kInfinity : *std::ranges::max_element(s);
    out.max_logit = std::max(out.max_logit, largest);
    if (!is_normalized(head)) {
      for (std::size_t n = 0; n < keys.size(); ++n) {
        const double p = unnormalized(s[n]) * dropout_factor(head, i, keys[n]);
        for (std::int64_t c = 0; c < head.v.columns; ++c) out.o(i, c) += p * head.v(keys[n], c);
      }
      continue;
    }
    const double maximum = std::max(largest, sink);
    if (maximum == -kInfinity) continue;  // no key has any weight

    // 2. L_i = sum_j exp(s_ij) (eq. 1); the sink is one more score, without a value. Less the maximum, nothing
    // overflows.
    double sum = std::exp(sink - maximum);
    for (const double value : s) sum += std::exp(value - maximum);
    out.lse[i] = maximum + std::log(sum);

    // 3. o_i = sum_j P_ij Z_ij v_j with P_ij = exp(s_ij) / L_i (eq. 2).
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const double p = std::exp(s[n] - maximum) / sum * dropout_factor(head, i, keys[n]);
      for (std::int64_t c = 0; c < head.v.columns; ++c) out.o(i, c) += p * head.v(keys[n], c);
    }
  }
  return out;
}

OutputTangents jvp(const Head& head, const HeadOutput& output, const HeadTangents& tangents) {
  OutputTangents out{.o{head.q.rows, head.v.columns}, .lse = std::vector<double>(head.q.rows, 0.0)};
  for (std::int64_t i = 0; i < head.q.rows; ++i) {
    if (output.lse[i] == -kInfinity) continue;
    for (const std::int64_t j : visible_keys(head, i)) {
      // 1. s'_ij = scale (q'_i.k_j + q_i.k'_j), through softcap.
      const Score s = score(head, i, j);
      double product = 0.0;
      for (std::int64_t c = 0; c < head.q.columns; ++c) {
        product += tangents.q(i, c) * head.k(j, c) + head.q(i, c) * tangents.k(j, c);
      }
      const double s_tangent = head.scale * s.whole_slope() * product;
      // 2. LSE'_i = sum_j P_ij s'_ij, and the sum_j P_ij Z_ij (v'_j + s'_ij v_j) of o'_i.
      const double p = std::exp(s.value - output.lse[i]);
      const double z = dropout_factor(head, i, j);
      out.lse[i] += p * s_tangent;
      for (std::int64_t c = 0; c < head.v.columns; ++c) {
        out.o(i, c) += p * z * (tangents.v(j, c) + s_tangent * head.v(j, c));
      }
    }
    // 3. Less LSE'_i o_i, as P'_ij = P_ij (s'_ij - LSE'_i).
    for (std::int64_t c = 0; c < head.v.columns; ++c) out.o(i, c) -= out.lse[i] * output.o(i, c);
  }
  return out;
}

HeadGradients backward(const Head& head, const HeadOutput& output, const Matrix& d_o, const std::vector<double>& d_lse,
                       bool wants_d_captures) {
  HeadGradients out{.dq{head.q.rows, head.q.columns},
                    .dk{head.k.rows, head.k.columns},
                    .dv{head.v.rows, head.v.columns},
                    .d_bias{head.q.rows, head.k.rows},
                    .d_captures = {},
                    .dqv{head.q.rows, head.qv.columns}};
  for (std::int64_t i = 0; i < head.q.rows; ++i) {
    if (is_normalized(head) && output.lse[i] == -kInfinity) continue;
    // 1. D_i = do_i.o_i (eq. 4). As dLSE_i / ds_ij is P_ij, too, the gradient that comes in through LSE joins it.
    double d = -d_lse[i];
    for (std::int64_t c = 0; c < d_o.columns; ++c) d += d_o(i, c) * output.o(i, c);

    for (const std::int64_t j : visible_keys(head, i)) {
      // 2. P_ij = exp(s_ij - LSE_i); dv_j = sum_i P_ij Z_ij do_i (eq. 3); dP_ij = Z_ij do_i.v_j.
      const Score s = score(head, i, j);
      const double p = is_normalized(head) ? std::exp(s.value - output.lse[i]) : unnormalized(s.value);
      const double z = dropout_factor(head, i, j);
      double dp = 0.0;
      for (std::int64_t c = 0; c < d_o.columns; ++c) {
        out.dv(j, c) += p * z * d_o(i, c);
        dp += z * d_o(i, c) * head.v(j, c);
      }
      // 3. dS_ij = P_ij (dP_ij - D_i), or dP_ij where P_ij = s_ij; through the text the bias's gradient; back through
      // softcap and scale, dq_i = sum_j dS_ij k_j (eq. 5) and dk_j = sum_i dS_ij q_i (eq. 6); likewise dqv_i, and a
      // part of dv_j.
      const double ds = !is_normalized(head) ? (s.value == -kInfinity ? 0.0 : dp) : p == 0.0 ? 0.0 : p * (dp - d);
      out.d_bias(i, j) = ds == 0.0 ? 0.0 : ds * s.text_slope;
      if (wants_d_captures && ds != 0.0) {
        for (const TextRead& read : head.modifiers.text().reads(i, j, {s.given, 0.0})) {
          out.d_captures.push_back({read.capture, read.element, ds * read.derivative.value});
        }
      }
      const double d_product = head.scale * s.slope * out.d_bias(i, j);
      for (std::int64_t c = 0; c < head.q.columns; ++c) {
        out.dq(i, c) += d_product * head.k(j, c);
        out.dk(j, c) += d_product * head.q(i, c);
      }
      for (std::int64_t c = 0; c < head.qv.columns; ++c) {
        out.dqv(i, c) += d_product * head.v(j, c);
        out.dv(j, c) += d_product * head.qv(i, c);
      }
    }
    // 4. The sink has a probability and dP = 0.
    if (head.modifiers.sink()) out.d_sink -= std::exp(*head.modifiers.sink() - output.lse[i]) * d;
  }
  return out;
}

}  // namespace strobe::reference::plain
