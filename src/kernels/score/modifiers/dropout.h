// SPDX-License-Identifier: Apache-2.0
// Dropout: probabilities become 0 at random, and the others are divided by the probability of being kept.
// include/strobe/dropout.h says which are dropped: a block of Philox decides on sixteen pairs of a query and a key, of
// which two neighbouring rows of a fragment hold eight each, whether its rows are queries or keys. So the lanes of two
// such rows draw every second block and give each other half of it.
//
// Forward: of a tile Dropout, operand by operand StepDropout; rows are divided by the probability in the end.
// Derivative: a dropped pair's dP is 0, by without_dropped() or the sign of P (mark_dropped). Of a single pair:
// is_dropped(). The parameters are plain C++ without std headers, shared by host and device.
#pragma once

#include "kernels/math/philox.h"
#include "kernels/score/rule.h"

#ifdef __CUDACC_RTC__
#include "kernels/ptx/arithmetic.h"
#include "kernels/score/fragment.h"
#include "kernels/sequence/visible_keys.h"
#endif

namespace strobe {

/// Dropout rules.
struct DropoutParams {
  DropoutKey key;
  const unsigned long long* state;      // null, or seed and offset in memory, instead of the key's
  float keep_probability, keep_factor;  // the probability of being kept, and one over it
  // Of the larger call that this may be a part of: the number of the first sequence's first head, and how many heads
  // more a sequence has there.
  unsigned first_head, more_heads;
};

// Columns of a tile that two lanes draw the random numbers for, one block each.
inline constexpr int kDropoutColumns = 32;

/// Registers of a thread that a forward keeps for it.
inline constexpr int kDropoutRegisters = 40;

#ifdef __CUDACC_RTC__

namespace score {

/// Seed and offset where they lie. They are made uniform whether or not they were loaded: where ptxas guards those
/// instructions with a predicate, it may use another by mistake (seen with CUDA 13.0, of ALiBi with dropout).
__device__ __forceinline__ DropoutKey dropout_key_of(const DropoutParams& params) {
  DropoutKey key = params.key;
  if (params.state != nullptr) {
    key = with_state(key, params.state[0], params.state[1]);
  }
  return {.key = {uniform(key.key.low), uniform(key.key.high)},
          .offset = uniform(key.offset),
          .threshold = params.key.threshold};
}

/// The number of a query head in the larger call, of its number in this one, counted through the batch.
__device__ __forceinline__ unsigned head_of_whole(const DropoutParams& params, int sequence, int head_in_batch) {
  return head_in_batch + sequence * params.more_heads + params.first_head;
}

/// The random slice of a single pair.
__device__ __forceinline__ unsigned slice_of(const DropoutKey& dropout, unsigned head, unsigned query, unsigned key) {
  const PhiloxBlock block = philox(dropout_counter(dropout, head, query, key), dropout.key);
  // Selected, as an index that is not a constant would put the block into memory.
  const unsigned place = dropout_place(query);
  const unsigned even = place / 2 == 0 ? block.word[0] : block.word[2];
  const unsigned odd = place / 2 == 0 ? block.word[1] : block.word[3];
  const unsigned word = place % 2 == 0 ? even : odd;
  return word >> (8 * dropout_place(key)) & 0xFFU;
}

/// Whether a single probability is dropped.
__device__ __forceinline__ bool is_dropped(const DropoutKey& dropout, unsigned head, int query, int key) {
  return slice_of(dropout, head, query, key) < dropout.threshold;
}

/// The random slices of a thread's scores in a tile of so many columns: of every sixteen columns, two words.
template <int columns>
struct DropoutSlices {
  unsigned words[columns / 16][2];
  unsigned limits;  // two float16: 1024 and the threshold

  __device__ __forceinline__ explicit DropoutSlices(const DropoutKey& dropout)
      : limits(0x64006400U + dropout.threshold * 0x10001U) {
    asm volatile("" : "+r"(limits));  // in a register: from a uniform one each byte permutation would have it copied
  }

