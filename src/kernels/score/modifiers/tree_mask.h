// SPDX-License-Identifier: Apache-2.0
// Tree masks: of a sequence's last keys, as many as it has queries, each query sees those whose bits are set in its
// number. Keys before them are no matter of it. Forwards have it alone.
//
// Forward: of a tile TreeRows, among the other masks (score/mask.h), of a single key shows(). The parameters are plain
// C++ without std headers, shared by host and device.
#pragma once

#include "kernels/score/rule.h"

#ifdef __CUDACC_RTC__
#include "kernels/math/constants.h"
#include "kernels/score/fragment.h"
#include "kernels/sequence/visible_keys.h"
#endif

namespace strobe {

/// Tree-mask rules: a number for each query, [batch, seqlen_q], packed [total_q].
struct TreeParams {
  const unsigned long long* words;
  long long batch_stride;  // packed: 0
};

/// Registers of a thread that a forward keeps for it.
inline constexpr int kTreeMaskRegisters = 8;

#ifdef __CUDACC_RTC__

namespace score {

/// One row's. Without a tree mask nothing reads it.
struct TreeRow {
  int begin;                 // key of bit 0; negative where there are more queries than keys
  unsigned long long shown;  // a bit for each key from there on
};

/// Which keys a tree mask shows to a query; to a query past the last one, what it shows to the last one.
template <ScoreRule R>
__device__ __forceinline__ TreeRow tree_row(const TreeParams& params, const sequence::Sequence& sequence, int batch,
                                            int query) {
  if constexpr (R.tree_mask) {
    const int row = sequence.q.start + min(query, sequence.q.used - 1);
    return {sequence.k.used - sequence.q.used, __ldg(params.words + batch * params.batch_stride + row)};
  } else {
    return {};
  }
}

/// Whether the row sees a key of its sequence.
__device__ __forceinline__ bool shows(const TreeRow& row, int key) {
  return key < row.begin || (row.shown >> (key - row.begin) & 1U) != 0;
}

/// The first block of keys that a tree mask may hide one of; `otherwise` if that is less, or without a tree mask.
template <ScoreRule R>
__device__ __forceinline__ int first_tree_block(const sequence::Sequence& sequence, int block_n, int otherwise) {
  if constexpr (R.tree_mask) {
    return min(otherwise, max(sequence.k.used - sequence.q.used, 0) / block_n);
  } else {
    return otherwise;
  }
}

/// Of this thread's rows of a tile of scores; the second one's query is `query_step` after the first's. Without a tree
/// mask it is empty.
template <ScoreRule R, int query_step>
class TreeRows {
 public:
  __device__ __forceinline__ TreeRows(const TreeParams&, const sequence::Sequence&, int, int) {}

  template <int n>
  __device__ __forceinline__ void apply(float (&)[n], int) const {}
};

template <ScoreRule R, int query_step>
  requires(R.tree_mask)
class TreeRows<R, query_step> {
 public:
  __device__ __forceinline__ TreeRows(const TreeParams& params, const sequence::Sequence& sequence, int batch,
                                      int query) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const TreeRow row = tree_row<R>(params, sequence, batch, query + r * query_step);
      begin_ = row.begin;
      hidden_[r] = ~row.shown;
    }
  }

  /// Scores of hidden keys become -inf, whatever they were; the tile's first key is `first_key`.
  template <int n>
  __device__ __forceinline__ void apply(float (&s)[n], int first_key) const {
    const int first_bit = first_key + fragment_column() - begin_;  // of this thread's first column
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
#pragma unroll
      for (int column = 0; column < 2 * n; column += kColumns) {
        const unsigned hidden = window(hidden_[r], first_bit + column);
#pragma unroll
        for (int i = 0; i < kColumns / 8 && column + 8 * i < 2 * n; ++i) {
          float* const pair = &s[(column / 8 + i) * 4 + 2 * r];
          pair[0] = (hidden >> (8 * i) & 1U) != 0 ? kMinusInfinity : pair[0];
          pair[1] = (hidden >> (8 * i + 1) & 1U) != 0 ? kMinusInfinity : pair[1];
        }
      }
    }
  }

 private:
  static constexpr int kColumns = 32;

  /// Bits [first, first + 32); those below 0 and from 64 on are 0.
  __device__ __forceinline__ static unsigned window(unsigned long long bits, int first) {
    if (first < 0) {
      return first > -kColumns ? static_cast<unsigned>(bits) << -first : 0U;
    }
    return first < 2 * kColumns ? static_cast<unsigned>(bits >> first) : 0U;
  }

  int begin_;
  unsigned long long hidden_[kRowsPerThread];
};

}  // namespace score

#endif

}  // namespace strobe
