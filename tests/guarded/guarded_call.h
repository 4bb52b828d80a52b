// SPDX-License-Identifier: Apache-2.0
// A call on copies of its tensors that lie between pages without access, in other layouts, with canaries in the gaps.
#pragma once

#include <cstddef>
#include <deque>
#include <type_traits>
#include <vector>

#include "attention/guarded_tensor.h"
#include "call/tensors.h"
#include "strobe/merge.h"

namespace strobe::test {

/// Where a call's tensors stand in its arguments.
struct CallTensors {
  std::vector<ConstTensorView*> inputs;
  std::vector<TensorView*> outputs;
};

template <class Arguments>
CallTensors tensors_of(Arguments& arguments) {
  CallTensors tensors;
  for_each_tensor(arguments, [&]<class View>(const CallTensor&, View& view) {
    if constexpr (std::is_same_v<View, TensorView>) {
      tensors.outputs.push_back(&view);
    } else {
      tensors.inputs.push_back(&view);
    }
  });
  return tensors;
}

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
