// SPDX-License-Identifier: Apache-2.0
// Partial results over different keys become one: O = sum w_i O_i / sum w_i s_i with w_i = 2^(m_i - max m), where part
// i has the sum s_i of exponentials relative to 2^m_i, and O_i is not divided by it. Always in the same order.
//
// `merge` takes results of the caller's, each divided by its sum: s_i = 1 and m_i is its LSE. `combine` takes what the
// CTAs of a forward left whose keys were split among them.
#pragma once

#include "kernels/auxiliary/combine_params.h"
#include "kernels/auxiliary/join_segments.h"
#include "kernels/auxiliary/row_weights.h"
#include "kernels/auxiliary/source.h"
#include "kernels/math/constants.h"
#include "kernels/score/lse.h"
#include "kernels/sequence/visible_keys.h"

namespace strobe::auxiliary {

// -- strobe::merge ----------------------------------------------------------------------------------------------------

template <Element source, bool aligned>
__device__ __forceinline__ float4 load_four(const void* row, int column, int columns) {
  if constexpr (aligned && source == Element::fp32) {
    return *reinterpret_cast<const float4*>(static_cast<const float*>(row) + column);
  } else if constexpr (aligned) {
    const uint2 bits = *reinterpret_cast<const uint2*>(static_cast<const unsigned short*>(row) + column);
    const float2 low = to_floats<source>(bits.x);
    const float2 high = to_floats<source>(bits.y);
    return make_float4(low.x, low.y, high.x, high.y);
  } else {
    float x[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i < columns) {
        if constexpr (source == Element::fp32) {
          x[i] = static_cast<const float*>(row)[column + i];
        } else {
          x[i] = to_float<source>(static_cast<const unsigned short*>(row)[column + i]);
        }
      }
    }
    return make_float4(x[0], x[1], x[2], x[3]);
  }
}

template <Element destination, bool aligned>
__device__ __forceinline__ void store_four(void* row, int column, int columns, const float4& x) {
  if constexpr (aligned && destination == Element::fp32) {
    *reinterpret_cast<float4*>(static_cast<float*>(row) + column) = x;
  } else if constexpr (aligned) {
    *reinterpret_cast<uint2*>(static_cast<unsigned short*>(row) + column) =
        make_uint2(pack<destination>(x.x, x.y), pack<destination>(x.z, x.w));
  } else {
    const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i < columns) {
        if constexpr (destination == Element::fp32) {
          static_cast<float*>(row)[column + i] = values[i];
        } else {
          static_cast<unsigned short*>(row)[column + i] =
              static_cast<unsigned short>(pack<destination>(values[i], 0.0F));
        }
      }
    }
  }
}

/// A row of a part or of the result.
template <Element source>
__device__ __forceinline__ unsigned char* row_of(const MergedTensor& tensor, long long batch, long long row,
                                                 long long head) {
  const long long element = batch * tensor.o_batch + row * tensor.o_row + head * tensor.o_head;
  return static_cast<unsigned char*>(tensor.o) + element * bytes_of(source);
}

