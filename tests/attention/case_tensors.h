// SPDX-License-Identifier: Apache-2.0
// The tensors of a case, in host memory, and its calls with them.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <vector>

#include "attention_case.h"

namespace strobe::test {

/// Inputs are drawn from the case's seed. Rows that no sequence uses, keys that no query sees, queries that see no key
/// and biases of hidden pairs hold NaN; outputs are NaN all over.
class CaseTensors {
 public:
  /// Where a call finds a tensor: as it stands, or a copy of its memory on another device.
  using Place = std::function<TensorView(const GuardedTensor&)>;

  explicit CaseTensors(const AttentionCase& attention);
  CaseTensors(const CaseTensors&) = delete;
  CaseTensors& operator=(const CaseTensors&) = delete;

  ForwardArguments forward_arguments(const Place& place = in_host_memory) const;
  BackwardArguments backward_arguments(const Place& place = in_host_memory) const;

  /// What the calls read and write: tensors that the case lacks are not among them.
  std::vector<GuardedTensor*> inputs();
  std::vector<GuardedTensor*> forward_outputs();
  std::vector<GuardedTensor*> backward_outputs();

  GuardedTensor q, k, v, qv, o, lse, max_logits, d_o, d_lse, dq, dk, dv, dqv;
  GuardedTensor alibi_slopes, bias, sink, block_mask, tree_mask, d_bias, d_sink;
  std::vector<GuardedTensor> captures, d_captures;  // of the case's text; not given where it wants no gradient
  GuardedTensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, offset_q, offset_k;

 private:
  static TensorView in_host_memory(const GuardedTensor& tensor) { return tensor.view(); }

  GuardedTensor make(DType dtype, const std::vector<std::int64_t>& shape);
  GuardedTensor make_rows(const SideLengths& side, std::int64_t heads, std::int64_t head_dim);
  GuardedTensor make_lse();
  GuardedTensor make_lengths(const std::vector<std::int32_t>& lengths);
  std::vector<std::int64_t> shared_shape(const Sharing& sharing, std::int64_t rows, std::int64_t columns) const;
  void make_modifiers();
  void fill_inputs();
  void fill_modifiers();
  void fill_tree();
  void make_text();
  void forget_hidden();
  Sequences sequences(const Place& place) const;
  ScoreModifiers modifiers(const Place& place) const;

  std::optional<ScoreFunction> function_;
  // What the arguments of calls point to.
  mutable std::list<std::vector<ConstTensorView>> capture_views_;
  mutable std::list<std::vector<TensorView>> gradient_views_;
  AttentionCase case_;
  Random random_;
};

}  // namespace strobe::test
