// SPDX-License-Identifier: Apache-2.0
// The scores of a pair's first CTA: P of every step, for its sums of dV and for the other CTA.
#pragma once

#include "kernels/sm90/backward/wide/scores.h"

namespace strobe::sm90::backward {

template <Config C>
class WideProbabilities : WideScores<C, WideRole::probabilities> {
  using Base = WideScores<C, WideRole::probabilities>;
  using Base::params_, Base::barriers_, Base::handed_;

 public:
  using Base::Base;

  /// `has_large_rows`: some of the queries may be rows of a large LSE.
  template <bool has_large_rows>
  __device__ __forceinline__ void run(const Work& work) {
    this->take_keys();
    bool started = false;
    for_each_wide_step<C>(params_, work, [&](int head, int m) __attribute__((always_inline)) {
      ScoreBlock<C> block(params_, work, work.sequence * params_.heads + head, work.n * block_n(C), m);
      Scores<C> s;
      Operand<C> p;
      StepBias<C> bias;
      bias.fetch(block);
      this->issue_product(s, started);
      started = true;
      block.find_text(nullptr);
      make_probabilities<has_large_rows>(block, m, bias, s, p);
      hand_over(block, s, p);
      this->wait_for_block();
      this->put(p);
    });
    this->hand_on();
  }

 private:
  /// P in `s`, and of softcapped scores as operand `p`, where `s` becomes P times softcap's derivative.
  template <bool has_large_rows>
  __device__ __forceinline__ void make_probabilities(const ScoreBlock<C>& block, int m, StepBias<C>& bias, Scores<C>& s,
                                                     Operand<C>& p) {
    RowNumbers<C> lse_log2;
    if constexpr (!has_hi_lo_lse(C)) {
      this->load_rows(lse_log2);
      scale_probabilities<C>(lse_log2);
    }
    this->finish_product(s);
    const bool masked = (hides_by_text(C.rule) && !block.shown) || !block.work.template sees_all<C.rule>(m);
    const bool large = has_large_rows && block.has_large_rows();
    if constexpr (has_hi_lo_lse(C)) {
      difference_probabilities<C>(block, masked, large, s);
    } else {
      probabilities<C>(block, masked, large, s, p, lse_log2, bias);
    }
    this->release_rows();
  }

  /// P to the other CTA, which may see what is dropped by its sign, and as operand of dV, without what is dropped.
  __device__ __forceinline__ void hand_over(const ScoreBlock<C>& block, const Scores<C>& s, Operand<C>& p) {
    if constexpr (C.rule.dropout) {
      const score::DropoutSlices<C.block_m> slices = draw_dropout<C.block_m>(block, 0);
      send_halves(s, [&](uint32_t halves, int i, int j) {
        return marks_dropped(C.rule) ? score::mark_dropped(halves, slices, i, j) : halves;
      });
      to_operand(p, s);
      drop<C>(p, slices);
    } else {
      send_halves(s, [](uint32_t halves, int, int) { return halves; });
      to_operand(p, s);
    }
  }

  /// P as operand, where probabilities() has not made it one.
  __device__ __forceinline__ static void to_operand(Operand<C>& p, const Scores<C>& s) {
    if constexpr (!has_slope(C.rule)) {
      score::to_operand<C.rule.element>(p, s);
    }
  }

  /// P as float16. `mark(halves, i, j)`: what becomes of the pair at [i][j] of an operand.
  template <typename Mark>
  __device__ __forceinline__ void send_halves(const Scores<C>& p, const Mark& mark) {
    constexpr auto kPeer = static_cast<uint32_t>(WideRole::gradients);
    wait<C>(barriers_.handed_empty[handed_.stage], handed_.parity ^ 1);
    const uint32_t full = ptx::map_shared(&barriers_.handed_full[handed_.stage], kPeer);
#pragma unroll
    for (int i = 0; i < C.block_m / 16; ++i) {
      const auto pair = [&](int j) { return mark(to_halves<C>(p[8 * i + 2 * j], p[8 * i + 2 * j + 1]), i, j); };
      ptx::st_async_v4(ptx::map_shared(this->handed_chunk(i), kPeer), {pair(0), pair(1), pair(2), pair(3)}, full);
    }
    handed_.advance();
  }
};

}  // namespace strobe::sm90::backward
