// SPDX-License-Identifier: Apache-2.0
// Partial results over different keys become one: O = sum w_i O_i / sum w_i s_i with w_i = 2^(m_i - max m), where part
// i has the sum s_i of exponentials relative to 2^m_i, and O_i is not divided by it. Always in the same order.
//
// `merge` takes results of the caller's, each divided by its sum: s_i = 1 and m_i is its LSE. `combine` takes what the
// CTAs of a forward left whose keys were split among them.
#pragma once

#include "kernels/auxiliary/combine_params.h"
#include "kernels/auxiliary/join_segments.h"
#include "kernels/auxiliary/source.h"
#include "kernels/math/constants.h"
#include "kernels/score/lse.h"
#include "kernels/sequence/visible_keys.h"

namespace strobe::auxiliary {

constexpr int kWarpColumns = 4 * kWarp;  // four neighbours a lane

/// One row by `warps` warps: each part's weight, the sum of weights, and the part that weighs most. `most` bounds the
/// parts.
template <int warps, int most>
class RowWeights {
 public:
  struct Shared {
    float weight[most];
    float of_warp[2][warps];
  };

  /// `log2_factor` turns differences of exponents into powers of two. statistics(i) gives a part's PartStatistics.
  template <typename Statistics>
  __device__ __forceinline__ RowWeights(Shared& shared, int count, float log2_factor, const Statistics& statistics)
      : weights_(shared.weight) {
    constexpr int kThreads = warps * kWarp;
    constexpr int kOwn = (most + kThreads - 1) / kThreads;
    const int thread = threadIdx.x % kThreads;
    PartStatistics own[kOwn];
    float highest = kMinusInfinity;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      own[i] = {kMinusInfinity, 0.0F};
      if (thread + i * kThreads < count) {
        own[i] = statistics(thread + i * kThreads);
      }
      highest = fmaxf(highest, own[i].max_log2);
    }
    highest = over_row(shared.of_warp[0], highest, [](float a, float b) { return fmaxf(a, b); });
    const float reference = highest == kMinusInfinity ? 0.0F : highest;
    float part_of_sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (thread + i * kThreads < count) {
        const bool empty = own[i].sum == 0.0F;
        const float weight = empty ? 0.0F : ptx::ex2_approx((own[i].max_log2 - reference) * log2_factor);
        part_of_sum += empty ? 0.0F : weight * own[i].sum;
        shared.weight[thread + i * kThreads] = empty ? kAbsent : weight;
      }
    }
    sum = over_row(shared.of_warp[1], part_of_sum, [](float a, float b) { return a + b; });
    max = highest;
    sync();
  }

  /// Weight of a part; kAbsent: it saw no key, and its O is not to be looked at.
  __device__ __forceinline__ float operator[](int part) const { return weights_[part]; }

  __device__ __forceinline__ static void sync() {
    if constexpr (warps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  static constexpr float kAbsent = -1.0F;
  float max;  // the largest exponent, in the parts' own unit
  float sum;  // of exponentials relative to it

 private:
  template <typename Join>
  __device__ __forceinline__ static float over_row(float (&of_warp)[warps], float x, const Join& join) {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      x = join(x, __shfl_xor_sync(0xffffffffU, x, distance));
    }
    if constexpr (warps > 1) {
      if (threadIdx.x % kWarp == 0) {
        of_warp[threadIdx.x / kWarp] = x;
      }
      __syncthreads();
      x = of_warp[0];
#pragma unroll
      for (int i = 1; i < warps; ++i) {
        x = join(x, of_warp[i]);
      }
    }
    return x;
  }

  const float* weights_;
};

/// Four columns of the weighted sum of all parts, complete in the row's first warp. values(part) gives four of a part's
/// columns. Warp w takes parts w, w + warps, ...
template <int warps, int most, typename Values>
__device__ __forceinline__ float4 weighted_sum(const RowWeights<warps, most>& weights, int count, bool has_columns,
                                               float4 (&of_warp)[warps][kWarp], const Values& values) {
  constexpr int kAtOnce = 4;  // loads on their way
  const int warp = warps == 1 ? 0 : threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  if (has_columns) {
#pragma unroll kAtOnce
    for (int part = warp; part < count; part += warps) {
      const float weight = weights[part];
      if (weight != RowWeights<warps, most>::kAbsent) {
        const float4 x = values(part);
        sum.x = __fmaf_rn(weight, x.x, sum.x);
        sum.y = __fmaf_rn(weight, x.y, sum.y);
        sum.z = __fmaf_rn(weight, x.z, sum.z);
        sum.w = __fmaf_rn(weight, x.w, sum.w);
      }
    }
  }
  if constexpr (warps > 1) {
    of_warp[warp][lane] = sum;
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int i = 1; i < warps; ++i) {
        const float4 x = of_warp[i][lane];
        sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
      }
    }
    __syncthreads();
  }
  return sum;
}

__device__ __forceinline__ float4 times(const float4& x, float factor) {
  return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}

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

/// Which sequence has row `row` of packed queries; the number of sequences: it lies behind the last one. By whole
/// warps.
__device__ __forceinline__ int sequence_of_row(const SequenceParams& params, int row) {
  int before = 0;  // sequences that end before the row
  for (int first = 0; first < params.sequences; first += kWarp) {
    const int index = first + static_cast<int>(threadIdx.x % kWarp);
    const bool ends = index < params.sequences && params.cu_seqlens_q[index + 1] <= row;
    before += __popc(__ballot_sync(0xffffffffU, ends));
  }
  return before;
}