/// Grid: jobs / rows_per_block, rounded up.
template <MergeConfig C>
__global__ void __launch_bounds__(kCombineThreads) merge(const __grid_constant__ MergeParams<C.most_parts> params) {
  constexpr int kWarps = warps_per_row(C);
  using Weights = RowWeights<kWarps, C.most_parts>;
  __shared__ typename Weights::Shared shared[rows_per_block(C)];
  __shared__ float4 of_warp[kWarps][kWarp];
  const int own = threadIdx.x / (kWarps * kWarp);
  const long long job = static_cast<long long>(blockIdx.x) * rows_per_block(C) + own;
  if (job >= params.jobs) {
    return;
  }
  const int head = static_cast<int>(job % params.heads);
  const long long flat_row = job / params.heads;
  const int row = static_cast<int>(flat_row % params.rows);
  const long long batch = flat_row / params.rows;
  bool defined = true;  // of the parts that this thread weighs
  const Weights weights(shared[own], params.count, kLog2E, [&](int part) {
    const MergedTensor& tensor = params.parts[part];
    const float lse = tensor.lse[batch * tensor.lse_batch + row * tensor.lse_row + head * tensor.lse_head];
    defined = defined && lse < -kMinusInfinity;
    return PartStatistics{lse, lse == kMinusInfinity ? 0.0F : 1.0F};
  });
  if constexpr (kWarps == 1) {
    defined = __all_sync(0xffffffffU, defined);
  } else {
    defined = __syncthreads_and(defined) != 0;
  }
  const float nan = __uint_as_float(0x7fc00000U);
  const float factor = !defined ? nan : weights.sum == 0.0F ? 0.0F : 1.0F / weights.sum;
  const bool stores = kWarps == 1 || threadIdx.x < kWarp;
  for (int first = 0; first < params.columns; first += kWarpColumns) {
    const int column = first + 4 * static_cast<int>(threadIdx.x % kWarp);
    const bool has_columns = column < params.columns;
    const float4 sum = weighted_sum(weights, params.count, has_columns, of_warp, [&](int part) {
      return load_four<C.source, C.aligned>(row_of<C.source>(params.parts[part], batch, row, head), column,
                                            params.columns);
    });
    if (stores && has_columns) {
      store_four<C.destination, C.aligned>(row_of<C.destination>(params.result, batch, row, head), column,
                                           params.columns, times(sum, factor));
    }
  }
  if (params.result.lse != nullptr && stores && threadIdx.x % kWarp == 0) {
    const MergedTensor& to = params.result;
    to.lse[batch * to.lse_batch + row * to.lse_row + head * to.lse_head] =
        !defined              ? nan
        : weights.sum == 0.0F ? kMinusInfinity
                              : weights.max + ptx::lg2_approx(weights.sum) * kLn2;
  }
}

// -- Split keys -------------------------------------------------------------------------------------------------------

/// A tile whose keys may have been shared, as numbers.
struct SharedTile {
  TileParts parts;
  int first_row;       // of its head, packed heads counted in
  int head, sequence;  // `head`: packed
  sequence::SequenceRows q;

  template <CombineConfig C>
  __device__ __forceinline__ static SharedTile of(const CombineParams& params, int tile) {
    const int head = tile / params.m_tiles % params.heads;
    const int sequence = tile / params.m_tiles / params.heads;
    return {params.tiles[tile], tile % params.m_tiles * params.block_m, head, sequence,
            sequence::query_rows<ScoreRule{.varlen = C.varlen}>(params.sequences, sequence)};
  }

  /// Otherwise the parts mean nothing.
  __device__ __forceinline__ bool has_rows(const CombineParams& params) const {
    return first_row < q.used * params.packed_heads;
  }
  /// Its rows that belong to the sequence.
  __device__ __forceinline__ int rows(const CombineParams& params) const {
    return min(params.slot_rows, q.owned * params.packed_heads - first_row);
  }
};

/// Where a row of O and its LSE lie.
struct OutputRow {
  long long batch;
  int head, row;

  __device__ __forceinline__ OutputRow(const CombineParams& params, const SharedTile& tile, int row_of_tile)
      : batch(params.sequences.cu_seqlens_q != nullptr ? 0 : tile.sequence),
        head(tile.head * params.packed_heads + (tile.first_row + row_of_tile) % params.packed_heads),
        row(tile.q.start + (tile.first_row + row_of_tile) / params.packed_heads) {}

  __device__ __forceinline__ unsigned short* o(const CombineParams& params) const {
    return params.o.row(batch, row, head);
  }
  __device__ __forceinline__ float* lse(const CombineParams& params) const {
    return params.lse + batch * params.lse_batch_stride + head * params.lse_head_stride + row;
  }
};

/// A row of a tile: its parts.
template <CombineConfig C>
struct SharedRow {
  int first, count;  // no part where the row is not in use
  int slot_rows, row_of_tile;

  __device__ __forceinline__ SharedRow(const CombineParams& params, const SharedTile& tile, int row)
      : first(tile.parts.first),
        count(tile.first_row + row < tile.q.used * params.packed_heads ? tile.parts.count : 0),
        slot_rows(params.slot_rows),
        row_of_tile(row) {}

  /// Where a part of the row lies among the slots' rows.
  __device__ __forceinline__ long long slot_row(int part) const {
    const int slot = C.segments ? first + part : part == 0 ? 2 * first + 1 : 2 * (first + part);
    return static_cast<long long>(slot) * slot_rows + row_of_tile;
  }
};

