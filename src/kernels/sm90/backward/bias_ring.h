// SPDX-License-Identifier: Apache-2.0
// The bias through shared memory: a producer of its own brings a step's by TMA, and those who compute P read it from
// there, transposed as their scores are.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/sm90/backward/barriers.h"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/scores.h"
#include "kernels/sm90/backward/visible_blocks.h"
#include "kernels/sm90/ptx/cuda_ptx.h"
#include "kernels/sm90/tile/coordinates.h"
#include "kernels/sm90/tile/panel.h"

namespace strobe::sm90::backward {

/// How many panels of a block's bias begin with one of the `left` keys that there are from the block's first on. What
/// the others hold is of keys that do not exist, and may be anything; their boxes begin behind the map's last column,
/// where TMA was seen to read memory that is not mapped.
template <Config C>
__device__ __forceinline__ int existing_panels(int left) {
  constexpr int kKeys = kRowsPerWarpgroup / bias_panels(C);
  constexpr int kPanels = block_n(C) / kKeys;
  return kPanels == 1 ? 1 : max(1, min(kPanels, (left + kKeys - 1) / kKeys));
}

/// The producer's side, by one thread.
template <Config C>
__device__ __forceinline__ void feed_bias(const TensorMap& map, const Params& params, unsigned char* smem,
                                          Barriers<C>& barriers) {
  static_assert(C.rule.block_mask == 0 && !C.ordered);
  ptx::griddepcontrol_wait();
  const Work work = work_of<C>(params, blockIdx.x);
  const BiasBoxParams& boxes = params.bias_boxes;
  constexpr int kKeys = kRowsPerWarpgroup / bias_panels(C);
  const int panels = existing_panels<C>(params.sequences.seqlen_k - work.n * block_n(C));
  RingPosition<C.bias_stages> at{0, 1};
  for (int group = 0; group < work.template query_heads<C>(params); ++group) {
    const int head = work.template first_query_head<C>(params) + group;
    for (int m = work.m_begin; m < work.m_end; ++m) {
      uint64_t& full = barriers.bias_full[at.stage];
      wait<C>(barriers.bias_empty[at.stage], at.parity);
      expect(full, panels * boxes.rows * kPanelRowBytes);
      unsigned char* const stage = smem + smem_plan(C).bias + at.stage * bias_bytes(C);
#pragma unroll
      for (int panel = 0; panel < block_n(C) / kKeys; ++panel) {
        if (panel >= panels) {
          break;
        }
        const int32_t box[4] = {work.n * block_n(C) + panel * kKeys, boxes.rows == 1 ? 0 : m * C.block_m,
                                head * boxes.per_head, work.sequence * boxes.per_batch};
        cptx::cp_async_bulk_tensor(cptx::space_cluster, cptx::space_global, stage + panel * C.block_m * kPanelRowBytes,
                                   &map, box, &full);
      }
      at.advance();
    }
  }
}

/// Zeros in this warp's part of its warpgroup's panels, from the block's query `first` on. Queries that do not exist
/// have an LSE of infinity, and P = 0 only if their bias is a number.
template <Config C>
__device__ __forceinline__ void clear_bias(unsigned char* panels, int first) {
  constexpr int kPieces = kRowsPerWarp * (C.rule.bias_float32 ? 4 : 2) / kPieceBytes;  // of a query, for a warp's keys
  const int thread = thread_of_warpgroup();
  const int piece = thread / kWarpSize * kPieces + thread % kPieces;
  unsigned char* const panel = panels + piece / kPanelPieces * C.block_m * kPanelRowBytes;
#pragma unroll 1
  for (int query = first + thread % kWarpSize / kPieces; query < C.block_m; query += kWarpSize / kPieces) {
    *reinterpret_cast<uint4*>(panel + piece_offset(query, piece % kPanelPieces)) = make_uint4(0, 0, 0, 0);
  }
  cptx::fence_proxy_async(cptx::space_shared);  // before TMA writes there again
  __syncwarp();
}

/// A step's bias of 16 bits, where this thread's scores want it: four 8x8 matrices at a time, transposed.
template <Config C>
struct SharedBias {
  uint32_t rows;  // where this lane's row of the first four matrices is
  uint32_t pitch;
  uint32_t bits[4];

  __device__ __forceinline__ SharedBias(uint32_t stage, bool shared_rows) {
    const int lane = threadIdx.x % kWarpSize;
    const int row = lane / 16 * 8 + lane % 8;
    const int piece = thread_of_warpgroup() / kWarpSize * 2 + lane / 8 % 2;
    pitch = shared_rows ? 0 : kPanelRowBytes;
    rows = stage + row * pitch + ((piece ^ (shared_rows ? 0 : row % 8)) * kPieceBytes);
  }

  __device__ __forceinline__ float2 pair(int index) {
    if (index % 4 == 0) {
      ptx::ldmatrix_x4_trans(bits, rows + index * 4 * pitch);
    }
    return to_floats<C.rule.element>(bits[index % 4]);
  }
};

/// A step's bias of 32 bits, where this thread's scores want it: one number after another.
template <Config C>
  requires(C.rule.bias_float32)
struct SharedBias<C> {
  uint32_t at[2][2];  // of this thread's first number of row r and of the query after it
  uint32_t pitch;

  __device__ __forceinline__ SharedBias(uint32_t stage, bool shared_rows) {
    const int thread = thread_of_warpgroup();
    pitch = shared_rows ? 0 : kPanelRowBytes;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = thread / kWarpSize * kRowsPerWarp + thread % kWarpSize / 4 + 8 * r;
      const int panel = stage + key / 32 * C.block_m * kPanelRowBytes + key % 4 * 4;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int query = 2 * (thread % 4) + c;
        at[r][c] = panel + query * pitch + (((key % 32 / 4) ^ (shared_rows ? 0 : query)) * kPieceBytes);
      }
    }
  }

  __device__ __forceinline__ float2 pair(int index) const {
    const uint32_t to = index / 2 * 8 * pitch;
    return {ptx::ld_shared_float(at[index % 2][0] + to), ptx::ld_shared_float(at[index % 2][1] + to)};
  }
};

/// A consumer's side, by one warpgroup.
template <Config C>
class BiasRing {
 public:
  /// The step's bias, once it has arrived in shared memory. `warpgroup`: of those that share the tile's keys.
  __device__ __forceinline__ SharedBias<C> arrived(const ScoreBlock<C>& block, unsigned char* smem,
                                                   Barriers<C>& barriers, int warpgroup) const {
    wait<C>(barriers.bias_full[at_.stage], at_.parity);
    const int queries = block.work.q.used - block.query_first;
    const bool shared_rows = block.params.bias_boxes.rows == 1;
    unsigned char* const panels =
        smem + smem_plan(C).bias + at_.stage * bias_bytes(C) + warpgroup * warpgroup_bias_bytes(C);
    if (queries < C.block_m && !shared_rows) {
      clear_bias<C>(panels, queries);
    }
    return {static_cast<uint32_t>(__cvta_generic_to_shared(panels)), shared_rows};
  }

  /// It has been read.
  __device__ __forceinline__ void release(Barriers<C>& barriers) {
    arrive<C>(barriers.bias_empty[at_.stage]);
    at_.advance();
  }

 private:
  RingPosition<C.bias_stages> at_;
};

/// Where nothing comes by way of shared memory.
template <Config C>
  requires(C.bias_stages == 0)
class BiasRing<C> {};

}  // namespace strobe::sm90::backward
