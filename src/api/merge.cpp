// SPDX-License-Identifier: Apache-2.0
#include "strobe/merge.h"

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/call_memory.h"
#include "api/choose_engine.h"
#include "api/guarded.h"
#include "api/tensor_checks.h"
#include "call/limits.h"

namespace strobe {
namespace {

using api::NamedTensor;

constexpr std::string_view kLayout = "[batch, seqlen_q, heads_q, head_dim_v]";
constexpr std::string_view kPackedLayout = "[total_q, heads_q, head_dim_v]";

Status check_float(const NamedTensor& tensor) {
  const DType dtype = tensor.view.dtype;
  if (dtype == DType::float32 || dtype == DType::float16 || dtype == DType::bfloat16) return {};
  return api::invalid("{} is {}: it must be float32, float16 or bfloat16", tensor.name, name_of(dtype));
}

/// An O of the call, of the first part's shape.
Status check_o(const NamedTensor& o, const ConstTensorView& first) {
  const bool packed = first.rank == 3;
  const auto& s = first.shape;
  return api::first_failure([&] { return api::check_layout(o, packed ? 3 : 4, packed ? kPackedLayout : kLayout); },
                            [&] { return check_float(o); }, [&] { return api::check_device(o, first.device); },
                            [&] {
                              return packed ? api::check_shape(o, {s[0], s[1], s[2]}, kPackedLayout)
                                            : api::check_shape(o, {s[0], s[1], s[2], s[3]}, kLayout);
                            });
}

Status check_lse(const NamedTensor& lse, const ConstTensorView& first) {
  const bool packed = first.rank == 3;
  const auto& s = first.shape;
  const std::string_view layout = packed ? "[heads_q, total_q]" : "[batch, heads_q, seqlen_q]";
  return api::first_failure(
      [&] { return api::check_layout(lse, packed ? 2 : 3, layout); },
      [&] { return api::check_dtype(lse, DType::float32, ""); }, [&] { return api::check_device(lse, first.device); },
      [&] {
        return packed ? api::check_shape(lse, {s[1], s[0]}, layout) : api::check_shape(lse, {s[0], s[2], s[1]}, layout);
      });
}

/// The names that messages call a part's tensors by.
struct PartNames {
  explicit PartNames(std::size_t index)
      : o(fmt::format("parts[{}].o", index)), lse(fmt::format("parts[{}].lse", index)) {}
  std::string o, lse;
};

struct GradientNames {
  explicit GradientNames(std::size_t index)
      : d_o(fmt::format("gradients[{}].d_o", index)), d_lse(fmt::format("gradients[{}].d_lse", index)) {}
  std::string d_o, d_lse;
};

/// Of the parts that are merged.
Status check_parts(std::span<const PartialResult> parts) {
  const auto count = static_cast<std::int64_t>(parts.size());
  if (count < 1 || count > kMaxMergedParts) {
    return api::invalid("{} parts are given: a merge takes from 1 to {}", count, kMaxMergedParts);
  }
  const ConstTensorView& first = parts.front().o;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const PartNames names(i);
    Status status =
        api::first_failure([&] { return check_o({names.o, parts[i].o}, first); },
                           [&] { return api::check_dtype({names.o, parts[i].o}, first.dtype, ", as parts[0].o is"); },
                           [&] { return check_lse({names.lse, parts[i].lse}, first); });
    if (!status.ok()) return status;
  }
  const auto last_axis = static_cast<std::size_t>(first.rank - 1);
  if (const std::int64_t columns = first.shape[last_axis]; columns < 1 || columns > kMaxHeadDimV) {
    return api::invalid("parts[0].o has {} columns: a head_dim must be from 1 to {}", columns, kMaxHeadDimV);
  }
  return {};
}

Status check_shapes(const MergeArguments& a) {
  if (Status status = check_parts(a.parts); !status.ok()) return status;
  const ConstTensorView& first = a.parts.front().o;
  return api::first_failure([&] { return check_o({"o", a.o}, first); },
                            [&] { return api::check_distinct_elements({"o", a.o}); },
                            [&] { return a.lse.given() ? check_lse({"lse", a.lse}, first) : Status(); },
                            [&] { return a.lse.given() ? api::check_distinct_elements({"lse", a.lse}) : Status(); });
}

/// Pointers, and outputs apart from one another and from the parts.
Status check_memory(const MergeArguments& a) {
  const auto check_output = [&](const NamedTensor& output) -> Status {
    if (Status status = api::check_data(output); !status.ok()) return status;
    for (std::size_t i = 0; i < a.parts.size(); ++i) {
      const PartNames names(i);
      Status status = api::first_failure([&] { return api::check_data({names.o, a.parts[i].o}); },
                                         [&] { return api::check_data({names.lse, a.parts[i].lse}); },
                                         [&] { return api::check_apart(output, {names.o, a.parts[i].o}); },
                                         [&] { return api::check_apart(output, {names.lse, a.parts[i].lse}); });
      if (!status.ok()) return status;
    }
    return {};
  };
  Status status = check_output({"o", a.o});
  if (!status.ok() || !a.lse.given()) return status;
  return api::first_failure([&] { return check_output({"lse", a.lse}); },
                            [&] { return api::check_apart({"lse", a.lse}, {"o", a.o}); });
}

Status run(const MergeArguments& arguments, const Execution& execution) {
  const Result<const engine::Implementation*> chosen =
      api::engine_for(check_shapes(arguments), arguments.o.device, execution);
  if (!chosen.ok()) return chosen.status();
  const Status status = check_memory(arguments);
  return status.ok() ? (*chosen)->merge(arguments, execution) : status;
}

Status check_shapes(const MergeBackwardArguments& a) {
  if (Status status = check_parts(a.parts); !status.ok()) return status;
  const ConstTensorView& first = a.parts.front().o;
  if (a.gradients.size() != a.parts.size()) {
    return api::invalid("{} gradients are given for {} parts: give one for each", a.gradients.size(), a.parts.size());
  }
  Status status = api::first_failure([&] { return check_o({"d_o", a.d_o}, first); },
                                     [&] { return a.d_lse.given() ? check_lse({"d_lse", a.d_lse}, first) : Status(); });
  for (std::size_t i = 0; i < a.gradients.size() && status.ok(); ++i) {
    const GradientNames names(i);
    const NamedTensor d_o{names.d_o, a.gradients[i].d_o};
    const NamedTensor d_lse{names.d_lse, a.gradients[i].d_lse};
    const DType dtype = a.gradients.front().d_o.dtype;
    status = api::first_failure(
        [&] { return check_o(d_o, first); }, [&] { return api::check_dtype(d_o, dtype, ", as gradients[0].d_o is"); },
        [&] { return api::check_distinct_elements(d_o); }, [&] { return check_lse(d_lse, first); },
        [&] { return api::check_distinct_elements(d_lse); });
  }
  return status;
}

/// Pointers, and outputs apart from one another and from what is read.
Status check_memory(const MergeBackwardArguments& a) {
  api::CallMemory memory;
  for (std::size_t i = 0; i < a.parts.size(); ++i) {
    const GradientNames of_part(i);
    memory.add_output(of_part.d_o, a.gradients[i].d_o);
    memory.add_output(of_part.d_lse, a.gradients[i].d_lse);
  }
  memory.add_input("d_o", a.d_o);
  memory.add_input("d_lse", a.d_lse);
  for (std::size_t i = 0; i < a.parts.size(); ++i) {
    const PartNames of_part(i);
    memory.add_input(of_part.o, a.parts[i].o);
    memory.add_input(of_part.lse, a.parts[i].lse);
  }
  return memory.check();
}

Status run(const MergeBackwardArguments& arguments, const Execution& execution) {
  const Result<const engine::Implementation*> chosen =
      api::engine_for(check_shapes(arguments), arguments.d_o.device, execution);
  if (!chosen.ok()) return chosen.status();
  const Status status = check_memory(arguments);
  return status.ok() ? (*chosen)->merge_backward(arguments, execution) : status;
}

}  // namespace

Status merge(const MergeArguments& arguments, const Execution& execution) {
  return api::guarded([&] { return run(arguments, execution); });
}

Status merge_backward(const MergeBackwardArguments& arguments, const Execution& execution) {
  return api::guarded([&] { return run(arguments, execution); });
}

}  // namespace strobe
