// SPDX-License-Identifier: Apache-2.0
// O and LSE, from a warp's registers to global memory.
#pragma once

#include "kernels/scheduler/part.h"
#include "kernels/score/max_logit.h"
#include "kernels/score/modifiers/sink.h"
#include "kernels/sm80/forward/row_rules.h"
#include "kernels/sm80/forward/smem.h"

namespace strobe::sm80::forward {

template <Config C>
__device__ __forceinline__ void store_lse(const Params& params, const TileWork& work, int row, float value) {
  if (params.lse != nullptr) {
    params.lse[q_batch(params, work) * params.lse_batch_stride + head_of<C>(work, row) * params.lse_head_stride +
               work.q.start + row / C.packed_heads] = value;
  }
}

/// The largest scores of a fragment's rows, of rules that want them.
template <Config C>
__device__ __forceinline__ void store_max_logits(const Params& params, const TileWork& work, int first_row,
                                                 const Softmax<C>& softmax) {
  if constexpr (C.rule.max_logits) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int row = first_row + score::fragment_row(r);
      // Of float32 rows with a score that is not a number are computed again.
      const bool told = C.rule.element != Element::fp32 || !isnan(softmax.sum[r]);
      if (row < used_rows<C>(work) && told) {
        store_max_logit<C>(params, work, row, softmax.top[r]);
      }
    }
  }
}

/// What the rows of a fragment are multiplied by, 0 for one that saw nothing; and their LSE, which it stores. A row
/// without a visible key gives as LSE the sink, or -inf; rows that are owned and not used give -inf. `stores`: no other
/// warp stores numbers of these rows.
template <Config C>
__device__ __forceinline__ void finish_rows(const Params& params, const TileWork& work, int first_row,
                                            Softmax<C>& softmax, float (&factor)[kRowsPerThread],
                                            bool (&sees)[kRowsPerThread], bool stores = true) {
  // Else whoever joined groups of warps, warps that share rows, or segments has done so.
  if constexpr (C.key_groups == 1 && C.column_warps == 1 && !folds(C)) {
    softmax.finish();
  }
  if (stores) {
    store_max_logits<C>(params, work, first_row, softmax);
  }
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = first_row + score::fragment_row(r);
    const bool exists = row < used_rows<C>(work);
    sees[r] = exists && softmax.sum[r] != 0.0F;
    factor[r] = 1.0F;
    if constexpr (C.rule.sink) {
      factor[r] =
          softmax.join(r, exists ? score::sink_log2<C.rule>(params.score, head_of<C>(work, row)) : kMinusInfinity);
    }
    if constexpr (C.rule.normalized) {
      factor[r] *= ptx::rcp_approx(softmax.sum[r]);
    }
    if constexpr (C.rule.dropout) {
      factor[r] *= params.score.dropout.keep_factor;
    }
    if (stores && threadIdx.x % 4 == 0 && row < owned_rows<C>(work)) {
      store_lse<C>(params, work, row, exists ? softmax.lse(r) : kMinusInfinity);
    }
  }
}

/// Sixteen rows to their place in the warp's tile: o[4 j + 2 r + c] * factor[r], or 0 where not `sees`, from the
/// sixteen columns number first_pair on. False if this thread of a repaired variant had a value that is not finite.
template <Config C, int registers>
__device__ __forceinline__ bool stage_rows(unsigned char* tile, int first_row, const float (&o)[registers],
                                           const float (&factor)[kRowsPerThread], const bool (&sees)[kRowsPerThread],
                                           int first_pair = 0) {
  unsigned zero = 0;  // two elements: each becomes NaN if a value is not finite
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const unsigned first = OTile<C>::offset(first_row + score::fragment_row(r), 0) + threadIdx.x % 4 * 4;
#pragma unroll
    for (int j = 0; j < registers / 4; ++j) {
      const float* pair = &o[4 * j + 2 * r];
      unsigned packed = pack<C.rule.element>(pair[0] * factor[r], pair[1] * factor[r]);
      packed = sees[r] ? packed : 0U;
      if constexpr (is_masked(C.rule)) {
        zero = plus_zero_times<C.rule.element>(zero, packed);
      }
      // Two chunks are a pair; the second one's number differs in the lowest bit.
      const unsigned at = OTile<C>::pair_after(first ^ static_cast<unsigned>(j % 2 * kChunkBytes), first_pair + j / 2);
      *reinterpret_cast<unsigned*>(tile + at) = packed;
    }
  }
  return (zero & 0x7fff7fffU) == 0;
}

