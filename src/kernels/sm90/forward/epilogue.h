// SPDX-License-Identifier: Apache-2.0
// O and LSE, from a warpgroup's registers to global memory.
#pragma once

#include "kernels/score/online_softmax.h"
#include "kernels/score/transform.h"
#include "kernels/sm90/forward/coordinates.h"
#include "kernels/sm90/forward/part.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/forward/tile_work.h"
#include "kernels/sm90/ptx/cuda_ptx.h"
#include "kernels/sm90/ptx/warpgroup.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::forward {

template <Config C>
using Softmax = score::OnlineSoftmax<C.rule, C.block_n>;

constexpr int kStoreColumns = 8;  // 16 bytes

/// The query head of a tile's row.
template <Config C>
__device__ __forceinline__ int head_of(const TileWork& work, int row) {
  return work.tile.head * C.packed_heads + row % C.packed_heads;
}

/// Counted through the batch.
template <Config C>
__device__ __forceinline__ int head_in_batch(const Params& params, const TileWork& work, int row) {
  return work.tile.sequence * params.tiles.heads * C.packed_heads + head_of<C>(work, row);
}

/// What O holds.
template <Config C>
struct OutputElementOf {
  using Type = unsigned short;
};
template <Config C>
  requires(C.float_output)
struct OutputElementOf<C> {
  using Type = float;
};
template <Config C>
using OutputElement = typename OutputElementOf<C>::Type;

template <Config C>
__device__ __forceinline__ OutputElement<C>* output_row(const Params& params, const TileWork& work, int row) {
  const int batch = params.sequences.cu_seqlens_q != nullptr ? 0 : work.tile.sequence;
  const int in_sequence = work.q.start + row / C.packed_heads;
  if constexpr (C.float_output) {
    return reinterpret_cast<float*>(params.o.data) + params.o.offset(batch, in_sequence, head_of<C>(work, row));
  } else {
    return params.o.row(batch, in_sequence, head_of<C>(work, row));
  }
}

template <Config C>
__device__ __forceinline__ void store_lse(const Params& params, const TileWork& work, int row, float value) {
  if (params.lse != nullptr) {
    const int batch = params.sequences.cu_seqlens_q != nullptr ? 0 : work.tile.sequence;
    params.lse[batch * params.lse_batch_stride + head_of<C>(work, row) * params.lse_head_stride + work.q.start +
               row / C.packed_heads] = value;
  }
}

/// A row's largest score joins its head's. Floats order as integers do, negative ones the other way round.
template <Config C>
__device__ __forceinline__ void store_max_logit(const Params& params, const TileWork& work, int row, float score) {
  if (score != kMinusInfinity) {
    const float logit = score * score::remaining_scale<C.rule>(params.score) * kLn2;
    float* largest = params.max_logits + work.tile.sequence * params.max_logits_batch_stride + head_of<C>(work, row);
    if (__float_as_int(logit) >= 0) {
      atomicMax(reinterpret_cast<int*>(largest), __float_as_int(logit));
    } else {
      atomicMin(reinterpret_cast<unsigned*>(largest), __float_as_uint(logit));
    }
  }
}

/// A warp's way out: 16 rows by 64 columns of O at a time are staged in shared memory, in TMA's swizzle, and stored by
/// TMA while the warp goes on.
template <Config C>
class OutputPipe {
 public:
  __device__ __forceinline__ OutputPipe(const TensorMap& map, unsigned char* smem, int warpgroup) : map_(map) {
    const int warp = warpgroup * kWarpsPerWarpgroup + warp_of_warpgroup();
    stage_ = smem + smem_plan(C).o +
             warp * (C.keeps_in_smem ? kept_bytes(C) / kWarpsPerWarpgroup : kStages * kOutputPanelBytes);
    if constexpr (kSplits<C>) {
      split_ = &reinterpret_cast<const SplitWork*>(smem + smem_plan(C).order)->params;
    }
  }

  /// Split schedules: where parts go.
  __device__ __forceinline__ const SplitParams& split() const { return *split_; }

  /// What was stored before has left shared memory.
  __device__ __forceinline__ static void wait_for_reads() {
    if (threadIdx.x % kWarpSize == 0) {
      cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
    }
    __syncwarp();
  }

  /// 16 rows of `work` from `first_row` on: o[4 j + 2 r + c] * factor[r] (see fragment.h), or 0 where not `sees`. False
  /// if this thread of a masked variant had a value that is not finite.
  __device__ __forceinline__ bool store(const Params& params, const TileWork& work, int first_row,
                                        const float (&o)[C.head_dim_v / 2], const float (&factor)[kRowsPerThread],
                                        const bool (&sees)[kRowsPerThread]) {
    cuda::std::uint32_t zero = 0;  // two elements: each becomes NaN if a value is not finite
#pragma unroll
    for (int panel = 0; panel < panels(C.head_dim_v); ++panel) {
      wait_for_stage(panel);
#pragma unroll
      for (int column = panel * kPanelColumns; column < min((panel + 1) * kPanelColumns, C.head_dim_v); column += 16) {
        cuda::std::uint32_t packed[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = i % 2;
          const float* pair = &o[column / 2 + 4 * (i / 2) + 2 * r];
          packed[i] = pack<C.rule.element>(pair[0] * factor[r], pair[1] * factor[r]);
          if constexpr (may_hide_all(C.rule) || C.rule.varlen) {
            packed[i] = sees[r] ? packed[i] : 0U;
          }
          if constexpr (is_masked(C.rule)) {
            zero = plus_zero_times<C.rule.element>(zero, packed[i]);
          }
        }
        ptx::stmatrix_x4(address(panel, column % kPanelColumns), packed);
      }
      issue(params, work, first_row, panel);
    }
    return (zero & 0x7fff7fffU) == 0;
  }

