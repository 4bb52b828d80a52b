// SPDX-License-Identifier: Apache-2.0
// Caches of keys and values that grow as sequences do: contiguous ones, and pages as servers keep them.
//
// Sources: Kwon et al., "Efficient memory management for large language model serving with PagedAttention" (2023),
// section 4.3; Su et al., "RoFormer" (2021), section 3.4.2.
#pragma once

#include "strobe/attention.h"
#include "strobe/export.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe {

/// The tensors of an append. All integers are int32, all tensors are on one device. @stable
struct AppendArguments {
  // The cache: [batch_cache, seqlen, heads_kv, head_dim] and [.., head_dim_v], or, with page_table, pages
  // [num_pages, page_size, heads_kv, head_dim] and [.., head_dim_v]. float32, float16, bfloat16, int8 or float8_e4m3.
  TensorView k_cache{};
  TensorView v_cache{};
  ConstTensorView k_new{};  // [batch, seqlen_new, heads_kv, head_dim], or packed [total_new, heads_kv, head_dim]
  ConstTensorView v_new{};  // [.., head_dim_v], of k_new's dtype: float32, float16 or bfloat16
  ConstTensorView cu_seqlens_new{};  // [batch + 1], from 0, never decreasing; given: k_new and v_new are packed
  ConstTensorView cache_seqlens{};  // [batch]: rows that each sequence has before the append, its left padding included
  // Optional, [batch, max_pages]: row j of sequence b is row j % page_size of page page_table[b][j / page_size].
  ConstTensorView page_table{};
  ConstTensorView leftpad_k{};        // optional, [batch]: the first leftpad_k[b] rows of sequence b are no keys
  ConstTensorView cache_batch_idx{};  // optional, [batch]: which entry of a contiguous cache sequence b is

  // Rotary embedding, where cos and sin are given: [seqlen_ro, rotary_dim / 2] of the angles of each position, float32,
  // float16 or bfloat16. It turns the first rotary_dim columns of keys and queries; rotary_dim is at most head_dim.
  ConstTensorView cos{};
  ConstTensorView sin{};
  bool interleaved = false;     // a pair is columns 2 i and 2 i + 1; otherwise columns i and i + rotary_dim / 2
  ConstTensorView positions{};  // optional, [batch, seqlen_new] or [total_new]: cache_seqlens - leftpad_k + i otherwise

  // Optional: queries to rotate on the way, [batch, seqlen_q, heads_q, head_dim] or packed [total_q, heads_q, head_dim]
  // with cu_seqlens_q [batch + 1], of k_new's dtype. q_out has their shape and dtype.
  ConstTensorView q{};
  TensorView q_out{};
  ConstTensorView cu_seqlens_q{};
  ConstTensorView positions_q{};  // optional, [batch, seqlen_q] or [total_q]
  // Query i of a sequence is at position cache_seqlens - leftpad_k + i; false: all of them are at that of i = 0. Not
  // read when positions_q is given.
  bool q_in_order = true;

  // Caches of int8 and float8_e4m3 take one of two kinds of scales, the same for K and V. Either scales of heads, which
  // the append reads: float32 [batch or 1, heads_kv or 1, 1], greater than 0. What is stored is x / scale in float32,
  // rounded to nearest even and limited to +-127 or +-448. NaN becomes 0 in int8.
  ConstTensorView k_descale{};
  ConstTensorView v_descale{};
  // Or scales of rows, which it computes and writes beside the rows: float32 [batch_cache, heads_kv, seqlen], of pages
  // [num_pages, heads_kv, page_size]. The scale of a row of one head is its largest magnitude, in float32 and after the
  // rotation, over 127 (int8) or 448 (float8_e4m3), at least 2^-80, as quantize() has it with ScaleUnit::row; a row of
  // zeros has 2^-80. What is stored is x / scale in float32, rounded to nearest even. A row that holds NaN or an
  // infinity is stored as zeros with the scale NaN, so that the result of a query that sees it is NaN. Scales of other
  // rows do not change. @experimental
  TensorView k_row_descale{};
  TensorView v_row_descale{};
};

/// Writes new keys and values into a cache behind the rows that its sequences have, and rotates keys and queries.
/// Rotations are computed in float32 and rounded once, to the dtype of the cache or of q_out; without rotation and with
/// equal dtypes rows are copied as they are. No other element of the cache, or of its scales, changes. The same call
/// gives the same bits every time. cache_seqlens is not changed: a forward over the longer sequences takes the new
/// lengths.
///
/// Reads of `execution` the engine, stream, threads and parallel_for; there is no workspace. invalid_argument, with
/// nothing written, for tensors that contradict the descriptions above and, on the CPU, rows that the cache does not
/// have, pages that do not exist, positions without an angle, and two sequences that would write to the same row.
/// Outputs must not overlap any other tensor.
///
/// On a GPU the call is enqueued on the stream, waits for nothing and looks at no number in the tensors. The kernel
/// does not write a row of K or V whose page, entry, row or position does not exist, or that is of no sequence; queries
/// without an angle become NaN. Where two sequences write to the same row, each element is either's. The bits are those
/// of the CPU engine, but for the sign and payload of NaNs. unsupported for more rows than a launch has blocks for.
/// @stable
STROBE_API Status append(const AppendArguments& arguments, const Execution& execution = {});

}  // namespace strobe
