// SPDX-License-Identifier: Apache-2.0
#include "api/device_values.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <string_view>
#include <type_traits>
#include <vector>

#include "api/append.h"
#include "api/choose_engine.h"
#include "api/problem.h"
#include "api/sparse.h"
#include "call/checked.h"
#include "call/tensors.h"
#include "engine/registry.h"

namespace strobe::api {
namespace {

bool is_wanted() {
  static const bool wanted = [] {
    const char* const value = std::getenv("STROBE_CHECK_VALUES");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return wanted;
}

/// Copies of tensors, gaps included, as views with the same strides.
class HostCopies {
 public:
  HostCopies(const engine::Implementation& engine, const Execution& execution)
      : engine_(engine), execution_(execution) {}

  /// All tensors of `arguments` whose values are checked.
  template <class Arguments>
  Status replace_indices(Arguments& arguments) {
    return check_each_tensor(arguments, [&]<class View>(const CallTensor& tensor, View& view) -> Status {
      if constexpr (std::is_same_v<View, ConstTensorView>) {
        if (tensor.role == TensorRole::indices && view.given()) return replace(view);
      }
      return {};
    });
  }

  Status replace(ConstTensorView& view) {
    if (!view.given()) return {};
    Checked elements = 1;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
      if (view.shape[axis] == 0) return {};
      elements = elements + Checked(view.shape[axis] - 1) * view.strides[axis];
    }
    std::vector<std::byte>& copy =
        copies_.emplace_back((elements * static_cast<std::int64_t>(size_of(view.dtype))).value<std::size_t>());
    Status status = engine_.read_back(view.device, copy.data(), view.data, copy.size(), execution_);
    view.data = copy.data();
    return status;
  }

 private:
  const engine::Implementation& engine_;
  const Execution& execution_;
  std::deque<std::vector<std::byte>> copies_;
};

/// check(copies), where it is wanted, with copies from that device.
template <class Check>
Status check_copies(const Device& device, const Execution& execution, const Check& check) {
  if (!is_wanted()) return {};
  const Result<const engine::Implementation*> engine =
      choose_engine(engine::implementations(), device, execution.engine);
  if (!engine.ok()) return engine.status();
  HostCopies copies(**engine, execution);
  return check(copies);
}

template <class Arguments>
Status check(const AttentionProblem& problem, const Arguments& arguments, const Execution& execution) {
  if (problem.device.type == DeviceType::cpu) return {};
  return check_copies(problem.device, execution, [&](HostCopies& copies) {
    Arguments on_host = arguments;
    Status status = copies.replace_indices(on_host);
    std::vector<ConstTensorView> captures(on_host.modifiers.captures.begin(), on_host.modifiers.captures.end());
    for (ConstTensorView& capture : captures) {
      if (status.ok() && capture.dtype == DType::int64) status = copies.replace(capture);
    }
    on_host.modifiers.captures = captures;
    return status.ok() ? check_values(problem, on_host) : status;
  });
}

}  // namespace

Status check_device_values(const AttentionProblem& problem, const ForwardArguments& arguments,
                           const Execution& execution) {
  return check(problem, arguments, execution);
}

Status check_device_values(const AttentionProblem& problem, const BackwardArguments& arguments,
                           const Execution& execution) {
  return check(problem, arguments, execution);
}

Status check_device_values(const AttentionProblem& problem, const JvpArguments& arguments, const Execution& execution) {
  return check(problem, arguments, execution);
}

Status check_device_values(const SparseForwardArguments& arguments, const Execution& execution) {
  return check_copies(arguments.q.device, execution, [&](HostCopies& copies) {
    SparseForwardArguments a = arguments;
    Status status = copies.replace(a.cu_seqlens_q);
    for (SparseSource& source : a.sources) {
      for (ConstTensorView* const view :
           {&source.indices, &source.topk_length, &source.cu_seqlens_k, &source.page_table, &source.seqused_k}) {
        if (status.ok()) status = copies.replace(*view);
      }
    }
    return status.ok() ? check_sparse_values(a) : status;
  });
}

Status check_device_values(const AppendArguments& arguments, const Execution& execution) {
  return check_copies(arguments.k_cache.device, execution, [&](HostCopies& copies) {
    AppendArguments a = arguments;
    Status status = copies.replace_indices(a);
    return status.ok() ? check_append_values(a) : status;
  });
}

}  // namespace strobe::api