  /// What was stored is in global memory, for this warp to see.
  __device__ __forceinline__ void finish() const {
    if (threadIdx.x % kWarpSize == 0) {
      cptx::cp_async_bulk_wait_group(cptx::n32_t<0>{});
    }
    __syncwarp();
  }

 private:
  static constexpr int kStages = output_stages(C);

  __device__ __forceinline__ static constexpr int offset(int panel) { return panel % kStages * kOutputPanelBytes; }

  /// The store that last used this panel's stage has read it.
  __device__ __forceinline__ static void wait_for_stage(int panel) {
    if (panel == 0 || panel >= kStages) {
      if (threadIdx.x % kWarpSize == 0) {
        if (panel == 0) {
          cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
        } else {
          cptx::cp_async_bulk_wait_group_read(cptx::n32_t<kStages - 1>{});
        }
      }
      __syncwarp();
    }
  }

  /// Where this lane's row of a 16 x 16 block lies: 16-byte chunks are permuted by the row's number within eight.
  __device__ __forceinline__ cuda::std::uint32_t address(int panel, int column) const {
    const int lane = threadIdx.x % kWarpSize;
    const int row = lane % kRowsPerWarp;
    const int chunk = (column / kStoreColumns + lane / kRowsPerWarp) ^ (row % 8);
    return static_cast<cuda::std::uint32_t>(__cvta_generic_to_shared(stage_)) + offset(panel) + row * kPanelRowBytes +
           chunk * 16;
  }

  __device__ __forceinline__ void issue(const Params& params, const TileWork& work, int first_row, int panel) const {
    cptx::fence_proxy_async(cptx::space_shared);
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) {
      const SequenceStart rows = query_start<C>(params, work, work.q.owned);
      const Coordinates box =
          coordinates_of<(C.packed_heads > 1)>(query_box<C>(rows, panel * kPanelColumns, first_row, work.tile.head));
      cptx::cp_async_bulk_tensor(cptx::space_global, cptx::space_shared, &map_, box.at, stage_ + offset(panel));
      cptx::cp_async_bulk_commit_group();
    }
  }

  const TensorMap& map_;
  unsigned char* stage_;  // this warp's first
  const SplitParams* split_ = nullptr;
};

/// O in float32, straight to global memory: four lanes write 32 bytes of a row.
template <Config C>
__device__ __forceinline__ void store_floats(const Params& params, const TileWork& work, int warpgroup,
                                             const float (&o)[C.head_dim_v / 2], const float (&factor)[kRowsPerThread],
                                             const bool (&sees)[kRowsPerThread]) {
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = work.row_of(warpgroup) + warpgroup_row(r);
    if (row >= work.q.owned * C.packed_heads) {
      continue;
    }
    float* const to = output_row<C>(params, work, row) + fragment_column();
#pragma unroll
    for (int j = 0; j < C.head_dim_v / 8; ++j) {
      if (8 * j >= params.head_dim_v) {
        break;
      }
      const float* const pair = &o[4 * j + 2 * r];
      const float2 both = {pair[0] * factor[r], pair[1] * factor[r]};
      *reinterpret_cast<float2*>(to + 8 * j) = sees[r] ? both : float2{0.0F, 0.0F};
    }
  }
}

/// The largest scores of a segment's rows, where they are wanted.
template <Config C>
__device__ __forceinline__ void store_max_logits(const Params& params, const TileWork& work, int warpgroup,
                                                 const Softmax<C>& softmax) {
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = work.row_of(warpgroup) + warpgroup_row(r);
    if (row < work.q.used * C.packed_heads) {
      store_max_logit<C>(params, work, row, softmax.top[r]);
    }
  }
}