/// One row's parts become one, by `warps` warps.
template <CombineConfig C, int warps, int most>
__device__ __forceinline__ void combine_parts(const CombineParams& params, const SharedRow<C>& row, const OutputRow& to,
                                              typename RowWeights<warps, most>::Shared& shared,
                                              float4 (&of_warp)[warps][kWarp]) {
  const RowWeights<warps, most> weights(shared, row.count, 1.0F,
                                        [&](int part) { return params.statistics[row.slot_row(part)]; });
  const float factor = weights.sum == 0.0F ? 0.0F : C.normalized ? ptx::rcp_approx(weights.sum) : 1.0F;
  const bool stores = warps == 1 || threadIdx.x < kWarp;
#pragma unroll 1
  for (int first = 0; first < C.head_dim_v; first += kWarpColumns) {
    const int column = first + 4 * static_cast<int>(threadIdx.x % kWarp);
    const bool has_columns = column < params.head_dim_v;
    const float4 sum = weighted_sum(weights, row.count, has_columns, of_warp, [&](int part) {
      return *reinterpret_cast<const float4*>(params.sums + row.slot_row(part) * C.head_dim_v + column);
    });
    if (stores && has_columns) {
      const float4 x = times(sum, factor);
      if constexpr (C.element == Element::fp32) {
        reinterpret_cast<float4*>(to.o(params))[column / 4] = x;
      } else {
        *reinterpret_cast<uint2*>(to.o(params) + column) =
            make_uint2(pack<C.element>(x.x, x.y), pack<C.element>(x.z, x.w));
      }
    }
  }
  if (params.lse != nullptr && stores && threadIdx.x % kWarp == 0) {
    *to.lse(params) = score::lse_of(weights.max, weights.sum);
  }
}

/// Rows of few parts are a warp's each.
template <CombineConfig C>
__device__ __forceinline__ void combine_few(const CombineParams& params, const SharedTile& tile) {
  constexpr int kWarps = kCombineThreads / kWarp;
  __shared__ typename RowWeights<1, kFewParts>::Shared shared[kWarps];
  __shared__ float4 of_warp[1][kWarp];  // of several warps alone
  const int warp = threadIdx.x / kWarp;
  for (int row = blockIdx.y + warp * gridDim.y; row < tile.rows(params); row += kWarps * gridDim.y) {
    combine_parts<C, 1, kFewParts>(params, {params, tile, row}, {params, tile, row}, shared[warp], of_warp);
    __syncwarp();
  }
}

/// Rows of many parts are all warps'.
template <CombineConfig C>
__device__ __forceinline__ void combine_many(const CombineParams& params, const SharedTile& tile) {
  constexpr int kWarps = kCombineThreads / kWarp;
  __shared__ typename RowWeights<kWarps, kMostParts>::Shared shared;
  __shared__ float4 of_warp[kWarps][kWarp];
  for (int row = blockIdx.y; row < tile.rows(params); row += gridDim.y) {
    combine_parts<C, kWarps, kMostParts>(params, {params, tile, row}, {params, tile, row}, shared, of_warp);
  }
}

/// A row of segments is a block's.
template <CombineConfig C>
__device__ __forceinline__ void combine_segments(const CombineParams& params, const SharedTile& tile) {
  if (blockIdx.y >= tile.rows(params)) {
    return;
  }
  const SharedRow<C> row(params, tile, blockIdx.y);
  const OutputRow to(params, tile, blockIdx.y);
  join_segments<C>(
      params, row.count, row.count > 0, to.head, [&](int part) { return row.slot_row(part); }, to.o(params),
      params.lse == nullptr ? nullptr : to.lse(params));
}

/// Grid: tiles; combine_blocks_per_tile(), which share its rows. Tiles that are whole are left as they are.
template <CombineConfig C>
__global__ void __launch_bounds__(kCombineThreads) combine(const __grid_constant__ CombineParams params) {
  ptx::griddepcontrol_wait();
  const SharedTile tile = SharedTile::of<C>(params, blockIdx.x);
  if (!tile.has_rows(params) || tile.parts.count <= 1) {
    return;
  }
  if constexpr (C.segments) {
    combine_segments<C>(params, tile);
  } else if (tile.parts.count <= kFewParts) {
    combine_few<C>(params, tile);
  } else {
    combine_many<C>(params, tile);
  }
}

}  // namespace strobe::auxiliary
