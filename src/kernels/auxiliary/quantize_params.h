// SPDX-License-Identifier: Apache-2.0
// What the host hands to the quantiser's kernels, their variants and their sizes. Plain C++ without std headers, shared
// by host and device.
#pragma once

#include "kernels/math/eight_bit.h"
#include "kernels/math/element.h"

namespace strobe::auxiliary {

struct QuantizeConfig {
  Element source = Element::bf16;  // of Q, K and V; or fp16, fp32
  int head_dim = 128;              // both multiples of 8, up to 256
  int head_dim_v = 128;
  bool e4m3 = false;          // or int8
  bool aligned = true;        // rows of Q, K and V lie at multiples of 16 bytes, what is written at multiples of 8
  bool measure = false;       // find the largest magnitude of units that are larger than a tile; write nothing else
  bool packed = false;        // sequences of Q, of K and V, or of all lie one behind the other
  bool whole_blocks = false;  // a tile holds the 128 rows that share a scale, whatever room that takes

  bool operator==(const QuantizeConfig&) const = default;
};

struct KeyMeanConfig {
  Element source = Element::bf16;
  int head_dim = 128;
  bool aligned = true;
  bool packed = false;

  bool operator==(const KeyMeanConfig&) const = default;
};

constexpr int kMostColumns = 256;
constexpr int kSliceColumns = kShiftColumns;  // of a row, that one thread holds in registers
constexpr int kTileBytes = 128 * 256;

/// Threads that share a row: a power of two.
constexpr int row_slices(int head_dim) { return head_dim <= 64 ? 1 : head_dim <= 128 ? 2 : 4; }

/// Rows of a tile: as many of K as of V.
constexpr int tile_rows(const QuantizeConfig& c) {
  const int columns = c.head_dim > c.head_dim_v ? c.head_dim : c.head_dim_v;
  return c.whole_blocks || columns * bytes_of(c.source) * 128 <= kTileBytes ? 128 : 64;
}

constexpr int quantize_threads(const QuantizeConfig& c) {
  return tile_rows(c) * row_slices(c.head_dim > c.head_dim_v ? c.head_dim : c.head_dim_v);
}

/// Blocks of a multiprocessor: the most whose registers do not spill.
constexpr int quantize_blocks(const QuantizeConfig& c) {
  const int slices = row_slices(c.head_dim);
  const int slices_v = row_slices(c.head_dim_v);
  const bool narrow = slices == 1 && slices_v == 1;
  const bool whole_rows = slices == 1 || slices_v == 1;
  const int threads = !whole_rows ? 512 : c.source == Element::fp32 ? 256 : narrow ? 512 : 384;
  return threads / quantize_threads(c);
}

/// Bytes from one thread's slice of a row to the next.
constexpr int slice_bytes(const QuantizeConfig& c, int head_dim) {
  return (head_dim < kSliceColumns ? head_dim : kSliceColumns) * bytes_of(c.source);
}

constexpr int tile_smem_bytes(const QuantizeConfig& c, int head_dim) {
  return tile_rows(c) * row_slices(head_dim) * slice_bytes(c, head_dim);
}

/// Shared memory of the quantiser: two tiles, of K and V, or two of Q.
constexpr int quantize_smem_bytes(const QuantizeConfig& c) {
  const int qk = tile_smem_bytes(c, c.head_dim);
  const int v = tile_smem_bytes(c, c.head_dim_v);
  return qk + (qk > v ? qk : v);
}

constexpr int kAllRows = 31;

/// One of the three tensors. Strides are in elements; of packed ones those of the batch are 0.
struct QuantizedTensor {
  const void* from;
  long long from_batch, from_row, from_head;
  unsigned char* to;
  long long to_batch, to_row, to_head;  // V: to_row is from column to column
  float* scales;
  long long scale_batch, scale_head;
  unsigned* largest;  // bits of the magnitudes that were measured; null: units are parts of tiles
  long long largest_head;
  int rows, heads;  // packed: the bound on a sequence's rows
  int unit_shift;   // 2^unit_shift rows share a scale; kAllRows: all of a head
  bool shared;      // by all heads
  bool rotated;
  const int* cu_seqlens;  // [sequences + 1]; null: batched
  int total;              // rows of a packed tensor
};

struct QuantizeParams {
  QuantizedTensor q, k, v;
  const float* mean;  // [batch, heads_kv, head_dim]; null: keys are not centred
  float* q_shift;     // with a mean
  long long shift_batch, shift_head;
  float largest_element, smallest_scale;
  int heads_per_kv;
  int query_jobs, key_jobs;                     // of one head: pairs of tiles of Q, and tiles of K and V
  int key_blocks, jobs;                         // jobs of K and V, which come first, and all
  int sequences;                                // of a packed tensor; one more job of a head is for what lies behind
  bool values_tell;                             // of keys that are not finite: V's scales are of rows
  unsigned long long signs[kMostColumns / 64];  // of the rotation: a bit a column, 1 is negative
};

constexpr int kMeanColumns = 8;  // of a thread

/// Threads of a row: a power of two, and with all phases a warp at least.
constexpr int mean_lanes(int head_dim) {
  int lanes = 4;
  while (lanes * kMeanColumns < head_dim) lanes *= 2;
  return lanes;
}

constexpr int kFinishThreads = 1024;

struct KeyMeanParams {
  const void* k;
  long long k_batch, k_row, k_head;
  double* sums;  // [batch * heads_kv, chunks, head_dim]; packed: [total / kMeanRows + batch, heads_kv, head_dim]
  int* counts;   // without the columns: rows that are finite
  float* mean;   // [batch * heads_kv, head_dim]
  int rows, heads, chunks;
  const int* cu_seqlens;  // null: batched
  int total;
};

/// The rows of one sequence.
struct SequenceSpan {
  int start, rows;
};

/// The rows of a sequence in a packed tensor of `total` rows. Lengths that the caller got wrong lead to no row outside
/// it, and to none behind the bound.
inline SequenceSpan packed_span(const int* cu_seqlens, int sequence, int total, int bound) {
  const auto inside = [&](int row) { return row < 0 ? 0 : row > total ? total : row; };
  const int start = inside(cu_seqlens[sequence]);
  const int rows = inside(cu_seqlens[sequence + 1]) - start;
  return {start, rows < 0 ? 0 : rows > bound ? bound : rows};
}

}  // namespace strobe::auxiliary
