// SPDX-License-Identifier: Apache-2.0
// One attention call as plain numbers: what `api` makes of the caller's tensors and every later layer reads.
#pragma once

#include <cstdint>
#include <memory>

#include "strobe/attention.h"

namespace strobe {

enum class Pass : std::uint8_t { forward, backward, jvp };

/// Which score modifiers a call has, and what they are shared by.
struct ModifierShape {
  bool has_alibi = false;
  bool alibi_per_batch = false;  // [batch, heads_q], else [heads_q]
  bool has_bias = false;
  DType bias_dtype = DType::float32;
  bool bias_per_batch = false;  // else its extent is 1
  bool bias_per_head = false;
  bool has_sink = false;
  std::int64_t block_size = 0;  // of the block mask; 0: there is none
  bool blocks_per_batch = false;
  bool blocks_per_head = false;

  bool operator==(const ModifierShape&) const = default;
};

/// 8-bit inputs: how many rows share a scale. A row of scales may belong to every head or batch entry: then its stride
/// is 0.
struct EightBitShape {
  std::int64_t q_rows = 0;  // 0: the inputs are not 8-bit
  std::int64_t k_rows = 0;
  std::int64_t v_rows = 0;
  DType output = DType::float32;  // of o
  bool has_q_shift = false;
  bool v_rotated = false;

  bool given() const { return q_rows != 0; }
  bool operator==(const EightBitShape&) const = default;
};

/// K and V stored in 8 bits where q, and with it the computation, has another dtype: how many of their rows share a
/// scale. An element stands for the product of itself and its scale, which kernels may round to float32 and then to q's
/// dtype.
struct StoredShape {
  DType dtype = DType::float32;  // of k and v
  std::int64_t k_rows = 0;       // 0: k and v are of q's dtype
  std::int64_t v_rows = 0;

  bool given() const { return k_rows != 0; }
  bool operator==(const StoredShape&) const = default;
};

/// The score and mask that texts say.
struct ExpressionShape {
  std::shared_ptr<const expression::Formula> formula;  // null: there is none
  std::uint32_t gradients = 0;                         // a backward's: a bit for each capture whose gradient is wanted
  std::int64_t gradient_elements = 0;                  // theirs, where `deterministic` is wanted of a GPU; else 0

  // Whether the score reads captures that a call could have as its bias, gradient and all, and as its ALiBi slopes.
  bool bias_fits = false;
  bool slopes_fit = false;

  // An engine's: options of the problem say the score, or the mask, so that it is not to be looked at.
  bool score_is_option = false;
  bool mask_is_option = false;
  bool mask_is_bits = false;  // likewise, bits beside the block mask

  bool given() const { return formula != nullptr; }
  /// Texts that were parsed once are one formula.
  bool operator==(const ExpressionShape&) const = default;
};

/// Validated: extents are not negative, heads_q is a multiple of heads_kv, products of extents fit 64 bits.
struct AttentionProblem {
  Pass pass = Pass::forward;
  DType dtype = DType::float32;  // of q; of k and v unless they are stored in 8 bits; of o unless q is 8-bit
  Device device;
  std::int64_t batch = 0;
  std::int64_t heads_q = 0;
  std::int64_t heads_kv = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;
  std::int64_t seqlen_q = 0;  // batched: every sequence's length; packed: the bound on the longest
  std::int64_t seqlen_k = 0;
  std::int64_t total_q = 0;  // rows of q over the whole batch
  std::int64_t total_k = 0;
  bool packed_q = false;
  bool packed_k = false;
  bool has_seqused_q = false;
  bool has_seqused_k = false;
  std::int64_t page_size = 0;  // rows of a page of k and v; 0: they are not in pages
  bool has_leftpad_k = false;
  bool has_cache_batch_idx = false;
  bool has_tree_mask = false;  // of forwards
  bool has_qv = false;         // scores are sums of two products, of q and k and of qv and v
  bool has_offsets = false;    // sequences are parts of longer ones: offset_q, offset_k or both are given
  float scale = 0.0F;
  CausalMask causal = CausalMask::none;
  Window window;
  std::int64_t chunk = 0;
  float softcap = 0.0F;
  std::int64_t log_length = 0;  // 0: scores have no factor of their sequence's length, or `scale` has it already
  float dropout = 0.0F;
  bool deterministic = false;
  bool row_invariant = false;  // read by forwards alone
  Normalization normalize = Normalization::softmax;
  ModifierShape modifiers;
  EightBitShape eight_bit;
  StoredShape stored;
  ExpressionShape expression;
  bool wants_lse = false;
  bool wants_max_logits = false;
  bool has_d_lse = false;
  bool wants_d_bias = false;
  bool wants_d_sink = false;

  bool operator==(const AttentionProblem&) const = default;
};

/// Whether rows of P are divided by their sums, which LSE is the logarithm of.
inline bool is_normalized(const AttentionProblem& problem) { return problem.normalize == Normalization::softmax; }

/// Columns of qv; 0: there is none.
inline std::int64_t qv_columns(const AttentionProblem& problem) { return problem.has_qv ? problem.head_dim_v : 0; }

/// Of k and v.
inline DType stored_dtype(const AttentionProblem& problem) {
  return problem.stored.given() ? problem.stored.dtype : problem.dtype;
}

inline DType output_dtype(const AttentionProblem& problem) {
  return problem.eight_bit.given() ? problem.eight_bit.output : problem.dtype;
}

}  // namespace strobe
