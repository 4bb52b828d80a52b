// SPDX-License-Identifier: Apache-2.0
#include "guarded/guarded_call.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace strobe::test {
namespace {

std::vector<ConstTensorView*> lengths_and_modifiers(Sequences& s, ScoreModifiers& m) {
  return {&s.cu_seqlens_q,    &s.cu_seqlens_k, &s.seqused_q, &s.seqused_k, &s.leftpad_k,
          &s.cache_batch_idx, &m.alibi_slopes, &m.bias,      &m.sink,      &m.block_mask};
}

std::vector<ConstTensorView*> joined(std::vector<ConstTensorView*> all, const std::vector<ConstTensorView*>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

CallTensors tensors_of(ForwardArguments& a) {
  return {joined(lengths_and_modifiers(a.sequences, a.modifiers),
                 {&a.q, &a.k, &a.v, &a.q_descale, &a.k_descale, &a.v_descale, &a.q_shift, &a.page_table, &a.tree_mask}),
          {&a.o, &a.lse, &a.max_logits}};
}

CallTensors tensors_of(BackwardArguments& a) {
  return {joined(lengths_and_modifiers(a.sequences, a.modifiers), {&a.q, &a.k, &a.v, &a.o, &a.lse, &a.d_o, &a.d_lse}),
          {&a.dq, &a.dk, &a.dv, &a.d_bias, &a.d_sink}};
}

CallTensors tensors_of(QuantizeArguments& a) {
  return {{&a.q, &a.k, &a.v, &a.sequences.cu_seqlens_q, &a.sequences.cu_seqlens_k},
          {&a.q8, &a.k8, &a.v8, &a.q_descale, &a.k_descale, &a.v_descale, &a.q_shift}};
}

CallTensors tensors_of(AppendArguments& a) {
  return {{&a.k_new, &a.v_new, &a.cu_seqlens_new, &a.cache_seqlens, &a.page_table, &a.leftpad_k, &a.cache_batch_idx,
           &a.cos, &a.sin, &a.positions, &a.q, &a.cu_seqlens_q, &a.positions_q, &a.k_descale, &a.v_descale},
          {&a.k_cache, &a.v_cache, &a.q_out}};
}

const GuardedTensor& GuardedCopies::add(const ConstTensorView& view, bool is_input) {
  const Placement placement{
      .layout = random_.one_of({Layout::contiguous, Layout::padded, Layout::transposed, Layout::scrambled}),
      .guard = guard_,
      .alignment = 1};
  const std::vector<std::int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank);
  Copy& copy = copies_.emplace_back(Copy{{view.dtype, shape, placement, random_}, view, {}});
  copy.tensor.copy(view);
  if (is_input) copy.before.assign(copy.tensor.memory().begin(), copy.tensor.memory().end());
  return copy.tensor;
}

void GuardedCopies::place(const CallTensors& tensors) {
  for (ConstTensorView* const input : tensors.inputs) {
    if (input->given()) *input = add(*input, true).view();
  }
  for (TensorView* const output : tensors.outputs) {
    if (output->given()) *output = add(*output, false).view();
  }
}

void GuardedCopies::expect_same_results() const {
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    const Copy& copy = copies_[i];
    if (!copy.before.empty()) {
      EXPECT_TRUE(std::ranges::equal(copy.before, copy.tensor.memory())) << "input " << i << " was written";
      continue;
    }
    EXPECT_TRUE(copy.tensor.guards_intact()) << "tensor " << i << " was written beside its elements";
    EXPECT_TRUE(copy.tensor.has_the_bits_of(copy.of))
        << "tensor " << i << " is not what the same call writes in plain memory";
  }
}

}  // namespace strobe::test
