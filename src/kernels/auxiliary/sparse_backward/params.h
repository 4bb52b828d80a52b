// SPDX-License-Identifier: Apache-2.0
// What the host hands to the kernels of sparse attention's gradients. Plain C++ without std headers, shared by host and
// device.
//
// Queries are computed in waves. A unit is the query heads of one query that read one key head; the lists of its
// sources, one behind the other, are the unit's keys. Steps: P and dS of a wave's units (weights.h), dQ
// (query_gradient.h), what each unit adds to the rows of its keys (shares.h), and the sums of these (sum.h); around all
// waves prepare.h and store.h.
#pragma once

#include "kernels/math/divisor.h"
#include "kernels/math/element.h"
#include "kernels/sequence/rows.h"

namespace strobe::auxiliary {

struct SparseBackwardConfig {
  Element element = Element::bf16;  // of 16 bits
  bool aligned = true;              // rows of q, k, v and dO begin at multiples of 16 bytes and have whole ones
  int heads = 64;                   // of a tile: 16 or 64

  bool operator==(const SparseBackwardConfig&) const = default;
};

inline constexpr int kSparseTile = 64;   // columns of a tile, and keys where they are summed over
inline constexpr int kSparseKeys = 128;  // of a tile of weights or shares
inline constexpr int kSparseSources = 2;

/// Heads that P and dS are kept for: whole steps of the tensor cores' products over them.
constexpr int weight_heads(int group) { return (group + 15) / 16 * 16; }

/// Threads of a product: a warp for 16 rows of what it writes.
constexpr int sparse_threads(int rows) { return rows * 2; }

/// Columns of float32 rows that kernels move four at a time.
constexpr int float_columns(int columns) { return (columns + 3) / 4 * 4; }

constexpr int kTileStride = kSparseTile + 8;  // elements: rows of ldmatrix begin in different banks
constexpr int kStages = 2;

/// Shared memory of products of so many rows.
constexpr int sparse_tile_bytes(int rows, int products) {
  return kStages * (rows + products * kSparseTile) * kTileStride * 2;
}

/// One source, of a wave's queries.
struct SparseRows {
  Rows k, v;             // v: k, where V is its first columns
  Divisor by_page_rows;  // rows are counted through pages or batch entries; a packed k is one
  const int* places;     // [queries, lists, width]: rows
  const int* counts;     // [queries, lists]
  int lists;             // 1, or one for each key head
  int width;             // places of a list
  int first_key;         // of the unit's keys, which its list's first is
  bool v_apart;          // else one row of gradients is K's and V's
  int first_v_column;    // of rows of gradients: 0 where V is part of K
  int columns;           // of rows of gradients
  float* shares;         // [units, width, columns]: what a unit adds to the rows of its keys
};

struct SparseBackwardParams {
  SparseRows sources[kSparseSources];
  int source_count;
  int source;  // of kernels for one
  Rows q, d_o, dq;
  Divisor by_seqlen_q;  // queries are counted through batch entries; of packed ones all are one entry's
  int first_query;      // of the wave
  int heads_kv, group;
  int head_dim, head_dim_v;
  int unit_keys;
  // A product is a power of 2 whose exponent is scale_log2 times it, or cap_log2 * tanh(cap_scale * it).
  float scale, scale_log2;
  float cap_scale, cap_log2;  // cap_log2 is 0: no softcap
  // [query heads, rows], rows being queries and what fills them up to a multiple of 4.
  const float* lse_log2;
  const float* d_sum;
  long long rows;
  unsigned short* p;   // [units, unit_keys, weight_heads]
  unsigned short* ds;  // likewise, without the scale
};

/// D - dLSE of each query and head, and LSE in powers of two, as kernels/auxiliary/sink_gradient.h reads them.
struct SparsePrepareParams {
  Rows o, d_o;
  const float* lse;
  long long lse_batch_stride, lse_head_stride, lse_row_stride;
  const float* d_lse;  // null: none
  long long d_lse_batch_stride, d_lse_head_stride, d_lse_row_stride;
  Divisor by_seqlen_q;
  int queries;
  int heads, head_dim_v;
  float* lse_log2;  // [heads, rows]; +inf where there is no query, or no key
  float* row_max;   // zeros
  float* d_sum;
  long long rows;
};

inline constexpr int kSparsePrepareThreads = 256;

struct SparseSumParams {
  const int* places;  // as of SparseRows
  const int* counts;
  int queries, lists, width;
  Divisor by_width;
  int heads_kv;
  const float* shares;
  float* sums;  // [rows, heads_kv, columns]
  int rows_of_cta;
  int columns;
};

inline constexpr int kSparseSumThreads = 512;

struct SparseStoreParams {
  const float* sums;
  Divisor by_page_rows;
  Divisor by_heads;
  int rows;  // of all heads
  int columns, first_v_column;
  int head_dim, head_dim_v;
  Rows dk, dv;  // dv.data null: dk has both
};

inline constexpr int kSparseStoreThreads = 256;

}  // namespace strobe::auxiliary
