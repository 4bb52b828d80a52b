// SPDX-License-Identifier: Apache-2.0
// What the host hands to the kernels that combine partial results, and their variants and sizes. Plain C++ without std
// headers, shared by host and device.
#pragma once

#include "kernels/auxiliary/quantize_params.h"
#include "kernels/math/element.h"
#include "kernels/score/parts.h"
#include "kernels/sequence/params.h"
#include "kernels/sequence/rows.h"

namespace strobe::auxiliary {

constexpr int kCombineThreads = 128;
constexpr int kFewParts = 8;     // that one warp takes for a row; of more, each of four warps takes a quarter
constexpr int kMostParts = 512;  // of a row

// -- Results of the caller's (strobe::merge) --------------------------------------------------------------------------

struct MergeConfig {
  Element source = Element::fp32;       // of the parts' O
  Element destination = Element::bf16;  // of O
  bool aligned = true;                  // four neighbours are one access
  int most_parts = kFewParts;           // kFewParts or kMostMergedParts

  bool operator==(const MergeConfig&) const = default;
};

constexpr int kMostMergedParts = 256;

constexpr int warps_per_row(const MergeConfig& c) { return c.most_parts > kFewParts ? kCombineThreads / 32 : 1; }
constexpr int rows_per_block(const MergeConfig& c) { return kCombineThreads / 32 / warps_per_row(c); }

/// O and LSE of one part, or of the result. Strides in elements.
struct MergedTensor {
  void* o;
  float* lse;  // of the result: null where it is not wanted
  long long o_batch, o_row, o_head;
  long long lse_batch, lse_row, lse_head;
};

template <int most_parts>
struct MergeParams {
  MergedTensor result;
  MergedTensor parts[most_parts];
  int count;
  int columns;
  long long jobs;  // rows of all heads and batch entries
  int rows, heads;
};

// -- A forward whose keys were split ----------------------------------------------------------------------------------

struct CombineConfig {
  Element element = Element::bf16;
  int head_dim_v = 128;   // columns of the partial sums, a multiple of 32
  bool few_parts = true;  // a tile has kFewParts parts at most
  bool varlen = false;
  bool segments = false;   // parts are segments of a row-invariant call: joined one by one, from the last
  bool sink = false;       // which joins segments; else it is part of a part
  bool normalized = true;  // else O is the parts' sum

  bool operator==(const CombineConfig&) const = default;
};

constexpr int warps_per_row(const CombineConfig& c) { return c.few_parts && !c.segments ? 1 : kCombineThreads / 32; }
constexpr int rows_per_block(const CombineConfig& c) { return kCombineThreads / 32 / warps_per_row(c); }

struct CombineParams {
  const TileParts* tiles;            // [sequences, heads, m_tiles], written for tiles with a row in use
  const PartStatistics* statistics;  // [slots, slot_rows]
  const float* sums;                 // [slots, slot_rows, head_dim_v], P V
  int slot_rows;                     // rows that a tile has at most

  Rows o;
  float* lse;  // null: not wanted
  long long lse_batch_stride, lse_head_stride;
  SequenceParams sequences;
  int heads, packed_heads;  // query heads / packed_heads, whose rows are interleaved
  int block_m, m_tiles;
  int head_dim_v;     // columns that exist
  int jobs;           // rows of O that sequences may have, of all query heads
  const float* sink;  // [query heads]
};

}  // namespace strobe::auxiliary