/// Divides by the row's sum and stores. A row without a visible key gives O = 0 and as LSE the sink, or -inf; rows that
/// are owned and not used give O = 0 and LSE = -inf. False if this thread of a masked variant stored a value that is
/// not finite. Of a tile that this CTA shares with others, its part is stored, undivided.
template <Config C>
__device__ __forceinline__ bool store_tile(const Params& params, OutputPipe<C>& pipe, const TileWork& work,
                                           int warpgroup, const float (&o)[C.head_dim_v / 2], Softmax<C>& softmax) {
  const int warp_row = work.row_of(warpgroup) + warp_of_warpgroup() * kRowsPerWarp;
  float factor[kRowsPerThread];
  bool sees[kRowsPerThread];
  bool part_is_finite = true;
  bool is_part = false;
  if constexpr (kSplits<C>) {
    is_part = work.tile.part.slot >= 0;
    store_sharers<C>(params, pipe.split(), work, warpgroup);
  }
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = work.row_of(warpgroup) + warpgroup_row(r);
    const bool exists = row < work.q.used * C.packed_heads;
    const bool owned = row < work.q.owned * C.packed_heads;
    sees[r] = exists && softmax.sum[r] != 0.0F;
    factor[r] = 1.0F;
    if constexpr (C.rule.max_logits) {
      if (exists) {
        store_max_logit<C>(params, work, row, softmax.top[r]);
      }
    }
    if constexpr (C.rule.sink) {
      const bool joins = exists && joins_sink<C>(work.tile.part);
      factor[r] =
          softmax.join(r, joins ? score::sink_log2<C.rule>(params.score, head_of<C>(work, row)) : kMinusInfinity);
    }
    if constexpr (kSplits<C>) {
      if (is_part) {
        if (exists) {
          part_is_finite &=
              store_part_row<C>(pipe.split(), work, warpgroup, r, o, factor[r], softmax.max_log2[r], softmax.sum[r]);
        }
        continue;
      }
    }
    factor[r] *= ptx::rcp_approx(softmax.sum[r]);
    if constexpr (C.rule.dropout) {
      factor[r] *= params.score.dropout.keep_factor;
    }
    if (threadIdx.x % 4 == 0 && owned) {
      store_lse<C>(params, work, row, exists ? softmax.lse(r) : kMinusInfinity);
    }
  }
  if (kSplits<C> && is_part) {
    return part_is_finite;
  }
  if constexpr (C.float_output) {
    store_floats<C>(params, work, warpgroup, o, factor, sees);
    return true;
  }
  return pipe.store(params, work, warp_row, o, factor, sees);
}

/// Rows of a tile, [first, end), none of which sees a key, by one warpgroup.
template <Config C>
__device__ __forceinline__ void store_nothing(const Params& params, const TileWork& work, int first, int end) {
  constexpr int kColumns = 16 / static_cast<int>(sizeof(OutputElement<C>));
  const int chunks = params.head_dim_v / kColumns;
  for (int i = threadIdx.x % kWarpgroupSize; i < (end - first) * chunks; i += kWarpgroupSize) {
    const int row = first + i / chunks;
    *reinterpret_cast<uint4*>(output_row<C>(params, work, row) + i % chunks * kColumns) = make_uint4(0, 0, 0, 0);
    if (i % chunks == 0) {
      const bool exists = row < work.q.used * C.packed_heads;
      store_lse<C>(params, work, row,
                   exists ? score::sink_log2<C.rule>(params.score, head_of<C>(work, row)) * kLn2 : kMinusInfinity);
    }
  }
}

/// A warpgroup's part of a tile none of whose rows sees a key. Rows behind the last sequence may be more than one
/// tile's: hence the stride.
template <Config C>
__device__ __forceinline__ void store_nothing_visible(const Params& params, const TileWork& work, int warpgroup) {
  const int owned = work.q.owned * C.packed_heads;
  for (int first = work.row_of(warpgroup); first < owned; first += params.tiles.m_tiles * block_m(C)) {
    store_nothing<C>(params, work, first, min(first + kRowsPerWarpgroup, owned));
  }
}

/// A tile, or this CTA's part of one, of which a warpgroup's rows see no key.
template <Config C>
__device__ __forceinline__ void store_without_keys(const Params& params, const OutputPipe<C>& pipe,
                                                   const TileWork& work, int warpgroup) {
  if constexpr (kSplits<C>) {
    store_sharers<C>(params, pipe.split(), work, warpgroup);
    if (work.tile.part.slot >= 0) {
      store_empty_part<C>(pipe.split(), work, warpgroup);
      return;
    }
  }
  store_nothing_visible<C>(params, work, warpgroup);
}

/// Sorted and split schedules have no tiles without a row in use: the rows behind those, of all sequences, are shared
/// out among the CTAs' warpgroups.
template <Config C>
__device__ __forceinline__ void clear_unused_rows(const Params& params, int warpgroup) {
  const int warpgroups = gridDim.x * C.consumer_warpgroups;
  TileWork work{};
  for (int sequence = params.sequences.seqused_q != nullptr ? 0 : params.sequences.sequences;
       sequence < params.sequences.batch; ++sequence) {
    work.q = sequence::query_rows<C.rule>(params.sequences, sequence);
    work.tile.sequence = sequence;
    const int owned = work.q.owned * C.packed_heads;
    const int unused = tiles_of<tiling(C)>(work.q) * block_m(C);
    for (int first = unused + (blockIdx.x * C.consumer_warpgroups + warpgroup) * kRowsPerWarpgroup; first < owned;
         first += warpgroups * kRowsPerWarpgroup) {
      for (work.tile.head = 0; work.tile.head < params.tiles.heads; ++work.tile.head) {
        store_nothing<C>(params, work, first, min(first + kRowsPerWarpgroup, owned));
      }
    }
  }
}

}  // namespace strobe::sm90::forward
