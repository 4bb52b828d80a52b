// SPDX-License-Identifier: Apache-2.0
// The kernel that puts the parts of a forward together whose keys were split.
#pragma once

#include <algorithm>
#include <cstdint>

#include "call/checked.h"
#include "kernels/auxiliary/combine_params.h"
#include "kernels/scheduler/split.h"
#include "runtime/device.h"
#include "runtime/kernel.h"
#include "strobe/status.h"

namespace strobe::gpu {

/// Finds the kernel, compiling it first where neither the pack nor the cache has it.
Result<runtime::Kernel> find_combine(const auxiliary::CombineConfig& config, const runtime::CudaDevice& device);

/// How the tiles of the forward were cut.
struct CombinedTiles {
  int heads = 0;  // query heads / packed_heads
  int packed_heads = 1;
  int m_tiles = 0;  // of a sequence and head
  int tiles = 0;    // in all
  int block_m = 0;
};

/// `params`: a forward's.
template <class Params>
auxiliary::CombineParams combine_params(const Params& params, const SplitParams& split, const CombinedTiles& tiles) {
  auxiliary::CombineParams combine{};
  combine.tiles = split.tiles;
  combine.statistics = split.statistics;
  combine.sums = split.sums;
  combine.slot_rows = split.slot_rows;
  combine.o = params.o;
  combine.lse = params.lse;
  combine.lse_batch_stride = params.lse_batch_stride;
  combine.lse_head_stride = params.lse_head_stride;
  combine.sequences = params.sequences;
  combine.heads = tiles.heads;
  combine.packed_heads = tiles.packed_heads;
  combine.block_m = tiles.block_m;
  combine.m_tiles = tiles.m_tiles;
  combine.head_dim_v = params.head_dim_v;
  const SequenceParams& sequences = params.sequences;
  std::int64_t rows = std::int64_t{sequences.sequences} * sequences.seqlen_q;
  // Of packed rows those behind the last sequence are nobody's; one block there must be.
  if (sequences.cu_seqlens_q != nullptr) rows = std::clamp<std::int64_t>(rows, 1, sequences.total_q);
  combine.jobs = (Checked(rows) * tiles.heads * tiles.packed_heads).value<int>();
  combine.sink = params.score.sink;
  return combine;
}

Status launch_combine(const runtime::CudaDevice& device, const runtime::Kernel& kernel, runtime::CUcontext context,
                      runtime::CUstream stream, const auxiliary::CombineConfig& config,
                      const auxiliary::CombineParams& params);

}  // namespace strobe::gpu
