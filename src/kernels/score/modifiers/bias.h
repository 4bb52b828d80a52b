// SPDX-License-Identifier: Apache-2.0
// A bias: a tensor that is added to the scaled scores.
//
// Forward: of a single score bias_at(); of a tile BiasRows fetches it to registers ahead of its use, in the scores'
// layout, unless TMA brings it through shared memory (sm90/forward/consume/bias.h). Derivative: 1; its own gradient is
// dS, summed over those who share it (score/bias_gradient.h). The parameters are plain C++ without std headers, shared
// by host and device.
#pragma once

#include "kernels/score/rule.h"

#ifdef __CUDACC_RTC__
#include "kernels/math/element.h"
#include "kernels/score/fragment.h"
#endif

namespace strobe {

/// Bias rules: [batch or 1, query heads or 1, seqlen_q, seqlen_k].
struct BiasParams {
  const void* data;
  long long batch_stride, head_stride, row_stride;  // elements
  int in_pairs;                                     // 1: two neighbours from an even key on are one aligned access

  /// The index of a row's first element.
  constexpr long long row(int batch, int head, int query) const {
    return batch * batch_stride + head * head_stride + query * row_stride;
  }
};

/// Its gradient: [batch or 1, query heads or 1, seqlen_q, seqlen_k].
struct BiasGradientParams {
  float* data;
  long long batch_stride, head_stride, row_stride;  // elements
  int per_batch, per_head;                          // 0: all share it
  int heads;                                        // query heads or 1
  int tiles;                                        // of all planes
};

/// Registers of a thread that a forward keeps for it, beside those of what is fetched.
inline constexpr int kBiasRegisters = 8;

#ifdef __CUDACC_RTC__

namespace score {

/// One number of the bias, `index` elements from its first.
template <Element element>
__device__ __forceinline__ float bias_at(bool is_float32, const BiasParams& params, long long index) {
  if constexpr (element == Element::fp32) {
    return __ldg(static_cast<const float*>(params.data) + index);
  } else {
    return is_float32 ? __ldg(static_cast<const float*>(params.data) + index)
                      : to_float<element>(__ldg(static_cast<const unsigned short*>(params.data) + index));
  }
}

template <ScoreRule R>
__device__ __forceinline__ float bias_at(const BiasParams& params, long long index) {
  return bias_at<R.element>(R.bias_float32, params, index);
}

/// What a thread adds to its scores of one tile, block_n keys wide. Numbers of 16 bits stay in pairs.
template <ScoreRule R, int block_n, bool fetches = R.bias>
struct BiasTile {
  static constexpr int kPairRegisters = R.bias_float32 ? 2 : 1;
  unsigned bits[block_n / 4][kPairRegisters];

  /// The bias of the pair 2 j + r: columns 8 j and 8 j + 1 of row r.
  __device__ __forceinline__ float2 pair(int index) const {
    if constexpr (R.bias_float32) {
      return {__uint_as_float(bits[index][0]), __uint_as_float(bits[index][1])};
    } else {
      return to_floats<R.element>(bits[index][0]);
    }
  }
};

/// The bias of rules that have none, or whose bias comes another way.
template <ScoreRule R, int block_n>
struct BiasTile<R, block_n, false> {
  __device__ __forceinline__ float2 pair(int) const { return {0.0F, 0.0F}; }
};

/// This thread's two rows of the bias.
template <ScoreRule R, bool fetches = R.bias>
class BiasRows {
 public:
  /// `row(r)`: its first element's index; `keys`: how many the rows hold.
  template <typename RowOf>
  __device__ __forceinline__ BiasRows(const BiasParams& params, int keys, const RowOf& row)
      : in_pairs_(params.in_pairs != 0), keys_(keys) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      rows_[r] = static_cast<const char*>(params.data) + (row(r) + fragment_column()) * kBytes;
    }
  }

  /// The part of block n; keys that do not exist get 0.
  template <int block_n>
  __device__ __forceinline__ BiasTile<R, block_n, true> fetch(int n) const {
    BiasTile<R, block_n, true> tile;
    const int first = n * block_n;
    const char* const at[kRowsPerThread] = {rows_[0] + first * kBytes, rows_[1] + first * kBytes};
    if (in_pairs_ && first + block_n <= keys_) {
      for_each_pair<block_n>(
          [&](int index, int r, int column) { fetch_pair(tile.bits[index], at[r] + column * kBytes); });
    } else {
      const int left = keys_ - first - fragment_column();
      for_each_pair<block_n>([&](int index, int r, int column) {
        fetch_singles(tile.bits[index], at[r] + column * kBytes, left - column);
      });
    }
    return tile;
  }

 private:
  static constexpr long long kBytes = R.bias_float32 ? 4 : 2;

  template <int block_n, typename Visit>
  __device__ __forceinline__ static void for_each_pair(const Visit& visit) {
#pragma unroll
    for (int index = 0; index < block_n / 4; ++index) {
      visit(index, index % kRowsPerThread, index / kRowsPerThread * 8);
    }
  }

  template <typename T>
  __device__ __forceinline__ static T load(const char* at) {
    return __ldg(reinterpret_cast<const T*>(at));
  }

  __device__ __forceinline__ static void fetch_pair(unsigned (&bits)[2], const char* at) {
    const uint2 both = load<uint2>(at);
    bits[0] = both.x;
    bits[1] = both.y;
  }
  __device__ __forceinline__ static void fetch_pair(unsigned (&bits)[1], const char* at) {
    bits[0] = load<unsigned>(at);
  }

  /// One by one, of which `count` exist.
  __device__ __forceinline__ static void fetch_singles(unsigned (&bits)[2], const char* at, int count) {
    bits[0] = count > 0 ? load<unsigned>(at) : 0U;
    bits[1] = count > 1 ? load<unsigned>(at + kBytes) : 0U;
  }
  __device__ __forceinline__ static void fetch_singles(unsigned (&bits)[1], const char* at, int count) {
    const unsigned low = count > 0 ? load<unsigned short>(at) : 0U;
    const unsigned high = count > 1 ? load<unsigned short>(at + kBytes) : 0U;
    bits[0] = low | high << 16;
  }

  bool in_pairs_;
  int keys_;
  const char* rows_[kRowsPerThread];  // this thread's first elements
};

/// The bias of rules that have none, or whose bias comes another way.
template <ScoreRule R>
class BiasRows<R, false> {
 public:
  template <typename RowOf>
  __device__ __forceinline__ BiasRows(const BiasParams&, int, const RowOf&) {}
  template <int block_n>
  __device__ __forceinline__ BiasTile<R, block_n, false> fetch(int) const {
    return {};
  }
};

}  // namespace score

#endif

}  // namespace strobe
