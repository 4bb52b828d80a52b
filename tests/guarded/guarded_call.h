// SPDX-License-Identifier: Apache-2.0
// A call on copies of its tensors that lie between pages without access, in other layouts, with canaries in the gaps.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "attention/guarded_tensor.h"
#include "strobe/attention.h"
#include "strobe/cache.h"
#include "strobe/merge.h"
#include "strobe/quantize.h"

namespace strobe::test {

/// Where a call's tensors stand in its arguments.
struct CallTensors {
  std::vector<ConstTensorView*> inputs;
  std::vector<TensorView*> outputs;
};

CallTensors tensors_of(ForwardArguments& arguments);
CallTensors tensors_of(BackwardArguments& arguments);
CallTensors tensors_of(QuantizeArguments& arguments);
CallTensors tensors_of(AppendArguments& arguments);

/// Copies of tensors, each with a page without access directly before its first byte, or directly after its last one.
class GuardedCopies {
 public:
  GuardedCopies(Guard guard, std::uint64_t seed) : guard_(guard), random_(seed) {}

  /// Makes the arguments' tensors copies; `arguments` must not move.
  void place(const CallTensors& tensors);

  /// The outputs hold, bit by bit, what the tensors hold that they were copies of and that the same call has written;
  /// the inputs are as they were, and so is every byte between and beside the elements of the outputs.
  void expect_same_results() const;

 private:
  struct Copy {
    GuardedTensor tensor;
    ConstTensorView of;
    std::vector<std::byte> before;  // of an input: all of its memory
  };

  const GuardedTensor& add(const ConstTensorView& view, bool is_input);

  Guard guard_;
  Random random_;
  std::deque<Copy> copies_;
};

}  // namespace strobe::test