  /// Of the lower or upper two slices of a word: ones in the half of a register whose score is dropped. 1024 + slice is
  /// a float16 with the slice as its lowest bits, and as its upper byte that of the limits.
  __device__ __forceinline__ unsigned dropped(int group, int word, int upper) const {
    const unsigned selector = upper == 0 ? 0x5150U : 0x5352U;
    return ptx::set_lt_f16x2(__byte_perm(words[group][word], limits, selector), limits);
  }
};

/// How much the patch's number grows with sixteen keys or queries.
constexpr unsigned kPatchesPerSixteen = dropout_patch(16);

/// Whether this lane's fragment rows are odd.
__device__ __forceinline__ bool odd_rows() { return (threadIdx.x & 4U) != 0; }

/// Exchanges words between two lanes, each of which drew one for its own rows and one for the other's: of the first
/// sixteen columns, which lanes of even rows draw, and of the second.
__device__ __forceinline__ void exchange_words(unsigned of_even, unsigned of_odd, unsigned& first, unsigned& second) {
  const bool odd = odd_rows();
  const unsigned got = __shfl_xor_sync(kFullWarp, odd ? of_even : of_odd, 4);
  first = odd ? got : of_even;
  second = odd ? of_odd : got;
}

/// Slices of a tile whose rows are queries and whose columns are keys: words are the thread's rows, their halves the
/// columns of a register. `query`: the thread's first; `key`: its first column.
template <int columns>
__device__ __forceinline__ DropoutSlices<columns> draw_rows(const DropoutKey& dropout, unsigned head, unsigned query,
                                                            unsigned key) {
  DropoutSlices<columns> slices(dropout);
  PhiloxBlock counter = dropout_counter(dropout, head, query, key);
  counter.word[0] += odd_rows() ? kPatchesPerSixteen : 0U;
#pragma unroll
  for (int part = 0; part < columns / kDropoutColumns; ++part) {
    const PhiloxBlock block = philox(counter, dropout.key);
    counter.word[0] += 2 * kPatchesPerSixteen;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      exchange_words(block.word[2 * r], block.word[2 * r + 1], slices.words[2 * part][r],
                     slices.words[2 * part + 1][r]);
    }
  }
  return slices;
}

/// Slices of a tile whose rows are keys and whose columns are queries: words are the first and the second eight
/// columns, their halves the thread's rows. `key`: the thread's first; `query`: its first column.
template <int columns>
__device__ __forceinline__ DropoutSlices<columns> draw_columns(const DropoutKey& dropout, unsigned head, unsigned query,
                                                               unsigned key) {
  DropoutSlices<columns> slices(dropout);
  PhiloxBlock counter = dropout_counter(dropout, head, query, key);
  counter.word[1] += odd_rows() ? kPatchesPerSixteen : 0U;
#pragma unroll
  for (int part = 0; part < columns / kDropoutColumns; ++part) {
    const PhiloxBlock block = philox(counter, dropout.key);
    counter.word[1] += 2 * kPatchesPerSixteen;
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // bytes 0 and 2 are even keys', 1 and 3 odd ones'
      const unsigned low = block.word[2 * half];
      const unsigned high = block.word[2 * half + 1];
      exchange_words(__byte_perm(low, high, 0x6240U), __byte_perm(low, high, 0x7351U), slices.words[2 * part][half],
                     slices.words[2 * part + 1][half]);
    }
  }
  return slices;
}

/// Slices one by one: `slice(i, word, byte)` is that of a byte of words[i][word].
template <int columns, typename SliceOf>
__device__ __forceinline__ DropoutSlices<columns> draw_each(const DropoutKey& dropout, const SliceOf& slice) {
  DropoutSlices<columns> slices(dropout);
#pragma unroll
  for (int i = 0; i < columns / 16; ++i) {
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      slices.words[i][word] = 0;
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) {
        slices.words[i][word] |= slice(i, word, byte) << (8 * byte);
      }
    }
  }
  return slices;
}

/// Whether tiles of a part of a sequence, which begins there, lie on the patches of the whole one.
__device__ __forceinline__ bool begins_at_patches(const sequence::FirstPositions& first) {
  constexpr int kPositionsOfPatches = 16;
  return (first.q | first.k) % kPositionsOfPatches == 0;
}

/// draw_rows() of queries and keys of the call.
template <ScoreRule R, int columns>
__device__ __forceinline__ DropoutSlices<columns> draw_part_rows(const DropoutKey& dropout, unsigned head,
                                                                 unsigned query, unsigned key,
                                                                 const sequence::FirstPositions& first) {
  if constexpr (R.offsets) {
    query += first.q;
    key += first.k;
    if (!begins_at_patches(first)) {
      return draw_each<columns>(dropout, [&](int i, int word, int byte) {
        return slice_of(dropout, head, query + 8 * word, key + 16 * i + byte / 2 * 8 + byte % 2);
      });
    }
  }
  return draw_rows<columns>(dropout, head, query, key);
}

/// draw_columns() of queries and keys of the call.
template <ScoreRule R, int columns>
__device__ __forceinline__ DropoutSlices<columns> draw_part_columns(const DropoutKey& dropout, unsigned head,
                                                                    unsigned query, unsigned key,
                                                                    const sequence::FirstPositions& first) {
  if constexpr (R.offsets) {
    query += first.q;
    key += first.k;
    if (!begins_at_patches(first)) {
      return draw_each<columns>(dropout, [&](int i, int word, int byte) {
        return slice_of(dropout, head, query + 16 * i + 8 * word + byte % 2, key + byte / 2 * 8);
      });
    }
  }
  return draw_columns<columns>(dropout, head, query, key);
}

/// A thread's first row of a tile.
struct DropoutRow {
  unsigned head;  // head_of_whole()
  int query;
  sequence::FirstPositions first;  // of its sequence
};

/// The probabilities of one tile, block_n keys wide.
template <ScoreRule R, int block_n>
class Dropout {
 public:
  using Row = DropoutRow;

