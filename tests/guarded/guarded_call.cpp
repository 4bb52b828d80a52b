// SPDX-License-Identifier: Apache-2.0
#include "guarded/guarded_call.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace strobe::test {
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