/// Stages rows of O in float32, which lies as score/fragment.h says. False if a value is not finite.
template <Config C, int registers>
  requires(C.rule.element == Element::fp32)
__device__ __forceinline__ bool stage_rows(unsigned char* tile, int first_row, const float (&o)[registers],
                                           const float (&factor)[kRowsPerThread], const bool (&sees)[kRowsPerThread]) {
  float zero = 0.0F;  // NaN if a value is not finite
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
#pragma unroll
    for (int j = 0; j < registers / score::kWideRegisters; ++j) {
      const auto value = [&](int i) { return sees[r] ? o[score::wide_register(j, r, i)] * factor[r] : 0.0F; };
      const float4 four = make_float4(value(0), value(1), value(2), value(3));
      zero = __fmaf_rn(four.x, 0.0F, __fmaf_rn(four.y, 0.0F, zero));
      zero = __fmaf_rn(four.z, 0.0F, __fmaf_rn(four.w, 0.0F, zero));
      const int chunk = 2 * static_cast<int>(threadIdx.x % 4) + j % 2;
      const int at = OTile<C>::offset(first_row + score::fragment_row(r), chunk) + j / 2 * OTile<C>::kPanelBytes;
      *reinterpret_cast<float4*>(tile + at) = four;
    }
  }
  return zero == 0.0F;
}

/// Stages rows of O of stored operands, whose registers lie as score::four_register() says.
template <Config C, int registers>
  requires(C.stored_operands)
__device__ __forceinline__ bool stage_rows(unsigned char* tile, int first_row, const float (&o)[registers],
                                           const float (&factor)[kRowsPerThread], const bool (&sees)[kRowsPerThread]) {
  unsigned zero = 0;  // two elements: each becomes NaN if a value is not finite
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = first_row + score::fragment_row(r);
    const unsigned first = OTile<C>::offset(row, threadIdx.x % 4 / 2) + threadIdx.x % 2 * 8;
#pragma unroll
    for (int j = 0; j < registers / 8; ++j) {
      const auto value = [&](int i) { return o[score::four_register(j, r, i)] * factor[r]; };
      uint2 four = {pack<C.rule.element>(value(0), value(1)), pack<C.rule.element>(value(2), value(3))};
      four = sees[r] ? four : make_uint2(0U, 0U);
      if constexpr (is_masked(C.rule)) {
        zero = plus_zero_times<C.rule.element>(plus_zero_times<C.rule.element>(zero, four.x), four.y);
      }
      *reinterpret_cast<uint2*>(tile + OTile<C>::pair_after(first, j)) = four;
    }
  }
  return (zero & 0x7fff7fffU) == 0;
}

/// The warp's rows to global memory, whole ones at a time. `tile`: of the warps that share it, of whose rows this
/// warp's begin at `own`; first_row: the first of the tile.
template <Config C>
__device__ __forceinline__ void store_rows(const Params& params, const TileWork& work, const unsigned char* tile,
                                           int first_row, int own = 0) {
  using Tile = OTile<C>;
  const int chunk = lane_of_warp() % Tile::kChunks;
#pragma unroll
  for (int i = 0; i < stored_rows(C); i += kWarpSize / Tile::kChunks) {
    const int row = own + i + lane_of_warp() / Tile::kChunks;
    if (first_row + row >= owned_rows<C>(work)) {
      break;
    }
    unsigned short* to = query_row<C>(params.o, params, work, first_row + row);
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      const int column = (panel * Tile::kChunks + chunk) * kChunkElements;
      if (column < halves(C, params.head_dim_v)) {
        *reinterpret_cast<uint4*>(to + column) =
            *reinterpret_cast<const uint4*>(tile + Tile::offset(row, chunk) + panel * Tile::kPanelBytes);
      }
    }
  }
}

