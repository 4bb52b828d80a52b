// SPDX-License-Identifier: Apache-2.0
// Attention in float32 as plainly as can be, right or with one thing wrong: what the error bound must hold for, and
// what it must notice.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "case_tensors.h"
#include "strobe/dropout.h"

namespace strobe::test {

enum class Defect : std::uint8_t {
  none,
  score_in_bfloat16,        // S kept in 16 bits
  probability_in_bfloat16,  // P kept in 16 bits, where the model says float32
  probability_in_float16,   // the backward's P passed as float16 of 2^12 P, where the model has it in float32
  missing_key,              // the last visible key left out
  unscaled_accumulator,     // O not rescaled when the maximum grows
  forgotten_correction,     // D left out of dS
  scale_off_by_a_thousandth,
  distance_off_by_one,        // ALiBi measured from the next position
  bias_in_bfloat16,           // the bias rounded on its way in
  sink_without_rescale,       // the sink added as if the maximum were 0
  dropout_without_scale,      // kept probabilities not divided by the probability of being kept
  dropout_before_correction,  // D subtracted before dropout is applied to dP
};

inline constexpr std::int64_t kSeqlen = 150;
inline constexpr std::int64_t kHeadDim = 48;

inline AttentionCase one_head(DType dtype, Values values) {
  AttentionCase attention{.dtype = dtype, .head_dim = kHeadDim, .head_dim_v = kHeadDim, .values = values, .seed = 7};
  attention.q.rows = kSeqlen;
  attention.k.rows = kSeqlen;
  attention.options.causal = CausalMask::bottom_right;
  return attention;
}

/// The same with ALiBi, bias, sink and dropout.
inline AttentionCase modified_head(DType dtype, Values values) {
  AttentionCase attention = one_head(dtype, values);
  attention.alibi = Alibi::per_head;
  attention.bias = {.sharing = {}, .hidden = 0.05};
  attention.has_sink = true;
  attention.options.dropout = 0.3F;
  return attention;
}

/// Causal attention of one head in float32, one key after another, in FlashAttention-2's online form.
class PlainFloat32 {
 public:
  PlainFloat32(CaseTensors& tensors, const AttentionCase& attention, Defect defect)
      : tensors_(tensors), defect_(defect), dropout_(attention.options.dropout), kept_(kSeqlen * kSeqlen) {
    const TensorView mask = tensor(kept_.data(), {1, 1, kSeqlen, kSeqlen});
    EXPECT_TRUE(dropout_mask(dropout_, attention.random, mask).ok());
  }

  void forward() {
    for (std::int64_t query = 0; query < kSeqlen; ++query) forward_row(query);
  }

  void backward() {
    std::vector<float> dk(kSeqlen * kHeadDim, 0.0F);
    std::vector<float> dv(kSeqlen * kHeadDim, 0.0F);
    for (std::int64_t index = 0; index < tensors_.d_bias.size(); ++index) tensors_.d_bias.set(index, 0.0);
    for (std::int64_t query = 0; query < kSeqlen; ++query) backward_row(query, dk, dv);
    for (std::int64_t head = 0; head < tensors_.d_sink.size(); ++head) tensors_.d_sink.set(head, d_sink_);
    for (std::int64_t index = 0; index < kSeqlen * kHeadDim; ++index) {
      tensors_.dk.set(index, dk[index]);
      tensors_.dv.set(index, dv[index]);
    }
  }

 private:
  static float at(const GuardedTensor& tensor, std::int64_t row, std::int64_t column) {
    return static_cast<float>(tensor.get(row * kHeadDim + column));
  }

  static float dot(const GuardedTensor& left, std::int64_t row_left, const GuardedTensor& right,
                   std::int64_t row_right) {
    float sum = 0.0F;
    for (std::int64_t column = 0; column < kHeadDim; ++column) {
      sum += at(left, row_left, column) * at(right, row_right, column);
    }
    return sum;
  }

  float scale() const {
    const float exact = 1.0F / std::sqrt(static_cast<float>(kHeadDim));
    return defect_ == Defect::scale_off_by_a_thousandth ? exact * 1.001F : exact;
  }

  float score(std::int64_t query, std::int64_t key) const {
    float value = scale() * dot(tensors_.q, query, tensors_.k, key);
    if (tensors_.alibi_slopes.size() > 0) {
      const std::int64_t distance = query - key + (defect_ == Defect::distance_off_by_one ? 1 : 0);
      value -= static_cast<float>(tensors_.alibi_slopes.get(0)) * static_cast<float>(distance);
    }
    if (tensors_.bias.size() > 0) {
      const auto bias = static_cast<float>(tensors_.bias.get(query * kSeqlen + key));
      value += defect_ == Defect::bias_in_bfloat16 ? to_float(to_bfloat16(bias)) : bias;
    }
    return defect_ == Defect::score_in_bfloat16 ? to_float(to_bfloat16(value)) : value;
  }

