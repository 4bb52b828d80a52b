// SPDX-License-Identifier: Apache-2.0
#include "api/tensor_memory.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "api/tensor_checks.h"
#include "call/limits.h"
#include "call/tensors.h"

namespace strobe::api {
namespace {

/// The given tensors of a call that have elements, in the order in which they are added, with their pointers checked.
/// Held by address: every run of a plan comes here.
class Tensors {  // NOLINT(cppcoreguidelines-pro-type-member-init): to clear them takes as long as the checks
 public:
  Status add(const CallTensor& tensor, const ConstTensorView& view) { return add(tensor, view, &view, nullptr); }
  /// After all inputs.
  Status add(const CallTensor& tensor, const TensorView& view) { return add(tensor, view, nullptr, &view); }

  void end_inputs() { first_output_ = count_; }

  /// Outputs apart from one another and from inputs.
  Status check_outputs_apart() const {
    for (std::size_t i = first_output_; i < count_; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (tensors_[i].span.apart_from(tensors_[j].span)) continue;
        const Tensor& output = tensors_[j < first_output_ ? i : j];  // of two outputs the first is named first
        const Tensor& other = tensors_[j < first_output_ ? j : i];
        Status status = check_apart({output.tensor->name, output.view()}, {other.tensor->name, other.view()});
        if (!status.ok()) return status;
      }
    }
    return {};
  }

 private:
  struct Tensor {
    const CallTensor* tensor;
    const ConstTensorView* input;  // or null
    const TensorView* output;      // or null
    Span span;

    ConstTensorView view() const { return input != nullptr ? *input : ConstTensorView(*output); }
  };

  Status add(const CallTensor& tensor, const ConstTensorView& view, const ConstTensorView* input,
             const TensorView* output) {
    if (empty(view)) return {};
    if (!has_valid_pointer(view)) return check_data({tensor.name, view});
    tensors_[count_++] = {&tensor, input, output, Span(view)};
    return {};
  }

  static constexpr std::size_t kMost =
      std::max({tensor_count<ForwardArguments>(), tensor_count<BackwardArguments>(), tensor_count<JvpArguments>(),
                tensor_count<QuantizeArguments>(), tensor_count<AppendArguments>()}) +
      2 * kMaxCaptures;                // and their gradients
  std::array<Tensor, kMost> tensors_;  // the first count_ have values
  std::size_t count_ = 0;
  std::size_t first_output_ = 0;
};

template <class Arguments>
Status check_tensors(const Arguments& arguments) {
  Tensors tensors;
  const auto add_input = [&]<class View>(const CallTensor& tensor, const View& view) -> Status {
    if constexpr (std::is_same_v<View, ConstTensorView>) {
      if (view.given()) return tensors.add(tensor, view);
    }
    return {};
  };
  const auto add_output = [&]<class View>(const CallTensor& tensor, const View& view) -> Status {
    if constexpr (std::is_same_v<View, TensorView>) {
      if (view.given()) return tensors.add(tensor, view);
    }
    return {};
  };
  const auto add_captured = [&](const auto& add) {
    Status failure;
    for_each_captured_tensor(arguments, [&](const CallTensor& tensor, const auto& view) {
      if (failure.ok()) failure = add(tensor, view);
    });
    return failure;
  };
  return first_failure([&] { return check_each_tensor(arguments, add_input); }, [&] { return add_captured(add_input); },
                       [&] {
                         tensors.end_inputs();
                         return check_each_tensor(arguments, add_output);
                       },
                       [&] { return add_captured(add_output); }, [&] { return tensors.check_outputs_apart(); });
}

}  // namespace

Status check_tensor_memory(const ForwardArguments& arguments) { return check_tensors(arguments); }
Status check_tensor_memory(const BackwardArguments& arguments) { return check_tensors(arguments); }
Status check_tensor_memory(const JvpArguments& arguments) { return check_tensors(arguments); }
Status check_tensor_memory(const QuantizeArguments& arguments) { return check_tensors(arguments); }
Status check_tensor_memory(const AppendArguments& arguments) { return check_tensors(arguments); }

}  // namespace strobe::api
