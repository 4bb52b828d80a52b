// SPDX-License-Identifier: Apache-2.0
// What stored operands ask for besides their products: rows of Q as float16 numbers, and the scales of K and V.
//
// Scores are multiplied by K's scale before anything else. V's scale of a head multiplies O at the end. Those of keys
// join the probabilities before these are rounded to float16: relative to a power of two that no scale so far passes
// (the unit), so that nothing overflows. O is in terms of that unit and is rescaled where it grows, which is rare.
// Probabilities are 2^kLift times as large as their rows' maxima say, so that few of them are below float16's normal
// range.
#pragma once

#include "kernels/sm80/forward/row_rules.h"
#include "kernels/sm80/forward/smem.h"
#include "kernels/sm80/tile/stored_gemm.h"

namespace strobe::sm80::forward {

/// Probabilities reach 2^8 relative to their row's maximum (score/softmax.h), and float16 numbers 2^16.
template <Config C>
constexpr int kLift = C.stored_operands ? 7 : 0;

template <Config C>
__device__ __forceinline__ float* query_factors() {
  return reinterpret_cast<float*>(shared_memory() + smem_plan(C).factors);
}

/// The power of two with that biased exponent.
__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float(exponent << 23); }

/// Rows of Q, which have arrived: as float16 numbers, in the order of columns that stored_gemm.h wants. Rows of
/// bfloat16 numbers are divided by powers of two, so that their largest elements lie between 2^15 and 2^16. Elements of
/// at least 2^-32 of the largest stay exact; smaller ones are off by 2^-40 of it at most. By the whole CTA.
template <Config C>
__device__ __forceinline__ void make_query_operands() {
  using Tile = QTile<C>;
  constexpr int kFours = C.head_dim / 4;
  constexpr int kOwn = (kFours + kWarpSize - 1) / kWarpSize;
  const auto at = [](int row, int chunk, int byte) {
    return Tile::offset(row, chunk % Tile::kChunks) + chunk / Tile::kChunks * Tile::kPanelBytes + byte;
  };
#pragma unroll 1
  for (int row = warp_of_cta(); row < block_m(C); row += C.warps) {
    unsigned char* const tile = shared_memory() + row / C.rows_per_warp * smem_plan(C).warp_bytes;
    const int own_row = row % C.rows_per_warp;
    uint2 fours[kOwn];
    int largest = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int four = lane_of_warp() + i * kWarpSize;
      fours[i] = four < kFours ? *reinterpret_cast<const uint2*>(tile + at(own_row, four / 2, four % 2 * 8)) : uint2{};
      const unsigned both = __vmaxu2(fours[i].x & 0x7fff7fffU, fours[i].y & 0x7fff7fffU);
      largest = max(largest, static_cast<int>(max(both & 0xffffU, both >> 16)));
    }
    if constexpr (C.rule.element == Element::bf16) {
      constexpr int kLeast = 27;  // biased: scores of smaller rows are 0
      constexpr int kBias = 127;
      constexpr int kTop = 15;
      const int exponent = max(__reduce_max_sync(kFullWarp, largest) >> 7, kLeast);
      const float factor = power_of_two(2 * kBias + kTop - exponent);
      const auto scaled = [=](unsigned pair) {
        const float2 both = to_floats<Element::bf16>(pair);
        return ptx::cvt_f16x2(both.x * factor, both.y * factor);
      };
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        fours[i] = {scaled(fours[i].x), scaled(fours[i].y)};
      }
      if (lane_of_warp() == 0) {
        query_factors<C>()[row] = power_of_two(exponent - kTop);
      }
    }
    meet_lanes<C>();  // all have read the row
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int four = lane_of_warp() + i * kWarpSize;
      if (four < kFours) {
        const auto place = [&](bool later) {
          const int column = four / 4 * kStep + stored_column(four % 4, later);
          return reinterpret_cast<unsigned*>(
              tile + at(own_row, column / kChunkElements, column % kChunkElements * kElementBytes));
        };
        *place(false) = fours[i].x;
        *place(true) = fours[i].y;
      }
    }
  }
}

/// The scales of a head.
template <Config C>
class OperandScales {
 public:
  __device__ __forceinline__ OperandScales(const Params& params, const TileWork& work)
      : value_(ptx::ld_global_nc(params.v_scales.of(work.tile.sequence, head_kv_of(params, work)))) {
    const float key = ptx::ld_global_nc(params.k_scales.of(work.tile.sequence, head_kv_of(params, work)));
#pragma unroll
    for (int i = 0; i < fragments(C) * kRowsPerThread; ++i) {
      factor_[i / kRowsPerThread][i % kRowsPerThread] = key;
    }
  }

  /// Block n comes first.
  __device__ __forceinline__ void start(int, int) {}

  /// Rows of Q are operands; `first_row`: of this warp, in the tile.
  __device__ __forceinline__ void take_queries(int first_row) {
    if constexpr (C.rule.element == Element::bf16) {
#pragma unroll
      for (int i = 0; i < fragments(C) * kRowsPerThread; ++i) {
        const int f = i / kRowsPerThread;
        const int r = i % kRowsPerThread;
        factor_[f][r] *= query_factors<C>()[first_row + f * kFragmentRows + score::fragment_row(r)];
      }
    }
  }

  /// Before a block's products; `next`: the block after it.
  template <int registers>
  __device__ __forceinline__ void move_on(float (&)[fragments(C)][registers], int, int) {}

