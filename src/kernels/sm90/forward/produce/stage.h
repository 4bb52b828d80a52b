// SPDX-License-Identifier: Apache-2.0
// What producers share: who of a warp feeds, and how a stage is filled.
#pragma once

#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/ptx/cuda_ptx.h"
#include "kernels/sm90/tile/coordinates.h"

namespace strobe::sm90::forward {

/// Some of the panels of a row: `count` of them from column `first` on, of `columns` columns each.
struct PanelRange {
  int first = 0, count;
  int columns = kPanelColumns;
  int last = 0x7fffffff;  // where the last one that exists begins, which stands for those after it: see last_panel()

  __device__ __forceinline__ int column(int panel) const { return min(first + panel * columns, last); }
};

/// Whether whole warps drive the feeders: to walk past hidden blocks, to bring scales, and to find pages.
template <Config C>
constexpr bool kWarpFeeds = C.rule.block_mask != 0 || eight_bit(C) || in_pages(C);

/// Columns of a row in one panel.
template <Config C>
constexpr int kColumns = kPanelRowBytes / operand_bytes(C);

/// Panels of a row of Q or K.
template <Config C>
constexpr int kRowPanels = panels_of_bytes(C.head_dim * operand_bytes(C));

/// Whether a warp's thread that feeds is elected: of one that is, the compiler knows that it is alone, and what it
/// hands to TMA needs no loop over lanes. log: elected-producers
template <Config C>
constexpr bool kElects = !is_wide(C) || C.values_in_keys;

/// Whether this thread acts for its warp, all of which asks.
template <Config C>
__device__ __forceinline__ bool acts_for_warp() {
  if constexpr (kElects<C>) {
    return ptx::elect_one();
  } else {
    return threadIdx.x % kWarpSize == 0;
  }
}

template <Config C>
__device__ __forceinline__ bool this_thread_feeds() {
  return !kWarpFeeds<C> || acts_for_warp<C>();
}

/// `bytes` of zeros in shared memory, by one thread, for WGMMA and TMA: rows that do not exist. A box of them would be
/// zeros as well, but of a box that lies wholly outside its tensor TMA looks up where the map begins, and faults where
/// that is not mapped, as may be before the tensor, where varlen maps begin.
__device__ __forceinline__ void store_zeros(unsigned char* to, int bytes) {
#pragma unroll 1
  for (int i = 0; i < bytes; i += static_cast<int>(sizeof(uint4))) {
    *reinterpret_cast<uint4*>(to + i) = uint4{};
  }
  cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
}

/// A stage of `count` panels by one thread: by TMA box_of(panel) each, or where no such block exists, zeros.
/// `bytes_beside`: what else is announced to arrive with them.
template <typename BoxOf>
__device__ __forceinline__ void load_panels(const TensorMap& map, bool exists, int count, int panel_bytes,
                                            unsigned char* stage, uint64_t& full, const BoxOf& box_of,
                                            int bytes_beside = 0) {
  if (!exists) {
    store_zeros(stage, count * panel_bytes);
    cuda::ptx::mbarrier_arrive(&full);
    return;
  }
  expect(full, count * panel_bytes + bytes_beside);
#pragma unroll
  for (int panel = 0; panel < count; ++panel) {
    load_panel<false>(map, box_of(panel), stage + panel * panel_bytes, full);
  }
}

}  // namespace strobe::sm90::forward
