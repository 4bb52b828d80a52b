// SPDX-License-Identifier: Apache-2.0
// The parts of a step on 16-bit operands, of which loops are made: the two products, and from scores to probabilities.
#pragma once

#include "kernels/score/apply.h"
#include "kernels/score/modifiers/softcap_step.h"
#include "kernels/sm90/forward/consume/rings.h"
#include "kernels/sm90/forward/consume/visited_blocks.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/forward/tile/blocks.h"
#include "kernels/sm90/forward/tile/rules.h"
#include "kernels/sm90/forward/tile/softmax.h"
#include "kernels/sm90/tile/gemm.h"

namespace strobe::sm90::forward {

/// From scores to probabilities.
template <Config C>
class ScoreSteps : protected Rings<C> {
 public:
  using Scores = float[C.block_n / 2];
  using Operand = uint32_t[C.block_n * operand_bytes(C) / 32][4];

 protected:
  using Rules = TileRules<C>;

  __device__ __forceinline__ ScoreSteps(const Context<C>& context, int warpgroup)
      : Rings<C>(context, warpgroup), params_(context.params) {}

  using Rings<C>::warpgroup, Rings<C>::wait_bias, Rings<C>::bias_done;

  /// What is known of a block when its scores are there.
  struct TextBlock {
    bool shown;  // a text that hides keys hides none of its
    [[no_unique_address]] score::BlockWords<C.rule> words;
  };

  /// Scores become probabilities. True if the maximum grew.
  template <bool masked, typename Bias>
  __device__ __forceinline__ bool probabilities(Scores& s, Softmax<C>& softmax, const Rules& rules, int n,
                                                const Bias& bias, const TextBlock& text) {
    static_assert(!C.caps_in_softmax || !hides_by_text(C.rule));
    if constexpr (!masked && C.caps_in_softmax) {
      rules.transform.apply_factor(s);
      return score::capped_step(softmax, s, params_.score);
    }
    const score::RowNumbers origins = transform<!masked>(s, rules, n, bias);
    if constexpr (hides_by_text(C.rule)) {
      mask_by_text(s, rules, n, text);
    } else if constexpr (masked) {
      rules.mask.apply(s, n);
    }
    return soften(s, softmax, origins);
  }

  /// Scores of block n, by all that comes before masks and softmax. `bias`: what was fetched of it.
  template <bool all_visible, typename Bias>
  __device__ __forceinline__ score::RowNumbers transform(Scores& s, const Rules& rules, int n, const Bias& bias) {
    if constexpr (C.bias_stages > 0) {
      return rules.transform.template apply_as<C.relative_alibi, all_visible>(s, n, wait_bias());
    } else {
      return rules.transform.template apply_as<C.relative_alibi, all_visible>(s, n, bias);
    }
  }

  /// The bias's stage is given back when the softmax has looked at all scores, not where its last load was issued: an
  /// arrival at a barrier may pass a load that waits for shared memory.
  __device__ __forceinline__ bool soften(Scores& s, Softmax<C>& softmax, const score::RowNumbers& origins) {
    const auto on_arrival = [&]() __attribute__((always_inline)) {
      if constexpr (C.bias_stages > 0) {
        bias_done();
      }
    };
    const float scale = score::remaining_scale<C.rule>(params_.score);
    if constexpr (C.relative_alibi) {
      return softmax.step(s, scale, origins, on_arrival);
    } else {
      return softmax.step(s, scale, on_arrival);
    }
  }

  /// Of a block that may be masked.
  template <typename Bias>
  __device__ __forceinline__ bool first_softmax(Scores& s, Softmax<C>& softmax, const Rules& rules, int n,
                                                const Bias& bias, const TextBlock& text) {
    const score::RowNumbers origins = transform<false>(s, rules, n, bias);
    if constexpr (hides_by_text(C.rule)) {
      mask_by_text(s, rules, n, text);
    } else if (rules.mask.needed(n)) {
      rules.mask.apply(s, n);
    }
    return soften(s, softmax, origins);
  }