  float stored_probability(float p) const {
    return defect_ == Defect::probability_in_bfloat16 ? to_float(to_bfloat16(p)) : p;
  }

  float passed_probability(float p) const {
    return defect_ == Defect::probability_in_float16 ? to_float(to_float16(p * 4096.0F)) / 4096.0F : p;
  }

  // What dropout multiplies the probability by.
  float dropout_factor(std::int64_t query, std::int64_t key) const {
    if (kept_[query * kSeqlen + key] == 0) return 0.0F;
    return defect_ == Defect::dropout_without_scale ? 1.0F : 256.0F / (256.0F - std::round(256.0F * dropout_));
  }

  std::int64_t visible_end(std::int64_t query) const {
    return defect_ == Defect::missing_key && query > 0 ? query : query + 1;
  }

  void forward_row(std::int64_t query) {
    std::vector<float> sums(kHeadDim, 0.0F);
    float maximum = -std::numeric_limits<float>::infinity();
    float row_sum = 0.0F;
    for (std::int64_t key = 0; key < visible_end(query); ++key) {
      const float s = score(query, key);
      const float larger = std::fmax(maximum, s);
      const float rescale = defect_ == Defect::unscaled_accumulator ? 1.0F : std::exp(maximum - larger);
      if (std::isinf(larger)) continue;  // nothing but -inf so far
      const float p = std::exp(s - larger);
      row_sum = row_sum * std::exp(maximum - larger) + p;
      for (std::int64_t column = 0; column < kHeadDim; ++column) {
        sums[column] =
            sums[column] * rescale + stored_probability(p * dropout_factor(query, key)) * at(tensors_.v, key, column);
      }
      maximum = larger;
    }
    join_sink(sums, maximum, row_sum);
    for (std::int64_t column = 0; column < kHeadDim; ++column) {
      tensors_.o.set(query * kHeadDim + column, row_sum > 0.0F ? sums[column] / row_sum : 0.0F);
    }
    tensors_.lse.set(query, maximum + std::log(row_sum));
  }

  void join_sink(std::vector<float>& sums, float& maximum, float& row_sum) const {
    if (tensors_.sink.size() == 0) return;
    const auto sink = static_cast<float>(tensors_.sink.get(0));
    if (defect_ == Defect::sink_without_rescale) {
      row_sum += std::exp(sink);
      return;
    }
    const float larger = std::fmax(maximum, sink);
    const float rescale = std::exp(maximum - larger);
    for (float& sum : sums) sum *= rescale;
    row_sum = row_sum * rescale + std::exp(sink - larger);
    maximum = larger;
  }

  void backward_row(std::int64_t query, std::vector<float>& dk, std::vector<float>& dv) {
    const float correction =
        defect_ == Defect::forgotten_correction
            ? 0.0F
            : dot(tensors_.d_o, query, tensors_.o, query) - static_cast<float>(tensors_.d_lse.get(query));
    std::vector<float> dq(kHeadDim, 0.0F);
    for (std::int64_t key = 0; key < visible_end(query); ++key) {
      const float p = passed_probability(std::exp(score(query, key) - static_cast<float>(tensors_.lse.get(query))));
      const float factor = dropout_factor(query, key);
      const float d_p = dot(tensors_.d_o, query, tensors_.v, key);
      const float d_s =
          p * (defect_ == Defect::dropout_before_correction ? factor * (d_p - correction) : factor * d_p - correction);
      if (tensors_.d_bias.size() > 0) tensors_.d_bias.set(query * kSeqlen + key, d_s);
      for (std::int64_t column = 0; column < kHeadDim; ++column) {
        dq[column] += scale() * d_s * at(tensors_.k, key, column);
        dk[key * kHeadDim + column] += scale() * d_s * at(tensors_.q, query, column);
        dv[key * kHeadDim + column] += stored_probability(p * factor) * at(tensors_.d_o, query, column);
      }
    }
    for (std::int64_t column = 0; column < kHeadDim; ++column) tensors_.dq.set(query * kHeadDim + column, dq[column]);
    if (tensors_.d_sink.size() > 0) {
      d_sink_ -= std::exp(static_cast<float>(tensors_.sink.get(0) - tensors_.lse.get(query))) * correction;
    }
  }

  CaseTensors& tensors_;
  Defect defect_;
  float dropout_;
  std::vector<std::uint8_t> kept_;
  float d_sink_ = 0.0F;
};

}  // namespace strobe::test
