// SPDX-License-Identifier: Apache-2.0
#include "api/device_values.h"

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "api/append.h"
#include "api/choose_engine.h"
#include "api/problem.h"
#include "call/checked.h"
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

/// Copies of int32 tensors, gaps included, as views with the same strides.
class HostCopies {
 public:
  HostCopies(const engine::Implementation& engine, const Execution& execution)
      : engine_(engine), execution_(execution) {}

  Status replace(std::initializer_list<ConstTensorView*> views) {
    for (ConstTensorView* const view : views) {
      if (!view->given()) continue;
      if (Status status = replace(*view); !status.ok()) return status;
    }
    return {};
  }

 private:
  Status replace(ConstTensorView& view) {
    Checked elements = 1;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
      if (view.shape[axis] == 0) return {};
      elements = elements + Checked(view.shape[axis] - 1) * view.strides[axis];
    }
    std::vector<std::int32_t>& copy = copies_.emplace_back(elements.value<std::size_t>());
    Status status =
        engine_.read_back(view.device, copy.data(), view.data, copy.size() * sizeof(std::int32_t), execution_);
    view.data = copy.data();
    return status;
  }

  const engine::Implementation& engine_;
  const Execution& execution_;
  std::deque<std::vector<std::int32_t>> copies_;
};

Status replace_lengths(HostCopies& copies, Sequences& s) {
  return copies.replace(
      {&s.cu_seqlens_q, &s.cu_seqlens_k, &s.seqused_q, &s.seqused_k, &s.leftpad_k, &s.cache_batch_idx});
}

Status replace_values(HostCopies& copies, ForwardArguments& a) {
  Status status = replace_lengths(copies, a.sequences);
  return status.ok() ? copies.replace({&a.page_table}) : status;
}

Status replace_values(HostCopies& copies, BackwardArguments& a) { return replace_lengths(copies, a.sequences); }

template <class Arguments>
Status check(const AttentionProblem& problem, const Arguments& arguments, const Execution& execution) {
  if (problem.device.type == DeviceType::cpu || !is_wanted()) return {};
  const Result<const engine::Implementation*> engine =
      choose_engine(engine::implementations(), problem.device, execution.engine);
  if (!engine.ok()) return engine.status();
  HostCopies copies(**engine, execution);
  Arguments on_host = arguments;
  Status status = replace_values(copies, on_host);
  return status.ok() ? check_values(problem, on_host) : status;
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

Status check_device_values(const AppendArguments& arguments, const Execution& execution) {
  if (!is_wanted()) return {};
  const Result<const engine::Implementation*> engine =
      choose_engine(engine::implementations(), arguments.k_cache.device, execution.engine);
  if (!engine.ok()) return engine.status();
  HostCopies copies(**engine, execution);
  AppendArguments a = arguments;
  Status status = copies.replace({&a.cu_seqlens_new, &a.cache_seqlens, &a.page_table, &a.leftpad_k, &a.cache_batch_idx,
                                  &a.positions, &a.cu_seqlens_q, &a.positions_q});
  return status.ok() ? check_append_values(a) : status;
}

}  // namespace strobe::api
