// SPDX-License-Identifier: Apache-2.0
// Online softmax over the two rows that a thread holds of its warpgroup's scores: running maximum, running sum, and the
// factor by which earlier results shrink when the maximum grows. In powers of two: `scale_log2` folds log2(e) in.
//
// Source: Milakov and Gimelshein (2018); Dao, "FlashAttention-2" (2023), section 3.1.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/score/fragment.h"
#include "kernels/score/lse.h"
#include "kernels/score/rule.h"
#include "kernels/score/unnormalized.h"

namespace strobe::score {

template <ScoreRule R, int block_n>
struct OnlineSoftmax {
  // A row's exponents are taken relative to max_log2, a maximum that it had: it is raised only when a score passes it
  // by more than kSlack, so that probabilities reach 2^kSlack at most and O is rescaled a few times per tile, not in
  // every step.
  static constexpr float kSlack = 8.0F;

  // An exponent is one multiply-add, score * scale - max_log2, of which max_log2 is rounded: half an ulp of it stays in
  // every exponent of the row. The row's sum has it, too, so that it cancels, but from here on P might leave its range:
  // then the products are rounded first, as the maximum was.
  static constexpr float kMostFused = 0x1p25F;

  float max_log2[kRowsPerThread] = {kMinusInfinity, kMinusInfinity};
  float sum[kRowsPerThread] = {0.0F, 0.0F};  // of this thread's columns only, until finish()
  float correction[kRowsPerThread] = {1.0F, 1.0F};
  // By how much a score may pass the maximum: kSlack, or -inf where a row of the warp's is large, so that each step
  // looks at that case. The same in all threads.
  float slack = kSlack;
  float top[kRowsPerThread] = {kMinusInfinity, kMinusInfinity};  // max_logits rules: the largest score so far

  /// Turns scores into probabilities. True if what was accumulated before must be multiplied by `correction`: the same
  /// answer in all threads of a warp.
  __device__ __forceinline__ bool step(float (&s)[block_n / 2], float scale_log2) {
    return step(s, scale_log2, [] {});
  }

  /// Turns scores into probabilities, and calls `on_arrival` once all have been looked at: what they were computed from
  /// has then arrived in registers. True if the maximum grew.
  template <typename OnArrival>
  __device__ __forceinline__ bool step(float (&s)[block_n / 2], float scale_log2, const OnArrival& on_arrival) {
    float highest[kRowsPerThread];
    RowNumbers shifts{{max_log2[0], max_log2[1]}};
    const bool grew = __any_sync(kFullWarp, look_at(s, highest, scale_log2));
    if (grew) {
      raise_maximum(s, highest, scale_log2);
      shifts = {{shift(0), shift(1)}};
      if (has_large()) {
        subtract_maximum(s, scale_log2);
        shifts = {{is_large(0) ? 0.0F : shift(0), is_large(1) ? 0.0F : shift(1)}};
      }
    }
    on_arrival();
    add_exponentials(s, scale_log2, shifts);
    return grew;
  }

  /// Turns scores that lack their row's origin into probabilities. True if the maximum grew.
  template <typename OnArrival>
  __device__ __forceinline__ bool step(float (&s)[block_n / 2], float scale_log2, const RowNumbers& origins,
                                       const OnArrival& on_arrival) {
    static_assert(!R.max_logits);
    const auto exponent = [&](float score, int r) { return __fmaf_rz(score, scale_log2, origins.row[r]); };
    float highest[kRowsPerThread];
    highest_or_zero(s, highest);
    bool passes = false;
    bool all_positive = true;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      passes |= exponent(highest[r], r) > max_log2[r] + slack;
      all_positive = all_positive && highest[r] > 0.0F;
    }
    const bool grew = __any_sync(kFullWarp, passes);
    if (grew) {
      if (!__all_sync(kFullWarp, all_positive)) {
        find_highest(s, highest);
      }
      // Threads of a row have origins of their own, so that scores of theirs do not compare.
      raise_maximum_to({{highest_of_quad(exponent(highest[0], 0)), highest_of_quad(exponent(highest[1], 1))}});
      if (has_large()) {
        on_arrival();
        add_large(s, exponent);
        return true;
      }
    }
    on_arrival();
    add_exponentials(s, scale_log2, {{shift(0) - origins.row[0], shift(1) - origins.row[1]}});
    return grew;
  }

