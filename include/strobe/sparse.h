// SPDX-License-Identifier: Apache-2.0
// Attention over lists: each query reads the keys that a list names, out of one or two caches, whose rows have any
// format.
//
// Sources: DeepSeek-AI, "DeepSeek-V3.2-Exp" (2025): tokens chosen by an indexer; Yuan et al., "Native sparse attention"
// (2025): blocks of keys; DeepSeek-AI, FlashMLA: indices into a pool, and two caches in a call.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "strobe/attention.h"
#include "strobe/export.h"
#include "strobe/row_format.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe {

/// @experimental
inline constexpr int kMaxSparseSources = 2;

/// Keys and values, and which of them each query reads. All integers are int32, and all tensors are on q's device.
///
/// A number in `indices` names a key of the query's own sequence, or with block_size a run of keys:
/// block_size * i to block_size * (i + 1) - 1, as far as the sequence has them. -1 names nothing. A key that is named
/// twice counts twice. Rows that no list names are not read, whatever they hold. @experimental
struct SparseSource {
  // k [batch, seqlen_k, heads_kv, head_dim] or, packed, [total_k, heads_kv, head_dim]; with page_table or in_pool
  // [num_pages, page_size, heads_kv, head_dim]. float32, float16 or bfloat16, whatever q is; or, with k_format, uint8
  // [.., row_bytes]. v likewise; not given: V is the first head_dim_v columns of the rows of K.
  ConstTensorView k{};
  ConstTensorView v{};
  RowFormat k_format{};  // of no parts: none
  RowFormat v_format{};
  // [batch, seqlen_q, heads, topk], or packed [total_q, heads, topk]: heads is heads_kv, or 1 where all heads of a
  // query share a list.
  ConstTensorView indices{};
  ConstTensorView
      topk_length{};            // optional, [batch, seqlen_q] or [total_q]: how many of each list count; from 0 to topk
  std::int64_t block_size = 1;  // keys that a number names: 1, 16, 32, 64 or 128
  ConstTensorView cu_seqlens_k{};  // [batch + 1]: where each sequence of a packed k begins; not given: all are one
  ConstTensorView page_table{};    // optional, [batch, max_pages]: row r is row r % page_size of page r / page_size
  ConstTensorView seqused_k{};     // optional, [batch]: the keys that a sequence has; not with in_pool
  // Indices are those of rows of the pool, page * page_size + row, whatever the sequence.
  bool in_pool = false;
  // A query sees no key behind its own position, counted so that the last query is at the last key: such keys are left
  // out, also within a block. Not with in_pool.
  bool causal = false;
};

/// @experimental
struct SparseOptions {
  std::optional<float> scale{};  // 1 / sqrt(head_dim) when not given
  float softcap = 0.0F;          // s -> softcap * tanh(s / softcap) after scaling; 0 turns it off
};

/// The tensors of a forward. Every element of o and lse is written: a query that reads no key has O = 0 and LSE = -inf,
/// or with a sink LSE = sink. Outputs must not overlap any other tensor. @experimental
struct SparseForwardArguments {
  // [batch, seqlen_q, heads_q, head_dim] or, packed, [total_q, heads_q, head_dim]; float32, float16 or bfloat16.
  // heads_q is a multiple of heads_kv; head_dim is at most kMaxRowColumns.
  ConstTensorView q{};
  // One softmax goes over the keys of all that are given, from the first on: whose k is. Their heads_kv are equal.
  std::array<SparseSource, kMaxSparseSources> sources{};
  TensorView o{};                  // [.., heads_q, head_dim_v], of q's dtype
  TensorView lse{};                // optional: float32 [batch, heads_q, seqlen_q] or packed [heads_q, total_q]
  ConstTensorView sink{};          // optional: float32 [heads_q], a logit that joins every row without a value
  ConstTensorView cu_seqlens_q{};  // [batch + 1], of packed q; not given: all queries are of one sequence
};

/// O = softmax(softcap(scale * Q K^T)) V over the listed keys. The heads of a query that share a list read each row
/// once; rows are converted to float32, in which everything is computed. The same call has the same bits every time,
/// whatever the threads. The lists are read where they are: there is no plan.
///
/// Reads of `execution` the engine, stream, threads and parallel_for. invalid_argument, with nothing written, for
/// tensors that contradict the descriptions above and, on the CPU, for numbers out of range: indices below -1 or beyond
/// the keys, lengths, pages. On a GPU such numbers name nothing, unless the environment has STROBE_CHECK_VALUES=1, and
/// it returns once its kernels are queued on execution.stream; there rows in a format, and those of another dtype than
/// q's, are rounded to q's dtype first, and unsupported are formats and strides as docs/sparse.md says. @experimental
STROBE_API Status sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options = {},
                                 const Execution& execution = {});

/// Which engine and kernels sparse_forward() takes for such a call, and how it reads the rows of each source, in a few
/// lines of text, without running it: no memory of a tensor is read, and `data` may be null. On a GPU the kernels are
/// loaded, or compiled. Fails as sparse_forward() does. @experimental
STROBE_API Result<std::string> explain_sparse_forward(const SparseForwardArguments& arguments,
                                                      const SparseOptions& options = {},
                                                      const Execution& execution = {});

/// Where the gradients of a source's k and v go: of their shapes and dtypes. Every element is written, zeros to rows
/// that no list names. Without v, dv is not given either, and dk has both gradients. @experimental
struct SparseSourceGradient {
  TensorView dk{};
  TensorView dv{};
};

/// The tensors of a backward. Sources are float32, float16 or bfloat16 without a format, batched or packed, not in
/// pages or pools. Outputs must not overlap any other tensor. @experimental
struct SparseBackwardArguments {
  SparseForwardArguments forward{};  // with o and lse as the forward wrote them
  ConstTensorView d_o{};             // of o's shape and dtype
  ConstTensorView d_lse{};           // optional: the gradient with respect to lse, of its shape
  TensorView dq{};                   // of q's shape and dtype
  std::array<SparseSourceGradient, kMaxSparseSources> gradients{};
  TensorView d_sink{};  // optional: float32 [heads_q]
};

/// dQ, dK, dV and the sink's gradient. Sums are float32; a row of dK or dV adds up what the queries that list it give,
/// in the order of the queries and of their lists: the same call has the same bits every time, whatever the threads.
/// Memory beside the tensors: the gradients of K and V in float32, and up to 64 MiB of weights, on GPUs 256 MiB or
/// what one query needs, the whole rounded up to a power of two.
///
/// invalid_argument as sparse_forward(), and for formats, pages and pools, which are forward alone. unsupported on
/// GPUs: float32, and dtypes of k and v other than q's. @experimental
STROBE_API Status sparse_backward(const SparseBackwardArguments& arguments, const SparseOptions& options = {},
                                  const Execution& execution = {});

}  // namespace strobe
