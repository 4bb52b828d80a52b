// SPDX-License-Identifier: Apache-2.0
// Split schedules: what a CTA leaves of a tile that it shares with others, P V in float32 and each row's maximum and
// sum, for auxiliary/combine.h. See split_scheduler.h.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/scheduler/split.h"
#include "kernels/scheduler/tile.h"
#include "kernels/score/exact_row.h"
#include "kernels/score/fragment.h"
#include "kernels/score/modifiers/sink.h"

namespace strobe {

/// One row of a part.
struct PartRow {
  PartStatistics* statistics;
  float* sums;
};

/// `row`: of the tile. head_dim_v is the compiled one.
template <int head_dim_v>
__device__ __forceinline__ PartRow part_row(const SplitParams& split, int slot, int row) {
  const long long index = static_cast<long long>(slot) * split.slot_rows + row;
  return {split.statistics + index, split.sums + index * head_dim_v};
}

/// By one thread of the CTA that has a tile's first key block: who else has some.
__device__ __forceinline__ void store_sharers(const SplitParams& split, int heads, int m_tiles, const Tile& tile) {
  if (tile.part.first == 0) {
    const long long head = static_cast<long long>(tile.sequence) * heads + tile.head;
    split.tiles[head * m_tiles + tile.m] = tile.part.sharers;
  }
}

/// Row r of this thread's fragment (score/fragment.h): o * factor, of exponentials relative to 2^max_log2 whose sum is
/// `sum`. False if a value of a row that saw a key is not finite and the rule is repaired. `fours`: registers lie as
/// score::four_register() says.
template <ScoreRule R, int head_dim_v, bool fours = false>
__device__ __forceinline__ bool store_part_row(const PartRow& to, int r, const float (&o)[head_dim_v / 2], float factor,
                                               float max_log2, float sum) {
  if (threadIdx.x % 4 == 0) {
    *to.statistics = {max_log2, sum};
  }
  float zero = 0.0F;
  const auto store = [&](float* at, float x, float y) {
    const float2 pair = make_float2(x * factor, y * factor);
    *reinterpret_cast<float2*>(at) = pair;
    if constexpr (is_repaired(R)) {
      zero = __fmaf_rn(pair.x, 0.0F, __fmaf_rn(pair.y, 0.0F, zero));
    }
  };
  if constexpr (R.element == Element::fp32) {
#pragma unroll
    for (int j = 0; j < head_dim_v / 2 / score::kWideRegisters; ++j) {
      const auto register_of = [&](int i) { return o[score::wide_register(j, r, i)]; };
      float* const first = to.sums + score::wide_column(j);
      store(first, register_of(0), register_of(1));
      store(first + 2, register_of(2), register_of(3));
    }
  } else if constexpr (fours) {
#pragma unroll
    for (int j = 0; j < head_dim_v / 16; ++j) {
      const auto register_of = [&](int i) { return o[score::four_register(j, r, i)]; };
      float* const first = to.sums + score::four_column(j);
      store(first, register_of(0), register_of(1));
      store(first + 2, register_of(2), register_of(3));
    }
  } else {
#pragma unroll
    for (int j = 0; j < head_dim_v / 8; ++j) {
      store(to.sums + 8 * j + score::fragment_column(), o[4 * j + 2 * r], o[4 * j + 2 * r + 1]);
    }
  }
  return zero == 0.0F || sum == 0.0F;
}

/// A row of a part, from the part's visible keys alone, if one of its values is not finite: by one warp. exact_of()
/// gives the row with those keys.
template <ScoreRule R, int head_dim_v, typename ExactOf, typename KeyRows>
__device__ __forceinline__ void repair_part_row(const ScoreParams& score, const BlockMaskParams& blocks,
                                                const PartRow& stored, int columns, const ExactOf& exact_of,
                                                bool joins_sink, const KeyRows& rows) {
  if (stored.statistics->sum == 0.0F || score::sums_are_finite(stored.sums, columns)) {
    return;
  }
  const score::ExactRow exact = exact_of();
  score::RowSums<head_dim_v> sums = score::row_sums<R, head_dim_v>(score, blocks, exact, rows);
  const float shrunk = sums.join(joins_sink ? score::sink_log2<R>(score, exact.head) : kMinusInfinity);
  const int lane = threadIdx.x % score::kThreadsPerWarp;
  if (lane == 0) {
    *stored.statistics = {sums.max_log2, sums.sum};
  }
#pragma unroll
  for (int i = 0; i < sums.kColumns; ++i) {
    if (lane + i * score::kThreadsPerWarp < columns) {
      stored.sums[lane + i * score::kThreadsPerWarp] = sums.o[i] * shrunk;
    }
  }
}

}  // namespace strobe