/// A row of O and the tile that it belongs to, whose keys were shared.
struct SharedRow {
  int head;      // query head
  int sequence;  // behind the last one: their number
  int tile, row_of_tile;
  int row;      // of its tiles' head, packed heads counted in
  bool exists;  // it belongs to a sequence, and its tile has a row in use
  sequence::SequenceRows q;

  /// Row `job` of O, heads innermost. By whole warps.
  template <CombineConfig C>
  __device__ __forceinline__ static SharedRow of(const CombineParams& params, int job) {
    SharedRow row;
    const int heads = params.heads * params.packed_heads;
    const int flat_row = job / heads;
    row.head = job - flat_row * heads;
    const bool packed = C.varlen && params.sequences.cu_seqlens_q != nullptr;
    row.sequence = packed ? sequence_of_row(params.sequences, flat_row) : flat_row / params.sequences.seqlen_q;
    const bool found = row.sequence < params.sequences.batch;
    row.q = found ? sequence::query_rows<ScoreRule{.varlen = C.varlen}>(params.sequences, row.sequence)
                  : sequence::SequenceRows{0, 0, 0};
    const int query = flat_row - (packed ? row.q.start : row.sequence * params.sequences.seqlen_q);
    const int head = row.head / params.packed_heads;
    row.row = query * params.packed_heads + row.head - head * params.packed_heads;
    const int m = row.row / params.block_m;
    row.row_of_tile = row.row - m * params.block_m;
    row.tile = (row.sequence * params.heads + head) * params.m_tiles + m;
    row.exists = query >= 0 && query < row.q.owned && m < params.m_tiles && row.row_of_tile < params.slot_rows &&
                 m * params.block_m < row.q.used * params.packed_heads;
    return row;
  }

  __device__ __forceinline__ bool is_used(const CombineParams& params) const {
    return row < q.used * params.packed_heads;
  }

  /// Where a part of the row lies among the slots' rows.
  template <CombineConfig C>
  __device__ __forceinline__ long long slot_row(const CombineParams& params, const TileParts& parts, int part) const {
    const int slot = C.segments ? parts.first + part : part == 0 ? 2 * parts.first + 1 : 2 * (parts.first + part);
    return static_cast<long long>(slot) * params.slot_rows + row_of_tile;
  }
};

/// Where a row of O and its LSE lie.
struct OutputRow {
  long long batch;
  int head, row;

  __device__ __forceinline__ OutputRow(const CombineParams& params, const SharedRow& from)
      : batch(params.sequences.cu_seqlens_q != nullptr ? 0 : from.sequence),
        head(from.head),
        row(from.q.start + from.row / params.packed_heads) {}

  __device__ __forceinline__ unsigned short* o(const CombineParams& params) const {
    return params.o.row(batch, row, head);
  }
  __device__ __forceinline__ float* lse(const CombineParams& params) const {
    return params.lse + batch * params.lse_batch_stride + head * params.lse_head_stride + row;
  }
};

/// Grid: jobs / rows_per_block, rounded up. Tiles that are whole are left as they are. What does not depend on the
/// forward is found while that still runs: it has waited for what came before it, so that lengths can be read.
template <CombineConfig C>
__global__ void __launch_bounds__(kCombineThreads) combine(const __grid_constant__ CombineParams params) {
  constexpr int kWarps = warps_per_row(C);
  constexpr int kMost = C.few_parts ? kFewParts : kMostParts;
  using Weights = RowWeights<kWarps, kMost>;
  __shared__ typename Weights::Shared shared[rows_per_block(C)];
  __shared__ float4 of_warp[kWarps][kWarp];
  const int own = threadIdx.x / (kWarps * kWarp);
  const int job = blockIdx.x * rows_per_block(C) + own;
  if (job >= params.jobs) {
    return;
  }
  const SharedRow row = SharedRow::of<C>(params, job);
  if (!row.exists && blockIdx.x != 0) {
    return;
  }
  ptx::griddepcontrol_wait();  // by one block at least: what comes after this kernel counts on the forward's end, too
  if (!row.exists) {
    return;
  }
  TileParts parts = params.tiles[row.tile];
  if (parts.count <= 1) {
    return;
  }
  if (!row.is_used(params)) {
    parts.count = 0;
  }
  const auto slot_row = [&](int part) { return row.slot_row<C>(params, parts, part); };
  const OutputRow to(params, row);
  if constexpr (C.segments) {
    join_segments<C>(params, parts.count, row.is_used(params), to.head, slot_row, to.o(params),
                     params.lse == nullptr ? nullptr : to.lse(params));
    return;
  }
  const Weights weights(shared[own], parts.count, 1.0F, [&](int part) { return params.statistics[slot_row(part)]; });
  const float factor = weights.sum == 0.0F ? 0.0F : C.normalized ? 1.0F / weights.sum : 1.0F;
  const bool stores = kWarps == 1 || threadIdx.x < kWarp;
#pragma unroll(C.head_dim_v <= 2 * kWarpColumns ? 2 : 1)  // four at once spill
  for (int first = 0; first < C.head_dim_v; first += kWarpColumns) {
    const int column = first + 4 * static_cast<int>(threadIdx.x % kWarp);
    const bool has_columns = column < params.head_dim_v;
    const float4 sum = weighted_sum(weights, parts.count, has_columns, of_warp, [&](int part) {
      return *reinterpret_cast<const float4*>(params.sums + slot_row(part) * C.head_dim_v + column);
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

}  // namespace strobe::auxiliary