  /// Products become scores.
  __device__ __forceinline__ void scale(float (&s)[fragments(C)][C.block_n / 2]) const {
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
#pragma unroll
      for (int i = 0; i < C.block_n / 2; ++i) {
        s[f][i] *= factor_[f][i / 2 % kRowsPerThread];
      }
    }
  }

  /// Probabilities of sixteen keys, from s[8 i] on, meet V's scales: of step `step` of the block.
  __device__ __forceinline__ void weigh(float (&)[C.block_n / 2], int, int) const {}

  /// What O lacks.
  __device__ __forceinline__ float of_output() const { return value_; }

 private:
  float factor_[fragments(C)][kRowsPerThread];  // of Q's rows, and K's scale
  float value_;
};

/// The scales of keys. A lane has those of one key of the block in use, and of the next, which are on their way.
template <Config C>
  requires(C.row_scales)
class OperandScales<C> {
 public:
  __device__ __forceinline__ OperandScales(const Params& params, const TileWork& work)
      : keys_(params.k_scales.of(work.tile.sequence, head_kv_of(params, work))),
        values_(params.v_scales.of(work.tile.sequence, head_kv_of(params, work))),
        key_shift_(params.k_scales.shift),
        value_shift_(params.v_scales.shift) {}

  __device__ __forceinline__ void start(int n, int used) { fetch(n, used); }

  __device__ __forceinline__ void take_queries(int first_row) {
    if constexpr (C.rule.element == Element::bf16) {
#pragma unroll
      for (int i = 0; i < fragments(C) * kRowsPerThread; ++i) {
        const int f = i / kRowsPerThread;
        const int r = i % kRowsPerThread;
        factor_[f][r] = query_factors<C>()[first_row + f * kFragmentRows + score::fragment_row(r)];
      }
    }
  }

  template <int registers>
  __device__ __forceinline__ void move_on(float (&o)[fragments(C)][registers], int next, int used) {
    key_ = next_key_;
    const float value = next_value_;
    fetch(next, used);
    const int bits = __float_as_int(value) & 0x7fffffff;
    const int largest = __reduce_max_sync(kFullWarp, bits > kInfinity ? 0 : bits);  // a NaN has no size
    if (largest > unit_) {
      raise_unit(o, largest);
    }
    constexpr int kTwiceBias = 254 << 23;
    value_ = value * __int_as_float(kTwiceBias - unit_);
  }

  __device__ __forceinline__ void scale(float (&s)[fragments(C)][C.block_n / 2]) const {
#pragma unroll
    for (int j = 0; j < C.block_n / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float key = __shfl_sync(kFullWarp, key_, 8 * j + score::fragment_column() + c);
#pragma unroll
        for (int f = 0; f < fragments(C); ++f) {
#pragma unroll
          for (int r = 0; r < kRowsPerThread; ++r) {
            float& score = s[f][4 * j + 2 * r + c];
            score = (C.rule.element == Element::bf16 ? score * factor_[f][r] : score) * key;
          }
        }
      }
    }
  }

  __device__ __forceinline__ void weigh(float (&p)[C.block_n / 2], int i, int step) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float value = __shfl_sync(kFullWarp, value_, step * kStep + 8 * j + score::fragment_column() + c);
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          p[8 * i + 4 * j + 2 * r + c] *= value;
        }
      }
    }
  }

  __device__ __forceinline__ float of_output() const { return __int_as_float(unit_); }

 private:
  static constexpr int kInfinity = 255 << 23;
  static constexpr int kLeastUnit = 27 << 23;  // 2^-100 and 2^126, so that their inverses are numbers
  static constexpr int kLargestUnit = 253 << 23;

  __device__ __forceinline__ void fetch(int n, int used) {
    const int key = n * C.block_n + lane_of_warp();
    const bool exists = lane_of_warp() < C.block_n && key >= 0 && key < used;
    next_key_ = exists ? ptx::ld_global_nc(keys_ + (key >> key_shift_)) : 0.0F;
    next_value_ = exists ? ptx::ld_global_nc(values_ + (key >> value_shift_)) : 0.0F;
  }

  /// To the power of two that is `largest` or above it.
  template <int registers>
  __device__ __forceinline__ void raise_unit(float (&o)[fragments(C)][registers], int largest) {
    constexpr int kMantissa = (1 << 23) - 1;
    const int raised = min((largest + kMantissa) & ~kMantissa, kLargestUnit);
    const float shrunk = power_of_two(max(0, 127 - (raised - unit_ >> 23)));
    unit_ = raised;
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
#pragma unroll
      for (int i = 0; i < registers; ++i) {
        o[f][i] *= shrunk;
      }
    }
  }

  const float* keys_;
  const float* values_;
  int key_shift_, value_shift_;
  float factor_[fragments(C)][kRowsPerThread];
  float next_key_, next_value_;
  float key_, value_;      // relative to the unit
  int unit_ = kLeastUnit;  // a power of two's bits
};

/// Other operands have no scales.
template <Config C>
  requires(!C.stored_operands)
class OperandScales<C> {
 public:
  __device__ __forceinline__ OperandScales(const Params&, const TileWork&) {}
};

/// O and the rows' sums as if nothing had been lifted, and O with V's scales.
template <Config C>
__device__ __forceinline__ void finish_operands(float (&o)[fragments(C)][C.head_dim_v / 2],
                                                Softmax<C> (&softmax)[fragments(C)], const OperandScales<C>& scales) {
  constexpr float kUnlifted = 1.0F / (1 << kLift<C>);
  const float factor = scales.of_output() * kUnlifted;
#pragma unroll
  for (int f = 0; f < fragments(C); ++f) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      softmax[f].sum[r] *= kUnlifted;
    }
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 2; ++i) {
      o[f][i] *= factor;
    }
  }
}

}  // namespace strobe::sm80::forward
