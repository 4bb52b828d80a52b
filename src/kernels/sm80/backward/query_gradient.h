// SPDX-License-Identifier: Apache-2.0
// dQ of a step: a product of the whole CTA's dS with K, added to float32 sums in global memory that all blocks of keys
// share. A kernel afterwards scales and converts them (finish.h).
//
// A block lies there warp by warp, and each warp's part in the order of its accumulators' registers, so that every
// instruction of a warp adds to neighbouring addresses.
#pragma once

#include "kernels/score/modifiers/block_mask.h"
#include "kernels/sm80/backward/smem.h"
#include "kernels/sm80/backward/steps.h"
#include "kernels/sm80/ptx/reduce.h"
#include "kernels/sm80/tile/split_gemm.h"

namespace strobe::sm80::backward {

/// A warp's part of a slice of a block of dQ.
template <Config C>
struct QueryPart {
  static constexpr int kRows = query_tile(C).rows;
  static constexpr int kColumns = query_tile(C).columns;
  static constexpr int kFragments = kRows / kFragmentRows;
  static constexpr int kSliceColumns = C.head_dim / C.query_slices;
  static constexpr int kColumnWarps = kSliceColumns / kColumns;
  using Sums = float[kFragments][kColumns / 2];

  int slice = 0;
  int warp = warp_of_cta();

  __device__ __forceinline__ int row() const { return warp / kColumnWarps * kRows; }
  __device__ __forceinline__ int column() const { return slice * kSliceColumns + warp % kColumnWarps * kColumns; }

  /// Where this part's sums of a block of the workspace begin.
  __device__ __forceinline__ float* sums(const Params& params, long long block) const {
    return params.dq_sum + block * (C.block_m * C.head_dim) + slice * (C.block_m * kSliceColumns) +
           warp * (kRows * kColumns);
  }
};

/// A part of dQ = dS K of float32; `ds` and `k`: the tiles.
template <Config C>
__device__ __forceinline__ void multiply_split_keys(typename QueryPart<C>::Sums& dq, const QueryPart<C>& part,
                                                    uint32_t ds, uint32_t k) {
  using Part = QueryPart<C>;
  constexpr int kPanelColumns = KTile<C>::kPanelColumns / 2;
  const uint32_t rows = a_operand<ScoreTile<C>>(ds, part.row());
  const uint32_t columns = split_v_operand<KTile<C>>(k) + part.column() / kPanelColumns * KTile<C>::kPanelBytes;
#pragma unroll 1  // else ptxas mixes steps, and runs out of registers
  for (int step = 0; step < block_n(C) / kStep; ++step) {
    SplitOperand a[Part::kFragments];
#pragma unroll
    for (int i = 0; i < kSplitSteps; ++i) {
#pragma unroll
      for (int f = 0; f < Part::kFragments; ++f) {
        uint32_t words[4];
        ptx::ldmatrix_x4(words, ScoreTile<C>::pair_after(rows, kSplitSteps * step + i) +
                                    f * kFragmentRows * ScoreTile<C>::kRowBytes);
        a[f][i].round(words);
      }
    }
    split_product_step<KTile<C>::kRowBytes, KTile<C>::kPanelBytes>(dq, a, columns + step * kStep * KTile<C>::kRowBytes);
  }
}

/// A part of dQ = dS K; `ds` and `k`: the tiles.
template <Config C>
__device__ __forceinline__ void multiply_keys(typename QueryPart<C>::Sums& dq, const QueryPart<C>& part, uint32_t ds,
                                              uint32_t k) {
  if constexpr (C.rule.element == Element::fp32) {
    multiply_split_keys<C>(dq, part, ds, k);
  } else {
    using Part = QueryPart<C>;
    const TileColumns<ScoreTile<C>, Part::kFragments> rows(transposed_a_operand<ScoreTile<C>>(ds), part.row() / kStep);
    const TileColumns<KTile<C>, Part::kColumns / kStep> columns(v_operand<KTile<C>>(k), part.column() / kStep);
#pragma unroll
    for (int step = 0; step < block_n(C) / kStep; ++step) {
      uint32_t a[Part::kFragments][4];
#pragma unroll
      for (int f = 0; f < Part::kFragments; ++f) {
        ptx::ldmatrix_x4_trans(a[f], rows(f) + step * kStep * ScoreTile<C>::kRowBytes);
      }
      product_step<C.rule.element, KTile<C>::kRowBytes>(dq, a, columns, step);
    }
  }
}

/// Adds this thread's registers to a part's sums.
template <int fragments, int registers>
__device__ __forceinline__ void add_to_sums(float* sums, const float (&dq)[fragments][registers]) {
#pragma unroll
  for (int i = 0; i < fragments * registers; i += 4) {
    const float* four = &dq[i / registers][i % registers];
#if __CUDA_ARCH__ >= 900
    ptx::red_add(sums + i * kWarpSize + lane_of_warp() * 4, four[0], four[1], four[2], four[3]);
#else
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      ptx::red_add(sums + (i + j) * kWarpSize + lane_of_warp(), four[j]);
    }
#endif
  }
}

