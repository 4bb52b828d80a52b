// SPDX-License-Identifier: Apache-2.0
// Dropout of a tile's probabilities. include/strobe/dropout.h says which are dropped: of every 32 keys, one block of
// Philox decides on the eight that a thread holds of a row.
#pragma once

#include "kernels/math/philox.h"
#include "kernels/score/fragment.h"
#include "kernels/score/params.h"
#include "kernels/score/rule.h"

namespace strobe::score {

/// Seed and offset where they lie, the same in all lanes: so that the compiler may keep them in uniform registers.
__device__ __forceinline__ DropoutKey dropout_key_of(const DropoutParams& params) {
  if (params.state == nullptr) {
    return params.key;
  }
  DropoutKey key = with_state(params.key, params.state[0], params.state[1]);
  key.key.low = __shfl_sync(kFullWarp, key.key.low, 0);
  key.key.high = __shfl_sync(kFullWarp, key.key.high, 0);
  key.offset = __shfl_sync(kFullWarp, key.offset, 0);
  return key;
}

/// Whether a single probability is dropped.
__device__ __forceinline__ bool is_dropped(const DropoutKey& dropout, int head, int query, int key) {
  const PhiloxBlock block = philox(dropout_counter(dropout, head, query, key), dropout.key);
  // Selected, as an index that is not a constant would put the block into memory.
  const unsigned low = key / 8 % 2 == 0 ? block.word[0] : block.word[1];
  const unsigned high = key / 8 % 2 == 0 ? block.word[2] : block.word[3];
  const unsigned word = key / 16 % 2 == 0 ? low : high;
  return (word >> (key % 2 * 16) & 0xFFFFU) < dropout.threshold;
}

/// The probabilities of one tile, block_n keys wide.
template <ScoreRule R, int block_n>
class Dropout {
 public:
  struct Row {
    int head;  // counted through the batch
    int query;
  };

  /// `row(r)` is this thread's row r.
  template <typename RowOf>
  __device__ __forceinline__ Dropout(const DropoutParams& params, const RowOf& row) : key_(dropout_key_of(params)) {
    static_assert(block_n % kPhiloxKeys == 0);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      rows_[r] = row(r);
    }
  }

  /// Probabilities of block n.
  __device__ __forceinline__ void apply(float (&p)[block_n / 2], int n) const {
    const unsigned least = key_.threshold << 16;  // of a slice that is kept, in the upper half of a word
#pragma unroll
    for (int part = 0; part < block_n / kPhiloxKeys; ++part) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const unsigned key = n * block_n + part * kPhiloxKeys + fragment_column();
        const PhiloxBlock block = philox(dropout_counter(key_, rows_[r].head, rows_[r].query, key), key_.key);
#pragma unroll
        for (int group = 0; group < 4; ++group) {
          float* const pair = &p[4 * (4 * part + group) + 2 * r];
          pair[0] = block.word[group] << 16 < least ? 0.0F : pair[0];
          pair[1] = block.word[group] < least ? 0.0F : pair[1];
        }
      }
    }
  }

 private:
  DropoutKey key_;
  Row rows_[kRowsPerThread];
};

/// Rules without dropout.
template <ScoreRule R, int block_n>
  requires(!R.dropout)
class Dropout<R, block_n> {
 public:
  struct Row {
    int head, query;
  };
  template <typename RowOf>
  __device__ __forceinline__ Dropout(const DropoutParams&, const RowOf&) {}
  __device__ __forceinline__ void apply(float (&)[block_n / 2], int) const {}
};

}  // namespace strobe::score