  /// `row`: this thread's first.
  __device__ __forceinline__ Dropout(const DropoutParams& params, const Row& row)
      : key_(dropout_key_of(params)), row_(row) {
    static_assert(block_n % kDropoutColumns == 0);
  }

  /// Which probabilities of block n are dropped.
  __device__ __forceinline__ DropoutSlices<block_n> draw(int n) const {
    return draw_part_rows<R, block_n>(key_, row_.head, row_.query, n * block_n + fragment_column(), row_.first);
  }

  /// Probabilities as operand, zeros where they are dropped.
  __device__ __forceinline__ void to_operand(unsigned (&p)[block_n / 16][4], const float (&s)[block_n / 2],
                                             const DropoutSlices<block_n>& slices) const {
    score::to_operand<R.element>(p, s);
#pragma unroll
    for (int i = 0; i < block_n / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        p[i][j] &= ~slices.dropped(i, j % kRowsPerThread, j / kRowsPerThread);
      }
    }
  }

 private:
  DropoutKey key_;
  Row row_;
};

/// Dropout of rules that have none.
template <ScoreRule R, int block_n>
  requires(!R.dropout)
class Dropout<R, block_n> {
 public:
  using Row = DropoutRow;
  struct NoSlices {};
  __device__ __forceinline__ Dropout(const DropoutParams&, const Row&) {}
  __device__ __forceinline__ NoSlices draw(int) const { return {}; }
  __device__ __forceinline__ void to_operand(unsigned (&p)[block_n / 16][4], const float (&s)[block_n / 2],
                                             const NoSlices&) const {
    score::to_operand<R.element>(p, s);
  }
};

/// The probabilities of one tile, block_n keys wide, drawn as they become operands, sixteen keys at a time.
template <ScoreRule R, int block_n>
class StepDropout {
 public:
  using Row = DropoutRow;
  /// `row`: this thread's first.
  __device__ __forceinline__ StepDropout(const DropoutParams& params, const Row& row)
      : key_(dropout_key_of(params)), row_(row), slices_(key_) {
    static_assert(block_n % kDropoutColumns == 0);
  }

  /// Zeros where the probabilities of the sixteen keys of step `step` of block n are dropped. Steps come in order.
  __device__ __forceinline__ void apply(unsigned (&p)[4], int n, int step) {
    if (step % 2 == 0) {
      slices_ = draw_part_rows<R, kDropoutColumns>(key_, row_.head, row_.query,
                                                   n * block_n + step * 16 + fragment_column(), row_.first);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      p[j] &= ~slices_.dropped(step % 2, j % kRowsPerThread, j / kRowsPerThread);
    }
  }

  /// The same of probabilities in float32, s[0] to s[7], of a step whose number only the kernel knows.
  __device__ __forceinline__ void apply(float (&s)[block_n / 2], int n, int step) {
    if (step % 2 == 0) {
      slices_ = draw_part_rows<R, kDropoutColumns>(key_, row_.head, row_.query,
                                                   n * block_n + step * 16 + fragment_column(), row_.first);
    } else {
      slices_.words[0][0] = slices_.words[1][0];
      slices_.words[0][1] = slices_.words[1][1];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned dropped = slices_.dropped(0, j % kRowsPerThread, j / kRowsPerThread);
      float* const pair = &s[2 * j];
      pair[0] = (dropped & 1U) != 0 ? 0.0F : pair[0];
      pair[1] = (dropped >> 31) != 0 ? 0.0F : pair[1];
    }
  }

 private:
  DropoutKey key_;
  Row row_;
  DropoutSlices<kDropoutColumns> slices_;
};

/// Dropout of rules that have none.
template <ScoreRule R, int block_n>
  requires(!R.dropout)
class StepDropout<R, block_n> {
 public:
  using Row = DropoutRow;
  __device__ __forceinline__ StepDropout(const DropoutParams&, const Row&) {}
  __device__ __forceinline__ void apply(unsigned (&)[4], int, int) {}
  __device__ __forceinline__ void apply(float (&)[block_n / 2], int, int) {}
};

/// dP of a pair of neighbours, 0 where it is dropped: ones in the halves of `dropped`.
__device__ __forceinline__ float2 without_dropped(const float* dp, unsigned dropped) {
  return {(dropped & 1U) != 0 ? 0.0F : dp[0], (dropped >> 31) != 0 ? 0.0F : dp[1]};
}

/// Float16 pairs of the probabilities at p[i][j] of an operand, with the sign of dropped ones set.
template <int columns>
__device__ __forceinline__ unsigned mark_dropped(unsigned halves, const DropoutSlices<columns>& slices, int i, int j) {
  return halves | (slices.dropped(i, j / kRowsPerThread, j % kRowsPerThread) & 0x80008000U);
}

/// dS times the probability of being kept, of P with such a sign and D times that probability.
__device__ __forceinline__ float marked_score_gradient(float p, float dp, float d) {
  return __fmaf_rn(fmaxf(p, 0.0F), dp, -fabsf(p) * d);
}

}  // namespace score

#endif

}  // namespace strobe