/// Rows of a tile, [first, end), none of which sees a key, by the whole CTA.
template <Config C>
__device__ __forceinline__ void store_nothing(const Params& params, const TileWork& work, int first, int end) {
  const int chunks = halves(C, params.head_dim_v) / kChunkElements;
  for (int i = threadIdx.x; i < (end - first) * chunks; i += threads_per_block(C)) {
    const int row = first + i / chunks;
    *reinterpret_cast<uint4*>(query_row<C>(params.o, params, work, row) + i % chunks * kChunkElements) =
        make_uint4(0, 0, 0, 0);
    if (i % chunks == 0) {
      const bool exists = row < used_rows<C>(work);
      store_lse<C>(params, work, row,
                   exists ? score::sink_log2<C.rule>(params.score, head_of<C>(work, row)) * kLn2 : kMinusInfinity);
    }
  }
}

/// Such a tile. Rows behind the last sequence may be more than one tile's: hence the stride.
template <Config C>
__device__ __forceinline__ void store_nothing_visible(const Params& params, const TileWork& work) {
  const int owned = owned_rows<C>(work);
  for (int first = work.m_begin; first < owned; first += params.tiles.m_tiles * block_m(C)) {
    store_nothing<C>(params, work, first, min(first + block_m(C), owned));
  }
}

/// A tile, or this CTA's part of one, none of whose rows sees a key.
template <Config C>
__device__ __forceinline__ void store_without_keys(const Params& params, const TileWork& work) {
  if constexpr (splits(C)) {
    if (work.tile.part.slot >= 0) {
      const int row = threadIdx.x;
      static_assert(block_m(C) <= threads_per_block(C));
      if (row < block_m(C) && work.m_begin + row < used_rows<C>(work)) {
        *part_row<C.head_dim_v>(params.split, work.tile.part.slot, row).statistics = {kMinusInfinity, 0.0F};
      }
      return;
    }
  }
  store_nothing_visible<C>(params, work);
}

/// The sink joins row `row` of this CTA's part of a tile, which is row r of `softmax`, where it belongs to this part.
/// Returns by what O shrinks for it.
template <Config C>
__device__ __forceinline__ float join_sink_of_part(const Params& params, const TileWork& work, int row,
                                                   Softmax<C>& softmax, int r) {
  if constexpr (C.rule.sink) {
    return softmax.join(
        r, sink_joins_part<C>(work) ? score::sink_log2<C.rule>(params.score, head_of<C>(work, row)) : kMinusInfinity);
  }
  return 1.0F;
}

/// Sixteen rows of this CTA's part of a tile. False if a value of a repaired variant is not finite.
template <Config C>
__device__ __forceinline__ bool store_part_rows(const Params& params, const TileWork& work, int first_row,
                                                Softmax<C>& softmax, const float (&o)[C.head_dim_v / 2]) {
  if constexpr (C.key_groups == 1) {
    softmax.finish();
  }
  store_max_logits<C>(params, work, first_row, softmax);
  bool finite = true;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = first_row + score::fragment_row(r);
    if (row >= used_rows<C>(work)) {
      continue;
    }
    const float factor = join_sink_of_part<C>(params, work, row, softmax, r);
    const PartRow to = part_row<C.head_dim_v>(params.split, work.tile.part.slot, row - work.m_begin);
    finite &=
        store_part_row<C.rule, C.head_dim_v, C.stored_operands>(to, r, o, factor, softmax.max_log2[r], softmax.sum[r]);
  }
  return finite;
}

/// Split schedules have no tiles without a row in use: the rows behind those, of all sequences, are shared out among
/// the CTAs.
template <Config C>
__device__ __forceinline__ void clear_unused_rows(const Params& params) {
  TileWork work{};
  for (int sequence = params.sequences.seqused_q != nullptr ? 0 : params.sequences.sequences;
       sequence < params.sequences.batch; ++sequence) {
    work.q = sequence::query_rows<C.rule>(params.sequences, sequence);
    work.tile.sequence = sequence;
    const int owned = owned_rows<C>(work);
    const int unused = tiles_of<tiling(C)>(work.q) * block_m(C);
    for (int first = unused + blockIdx.x * block_m(C); first < owned; first += gridDim.x * block_m(C)) {
      for (work.tile.head = 0; work.tile.head < params.tiles.heads; ++work.tile.head) {
        store_nothing<C>(params, work, first, min(first + block_m(C), owned));
      }
    }
  }
}

}  // namespace strobe::sm80::forward