/// Loads a part's sums, by way of L2: other multiprocessors wrote them.
template <int fragments, int registers>
__device__ __forceinline__ void load_sums(const float* sums, float (&dq)[fragments][registers]) {
#pragma unroll
  for (int i = 0; i < fragments * registers; i += 4) {
    float* four = &dq[i / registers][i % registers];
#if __CUDA_ARCH__ >= 900
    const float4 x = __ldcg(reinterpret_cast<const float4*>(sums + i * kWarpSize) + lane_of_warp());
    four[0] = x.x;
    four[1] = x.y;
    four[2] = x.z;
    four[3] = x.w;
#else
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      four[j] = __ldcg(sums + (i + j) * kWarpSize + lane_of_warp());
    }
#endif
  }
}

/// Keeps the order in which blocks of keys add to a block of dQ. An item waits for items of smaller numbers
/// alone, which have started before it.
template <Config C>
struct QueryGradientSemaphore {
  unsigned* state;
  unsigned before;  // what the item before leaves there; 0 if there is none

  /// `block`: in the workspaces; `head`: of q.
  __device__ __forceinline__ QueryGradientSemaphore(const Params& params, const Work& work, int head, int m,
                                                    long long block)
      : state(params.dq_semaphores + block), before(0) {
    Work other = work;
    for (other.n = work.n - 1; other.n >= 0; --other.n) {
      score::find_query_blocks<C.rule, C.block_m, block_n(C)>(params, other);
      if (m < other.m_begin || m >= other.m_end) {
        break;  // nor does any block of keys before it
      }
      if (score::sees_block<C.rule>(params.blocks, work.sequence, head, m * C.block_m, other.n * block_n(C))) {
        before = other.n + 1;
        break;
      }
    }
  }

  __device__ __forceinline__ void wait() const {
    while (ptx::ld_acquire(state) != before) {
    }
  }
};

/// Adds slice `part.slice` of a step's dQ; in ordered variants in turn, by the whole CTA.
template <Config C>
__device__ __forceinline__ void add_query_gradient(const Params& params, const Work& work, int head, int m,
                                                   const QueryPart<C>& part, const typename QueryPart<C>::Sums& dq) {
  const long long block = score::first_block_of<C.rule>(params, work.sequence, head, C.block_m) + m;
  float* const sums = part.sums(params, block);
  if constexpr (C.ordered) {
    if (part.slice == 0) {
      if (threadIdx.x == 0) {
        QueryGradientSemaphore<C>(params, work, head, m, block).wait();
      }
      __syncthreads();
    }
    add_to_sums(sums, dq);
    if (part.slice == C.query_slices - 1) {
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) {
        ptx::st_release(params.dq_semaphores + block, work.n + 1);
      }
    }
  } else {
    add_to_sums(sums, dq);
  }
}

}  // namespace strobe::sm80::backward