  /// What block n's scores need of a text, while they are computed. `shown`: a mask looks at none of them.
  __device__ __forceinline__ TextBlock find_text(const Rules& rules, int n, bool shown) const {
    if (C.rule.text.score || !shown) {
      rules.transform.find_text(n);
    }
    return {shown, shown || kFindsWordsLate ? score::BlockWords<C.rule>() : find_words(rules, n)};
  }

  /// The products that made scores have read K, of which a mask may still want the bits.
  __device__ __forceinline__ void scores_arrived() {
    if constexpr (!brings_block_bits(C)) {
      this->scores_done();
    }
  }

  /// By the other masks, too.
  __device__ __forceinline__ void mask_by_text(Scores& s, const Rules& rules, int n, const TextBlock& text) {
    if (rules.mask.needed(n)) {
      rules.mask.apply(s, n);
    }
    if (!text.shown) {
      if constexpr (C.rule.text.mask) {
        rules.transform.hide(s, n);
      }
      (kFindsWordsLate ? find_words(rules, n) : text.words).hide(s);
    }
    if constexpr (brings_block_bits(C)) {
      __syncwarp();  // all lanes have read the stage's bits
      this->scores_done();
    }
  }

  __device__ __forceinline__ score::BlockWords<C.rule> find_words(const Rules& rules, int n) const {
    if constexpr (brings_block_bits(C)) {
      return {this->key_bits(), n * C.block_n % C.rule.block_mask, [](const unsigned* word) { return *word; }};
    } else {
      return rules.bits.find(n * C.block_n);
    }
  }

  /// Whether bits of a block's pairs wait until its scores are there: a bias has the registers before. From shared
  /// memory they take no time.
  static constexpr bool kFindsWordsLate = C.rule.bias || brings_block_bits(C);

  const Params& params_;
};

/// And the two products.
template <Config C>
class Steps : protected ScoreSteps<C> {
 public:
  using typename ScoreSteps<C>::Scores, typename ScoreSteps<C>::Operand;
  using Output = float[C.head_dim_v / 2];

 protected:
  using typename ScoreSteps<C>::Rules;

  __device__ __forceinline__ Steps(const Context<C>& context, int warpgroup) : ScoreSteps<C>(context, warpgroup) {}

  using Rings<C>::warpgroup, Rings<C>::queries, Rings<C>::keys, Rings<C>::values, Rings<C>::wait_k, Rings<C>::wait_v;

  /// Waiting for the next K here, not when it is used, ends a basic block: else ptxas moves the wait for P V up, above
  /// the exponentials that it should run under, and the additions of the sums down.
  __device__ __forceinline__ void end_of_step(bool more) {
    if (more) {
      wait_k();
    }
  }

  __device__ __forceinline__ void issue_scores(Scores& s) {
    gemm_scores<C.rule.element, C.head_dim>(s, queries(), keys());
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void issue_output(Output& o, const Operand& p) {
    gemm_output<C.rule.element>(o, p, values(), accumulate_ ? 1 : 0);
    ptx::wgmma_commit_group();
    accumulate_ = true;
  }

  /// S = Q K^T of a block and P V of the one before, in this warpgroup's turn.
  __device__ __forceinline__ void issue_both(Scores& s, Output& o, const Operand& p) {
    if constexpr (!C.late_values) {
      wait_v();
    }
    WarpgroupOrder<C>::wait(warpgroup());
    ptx::wgmma_fence();
    issue_scores(s);
    if constexpr (C.late_values) {
      wait_v();
    }
    issue_output(o, p);
    WarpgroupOrder<C>::pass(warpgroup());
  }

  bool accumulate_ = false;  // whether O holds earlier blocks of its tile
};

}  // namespace strobe::sm90::forward
