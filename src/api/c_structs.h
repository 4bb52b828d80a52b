// SPDX-License-Identifier: Apache-2.0
// The C ABI's structs as the C++ API's.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "api/tensor_checks.h"
#include "strobe/attention.h"
#include "strobe/cache.h"
#include "strobe/error_budget.h"
#include "strobe/jvp.h"
#include "strobe/merge.h"
#include "strobe/quantize.h"
#include "strobe/strobe.h"

namespace strobe::api {

/// Whether a struct of this version or another can have that size. One that is not whole words would cut a pointer.
template <class Struct>
Status check_struct_size(std::size_t size, std::string_view name) {
  if (size < sizeof(size) || size % alignof(Struct) != 0) {
    return invalid("{}.struct_size is {}: set it to sizeof({})", name, size, name);
  }
  constexpr std::size_t kLargestStruct = 1 << 16;
  if (size <= kLargestStruct) return {};
  return invalid("{}.struct_size is {}: it must be at most {}", name, size, kLargestStruct);
}

/// Reads a size-versioned struct: the fields that the caller has, zero for newer ones. Errors: a struct_size that no
/// version has, and fields beyond ours that are not zero.
template <class Struct>
Result<Struct> read_versioned(const Struct* from, std::string_view name) {
  Struct own{};
  if (from == nullptr) return own;
  std::size_t given = 0;
  std::memcpy(&given, from, sizeof(given));
  if (Status status = check_struct_size<Struct>(given, name); !status.ok()) return status;
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (std::size_t i = sizeof(Struct); i < given; ++i) {
    if (bytes[i] != 0) {
      return unsupported("{} has a field at byte {} that this version of the library does not know: it must be zero",
                         name, i);
    }
  }
  std::memcpy(&own, from, given < sizeof(Struct) ? given : sizeof(Struct));
  return own;
}

Result<TensorView> read_tensor(const strobe_tensor* given, std::string_view name);
Result<AttentionOptions> read_options(const strobe_options* given);

/// A pass's arguments and the lists of tensors that they point to, which stay where they are when this moves.
template <class Arguments>
struct ReadPass {
  Arguments arguments;
  std::vector<ConstTensorView> captures;
  std::vector<TensorView> d_captures;
};
Result<ReadPass<ForwardArguments>> read_arguments(const strobe_forward_arguments* given);
Result<ReadPass<BackwardArguments>> read_arguments(const strobe_backward_arguments* given);
Result<JvpArguments> read_arguments(const strobe_jvp_arguments* given);
Result<QuantizeArguments> read_arguments(const strobe_quantize_arguments* given);
Result<AppendArguments> read_arguments(const strobe_append_arguments* given);
Result<QuantizeOptions> read_options(const strobe_quantize_options* given);

/// A MergeArguments and the list of parts that it points to.
struct ReadMerge {
  std::vector<PartialResult> parts;
  TensorView o;
  TensorView lse;

  MergeArguments arguments() const { return {parts, o, lse}; }
};
Result<ReadMerge> read_arguments(const strobe_merge_arguments* given);

/// Likewise of a merge's gradient.
struct ReadMergeBackward {
  std::vector<PartialResult> parts;
  std::vector<PartialGradient> gradients;
  TensorView d_o;
  TensorView d_lse;

  MergeBackwardArguments arguments() const { return {parts, d_o, d_lse, gradients}; }
};
Result<ReadMergeBackward> read_arguments(const strobe_merge_backward_arguments* given);

/// A function of texts as C has it.
Result<ScoreFunction> read_function(const char* score, const char* mask, const strobe_capture_type* captures,
                                    std::int32_t count);

Result<ErrorBudget> read_budget(const strobe_error_budget* given);

/// Whether a plan can be written to the caller's struct: its struct_size.
Status check_plan(const strobe_quantization_plan* to);

/// As many bytes of it as the caller's struct has, which check_plan() accepts; `explanation` is what it points to.
void write_plan(const QuantizationPlan& from, const char* explanation, strobe_quantization_plan* to);

/// An Execution and the adapters that its parallel_for and allocate_workspace point to.
struct ReadExecution {
  Execution execution;
  ParallelFor parallel_for;
  AllocateWorkspace allocate_workspace;
};
Result<ReadExecution> read_execution(const strobe_execution* given);

}  // namespace strobe::api

struct strobe_score_function {
  strobe::ScoreFunction function;
  std::string explanation;
};
