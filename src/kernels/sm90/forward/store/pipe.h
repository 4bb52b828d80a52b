// SPDX-License-Identifier: Apache-2.0
// O out of a warp's registers, through shared memory.
#pragma once

#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/forward/tile/rows.h"
#include "kernels/sm90/forward/tile/split.h"
#include "kernels/sm90/ptx/cuda_ptx.h"
#include "kernels/sm90/ptx/warpgroup.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::forward {

constexpr int kStoreColumns = 8;  // 16 bytes

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

  /// From now on rows are staged here: kStages panels, that no one else uses.
  __device__ __forceinline__ void stage_in(unsigned char* memory) { stage_ = memory; }

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
    return store_boxes(o, factor, sees, [&](int column) {
      const SequenceStart rows = query_start<C>(params, work, work.q.owned);
      return query_box<C>(rows, column, first_row, work.tile.head);
    });
  }

  /// Likewise, of some columns, of whose panels `existing` are stored: those from `column` of these on go where
  /// box_of(column) says.
  template <int registers, typename BoxOf>
  __device__ __forceinline__ bool store_boxes(const float (&o)[registers], const float (&factor)[kRowsPerThread],
                                              const bool (&sees)[kRowsPerThread], const BoxOf& box_of,
                                              int existing = panels(2 * registers)) {
    constexpr int kColumns = 2 * registers;
    cuda::std::uint32_t zero = 0;  // two elements: each becomes NaN if a value is not finite
#pragma unroll
    for (int panel = 0; panel < panels(kColumns); ++panel) {
      if (panel >= existing) {
        break;
      }
      wait_for_stage(panel);
#pragma unroll
      for (int column = panel * kPanelColumns; column < min((panel + 1) * kPanelColumns, kColumns); column += 16) {
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
      issue(panel, box_of);
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
  static constexpr int kStages = C.output_stages;

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

  template <typename BoxOf>
  __device__ __forceinline__ void issue(int panel, const BoxOf& box_of) const {
    cptx::fence_proxy_async(cptx::space_shared);
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) {
      const Coordinates box = coordinates_of<(C.packed_heads > 1)>(box_of(panel * kPanelColumns));
      cptx::cp_async_bulk_tensor(cptx::space_global, cptx::space_shared, &map_, box.at, stage_ + offset(panel));
      cptx::cp_async_bulk_commit_group();
    }
  }

  const TensorMap& map_;
  unsigned char* stage_;  // this warp's first
  const SplitParams* split_ = nullptr;
};

}  // namespace strobe::sm90::forward