  // The parts of step(), for those who put other work between them.

  /// Whether this thread's scores pass the maximum, or some are large: then the whole warp must call raise_maximum().
  /// `highest`: for it.
  __device__ __forceinline__ bool look_at(const float (&s)[block_n / 2], float (&highest)[kRowsPerThread],
                                          float scale_log2) {
    highest_or_zero(s, highest);
    if constexpr (R.max_logits) {
      raise_top(s, highest);
    }
    bool passes = false;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      passes |= __fmul_rz(highest[r], scale_log2) > max_log2[r] + slack;
    }
    return passes;
  }

  /// By all threads of a warp. What was accumulated before is to be multiplied by `correction`. Rounded towards zero,
  /// products of finite scores are finite.
  __device__ __forceinline__ void raise_maximum(const float (&s)[block_n / 2], float (&highest)[kRowsPerThread],
                                                float scale_log2) {
    raise_maximum_to(s, highest, [&](float score) { return __fmul_rz(score, scale_log2); });
  }

  /// Whether a row of the warp's is large, so that its exponents are not one operation.
  __device__ __forceinline__ bool has_large() const { return slack == kMinusInfinity; }

  /// For exponentiate(), where has_large(): large scores become what times the scale is their exponent.
  __device__ __forceinline__ void subtract_maximum(float (&s)[block_n / 2], float scale_log2) const {
    const float inverse = ptx::rcp_approx(scale_log2);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      if (is_large(r)) {
#pragma unroll
        for (int j = 0; j < block_n / 8; ++j) {
          float* const pair = &s[4 * j + 2 * r];
          pair[0] = (__fmul_rz(pair[0], scale_log2) - max_log2[r]) * inverse;
          pair[1] = (__fmul_rz(pair[1], scale_log2) - max_log2[r]) * inverse;
        }
      }
    }
  }

  /// Raises the maximum to scores that `exponent_of`, a function that never falls, makes exponents.
  template <typename ExponentOf>
  __device__ __forceinline__ void raise_maximum_to(const float (&s)[block_n / 2], float (&highest)[kRowsPerThread],
                                                   const ExponentOf& exponent_of) {
    find_rows_highest(s, highest);
    raise_maximum_to({{exponent_of(highest[0]), exponent_of(highest[1])}});
  }

  /// By all threads of a warp: what look_at() found of this thread's scores becomes the highest of each row's.
  __device__ __forceinline__ static void find_rows_highest(const float (&s)[block_n / 2],
                                                           float (&highest)[kRowsPerThread]) {
    bool some_positive = true;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      highest[r] = highest_of_quad(highest[r]);
      some_positive = some_positive && highest[r] > 0.0F;
    }
    if (!__all_sync(kFullWarp, some_positive)) {
      find_highest(s, highest);
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        highest[r] = highest_of_quad(highest[r]);
      }
    }
  }

  /// raise_maximum() where the rows have other scores, too, the highest of all of which are these.
  __device__ __forceinline__ void raise_maximum(const float (&highest)[kRowsPerThread], float scale_log2) {
    raise_maximum_to({{__fmul_rz(highest[0], scale_log2), __fmul_rz(highest[1], scale_log2)}});
  }

  /// raise_maximum() of scores that `exponent_of` makes exponents, which were not looked at.
  template <typename ExponentOf>
  __device__ __forceinline__ void raise_maximum_by(const float (&s)[block_n / 2], const ExponentOf& exponent_of) {
    float highest[kRowsPerThread];
    highest_or_zero(s, highest);
    raise_maximum_to(s, highest, exponent_of);
  }

  /// Turns the scores of sixteen keys, those of the operand `step`, into probabilities: times 2^lift, as their sums.
  template <int lift = 0>
  __device__ __forceinline__ void exponentiate(float (&s)[block_n / 2], int step, float scale_log2) {
    float part[kRowsPerThread] = {};
#pragma unroll
    for (int i = 8 * step; i < 8 * step + 8; ++i) {
      const int r = i / 2 % kRowsPerThread;
      const float less = is_large(r) ? 0.0F : -shift(r);
      s[i] = ptx::ex2_approx(__fmaf_rn(s[i], scale_log2, lift == 0 ? less : less + lift));
      part[r] += s[i];
    }
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      sum[r] += part[r];
    }
  }

  /// Scores become probabilities and join the sums: exponent(score, r) is that of a score of row r, less shift(r).
  template <typename ExponentOf>
  __device__ __forceinline__ void add_exponentials(float (&s)[block_n / 2], const ExponentOf& exponent) {
    float part[kRowsPerThread][2] = {};
    for_each_score(s, [&](float& x, int r, int column) {
      x = ptx::ex2_approx(exponent(x, r));
      part[r][column % 2] += x;
    });
    add(part);
  }

  /// Scores join the sums two at a time: exponents(x, y, r) makes exponents of two scores of row r.
  template <typename ExponentsOf>
  __device__ __forceinline__ void add_pairs(float (&s)[block_n / 2], const ExponentsOf& exponents) {
    float part[kRowsPerThread][2] = {};
#pragma unroll
    for (int i = 0; i < block_n / 2; i += 2) {
      const int r = i / 2 % kRowsPerThread;
      exponents(s[i], s[i + 1], r);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        s[i + c] = ptx::ex2_approx(s[i + c]);
        part[r][c] += s[i + c];
      }
    }
    add(part);
  }

  /// What exponents are relative to.
  __device__ __forceinline__ float shift(int r) const {
    return may_hide_all(R) && max_log2[r] == kMinusInfinity ? 0.0F : max_log2[r];
  }

  /// Never true once step() has run: whether a sum is negative. A branch on it keeps the additions above the branch.
  __device__ __forceinline__ bool sums_are_negative() const { return sum[0] < 0.0F || sum[1] < 0.0F; }

  /// Adds the quad's parts up: `sum` becomes the row's.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      sum[r] += __shfl_xor_sync(kFullWarp, sum[r], 1);
      sum[r] += __shfl_xor_sync(kFullWarp, sum[r], 2);
    }
  }

  /// After finish(): a logit without a value joins row r. Returns by what the row's output shrinks for it.
  __device__ __forceinline__ float join(int r, float logit_log2) {
    const float raised = fmaxf(max_log2[r], logit_log2);
    if (raised == kMinusInfinity) {
      return 1.0F;
    }
    const float shrunk = ptx::ex2_approx(max_log2[r] - raised);
    sum[r] = __fmaf_rn(sum[r], shrunk, ptx::ex2_approx(logit_log2 - raised));
    max_log2[r] = raised;
    return shrunk;
  }

  /// Natural logarithm of the row's sum of exponentials, after finish(); -inf for a row that saw no key.
  __device__ __forceinline__ float lse(int r) const { return lse_of(max_log2[r], sum[r]); }

 private:
  __device__ __forceinline__ bool is_large(int r) const {
    return fabsf(max_log2[r]) >= kMostFused && max_log2[r] != kMinusInfinity;
  }

  /// Scores become probabilities and join the sum: by exponents that are rounded before the maximum is subtracted.
  template <typename ExponentOf>
  __device__ __forceinline__ void add_large(float (&s)[block_n / 2], const ExponentOf& exponent_of) {
    const float shifts[kRowsPerThread] = {shift(0), shift(1)};
    float part[kRowsPerThread] = {};
    for_each_score(s, [&](float& x, int r, int) {
      x = ptx::ex2_approx(exponent_of(x, r) - shifts[r]);
      part[r] += x;
    });
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      sum[r] += part[r];
    }
  }

  /// Scores become probabilities and join the sums.
  __device__ __forceinline__ void add_exponentials(float (&s)[block_n / 2], float scale_log2,
                                                   const RowNumbers& shifts) {
    add_exponentials(s, [&](float x, int r) { return __fmaf_rn(x, scale_log2, -shifts.row[r]); });
  }

  __device__ __forceinline__ void add(const float (&part)[kRowsPerThread][2]) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      sum[r] += part[r][0] + part[r][1];
    }
  }

  /// The highest score of each of this thread's rows, or 0 where none is positive. As integers, positive floats order
  /// as they do as floats and above all negative ones, so three-input maxima do with half the instructions.
  __device__ __forceinline__ static void highest_or_zero(const float (&s)[block_n / 2],
                                                         float (&highest)[kRowsPerThread]) {
    int bits[kRowsPerThread][2] = {};
#pragma unroll
    for (int j = 0; j < block_n / 8; ++j) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        bits[r][j % 2] =
            __vimax3_s32(bits[r][j % 2], __float_as_int(s[4 * j + 2 * r]), __float_as_int(s[4 * j + 2 * r + 1]));
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      highest[r] = __int_as_float(max(bits[r][0], bits[r][1]));
    }
  }

  /// The highest score of each of this thread's rows.
  __device__ __forceinline__ static void find_highest(const float (&s)[block_n / 2], float (&highest)[kRowsPerThread]) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      highest[r] = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
      for (int j = 1; j < block_n / 8; ++j) {
        highest[r] = fmaxf(highest[r], fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      }
    }
  }

  /// The maxima become those of the rows' exponents, where these are higher. Of row-invariant rules only the rows move
  /// whose scores pass their own maximum: others multiply by exactly 1.
  __device__ __forceinline__ void raise_maximum_to(const RowNumbers& exponents) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const bool stays = R.row_invariant && !(exponents.row[r] > max_log2[r] + kSlack);
      const float raised = stays ? max_log2[r] : fmaxf(max_log2[r], exponents.row[r]);
      correction[r] = stays || raised == kMinusInfinity ? 1.0F : ptx::ex2_approx(max_log2[r] - raised);
      max_log2[r] = raised;
      // Of row-invariant rules never one instruction with the addition that follows, which not all variants have there.
      sum[r] = R.row_invariant ? __fmul_rn(sum[r], correction[r]) : sum[r] * correction[r];
    }
    slack = __any_sync(kFullWarp, is_large(0) || is_large(1)) ? kMinusInfinity : kSlack;
  }

  /// Looks at each score only while none was positive: then `highest` does not tell.
  __device__ __forceinline__ void raise_top(const float (&s)[block_n / 2], const float (&highest)[kRowsPerThread]) {
    bool told = true;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      told = told && (highest[r] > 0.0F || top[r] >= 0.0F);
    }
    if (__all_sync(kFullWarp, told)) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        top[r] = fmaxf(top[r], highest[r]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < block_n / 2; ++i) {
        top[i / 2 % kRowsPerThread] = fmaxf(top[i / 2 % kRowsPerThread], s[i]);
      }
    }
  }

  /// The highest of the four threads that share a row.
  __device__ __forceinline__ static float highest_of_quad(float x) {
    x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 1));
    return fmaxf(x, __shfl_xor_sync(kFullWarp, x, 2));
  }
};

/// What a rule makes of a tile's rows.
template <ScoreRule R, int block_n>
struct SoftmaxOf {
  using Type = OnlineSoftmax<R, block_n>;
};
template <ScoreRule R, int block_n>
  requires(!R.normalized)
struct SoftmaxOf<R, block_n> {
  using Type = Unnormalized<R, block_n>;
};

}  // namespace strobe::score
