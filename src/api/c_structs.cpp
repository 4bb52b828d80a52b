// SPDX-License-Identifier: Apache-2.0
#include "api/c_structs.h"

#include <algorithm>
#include <array>
#include <utility>

#include "api/c_tensors.h"
#include "call/limits.h"
#include "call/tensors.h"

namespace strobe::api {
namespace {

Status check_enum(std::int32_t value, std::int32_t last, std::string_view name) {
  if (value >= 0 && value <= last) return {};
  return invalid("{} is {}: it must be from 0 to {}", name, value, last);
}

template <class Pointer>
Status read_view(const strobe_tensor& from, std::string_view name, BasicTensorView<Pointer>& to) {
  if (from.rank == 0) return {};
  if (from.rank < 0 || from.rank > STROBE_MAX_RANK) {
    return invalid("{} has rank {}: it must be from 1 to {}, or 0 for not given", name, from.rank, STROBE_MAX_RANK);
  }
  Status status =
      first_failure([&] { return check_enum(from.dtype, STROBE_INT64, fmt::format("{}.dtype", name)); },
                    [&] { return check_enum(from.device_type, STROBE_CUDA, fmt::format("{}.device_type", name)); });
  if (!status.ok()) return status;
  to.data = from.data;
  to.dtype = static_cast<DType>(from.dtype);
  to.device = {static_cast<DeviceType>(from.device_type), from.device_index};
  to.rank = from.rank;
  std::copy_n(from.shape, from.rank, to.shape.begin());
  std::copy_n(from.strides, from.rank, to.strides.begin());
  return {};
}

/// In the order of for_each_tensor(): where `Struct` has the tensors of its call. 0, where its size lies, for one that
/// it lacks.
template <class Struct, class Arguments>
constexpr auto tensor_offsets() {
  std::array<std::size_t, tensor_count<Arguments>()> offsets{};
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const auto* const found = std::ranges::find(kCTensors<Struct>, kTensors<Arguments>[i].name, &CTensor::name);
    if (found != kCTensors<Struct>.end()) offsets[i] = found->offset;
  }
  return offsets;
}

template <class Struct, class Arguments>
Status read_tensors(const Struct& from, Arguments& to) {
  static constexpr auto kOffsets = tensor_offsets<Struct, Arguments>();
  const auto* const bytes = reinterpret_cast<const std::byte*>(&from);
  const std::size_t* offset = kOffsets.data();
  return check_each_tensor(to, [&](const CallTensor& tensor, auto& view) -> Status {
    const std::size_t at = *offset++;
    return at == 0 ? Status() : read_view(*reinterpret_cast<const strobe_tensor*>(bytes + at), tensor.name, view);
  });
}

void read_bounds(const strobe_sequences& from, Sequences& to) {
  to.max_seqlen_q = from.max_seqlen_q == 0 ? -1 : from.max_seqlen_q;
  to.max_seqlen_k = from.max_seqlen_k == 0 ? -1 : from.max_seqlen_k;
}

/// What the arguments of all passes have beside tensors.
template <class From, class Arguments>
void read_shared(const From& from, Arguments& arguments) {
  read_bounds(from.sequences, arguments.sequences);
  if (from.modifiers.block_size != 0) arguments.modifiers.block_size = from.modifiers.block_size;
  arguments.random = {.seed = from.random.seed,
                      .offset = from.random.offset,
                      .on_device = from.random_on_device,
                      .first_batch = from.dropout_first_batch,
                      .first_head = from.dropout_first_head,
                      .heads = from.dropout_heads};
}

template <class Struct>
Result<Struct> read_given(const Struct* given, std::string_view name) {
  if (given == nullptr) return invalid("arguments is null: give a {}", name);
  return read_versioned(given, name);
}

/// `count` tensors of an array of the caller's.
template <class View>
Status read_list(const strobe_tensor* from, std::int32_t count, std::string_view name, std::vector<View>& to) {
  to.resize(static_cast<std::size_t>(count));
  Status status;
  for (std::size_t i = 0; i < to.size() && status.ok(); ++i) status = read_view(from[i], name, to[i]);
  return status;
}

/// The function of texts and its captures.
template <class Struct, class Arguments>
Status read_expression(const Struct& from, std::string_view name, ReadPass<Arguments>& to) {
  if (from.reserved != 0) return invalid("{}.reserved is {}: it must be 0", name, from.reserved);
  if (from.capture_count < 0 || from.capture_count > kMaxCaptures) {
    return invalid("{}.capture_count is {}: a call takes from 0 to {}", name, from.capture_count, kMaxCaptures);
  }
  if (from.capture_count > 0 && from.captures == nullptr) {
    return invalid("captures is null: give an array of {} tensors", from.capture_count);
  }
  if (Status status = read_list(from.captures, from.capture_count, "captures", to.captures); !status.ok()) {
    return status;
  }
  if (from.function != nullptr) to.arguments.modifiers.function = &from.function->function;
  to.arguments.modifiers.captures = to.captures;
  return {};
}

}  // namespace

Result<TensorView> read_tensor(const strobe_tensor* given, std::string_view name) {
  if (given == nullptr) return invalid("{} is null: give a strobe_tensor", name);
  TensorView view;
  if (Status status = read_view(*given, name, view); !status.ok()) return status;
  return view;
}

Result<AttentionOptions> read_options(const strobe_options* given) {
  const Result<strobe_options> from = read_versioned(given, "strobe_options");
  if (!from.ok()) return from.status();
  if (Status status = check_enum(from->causal, STROBE_CAUSAL_TOP_LEFT, "causal"); !status.ok()) return status;
  if (Status status = check_enum(from->row_invariant, 1, "row_invariant"); !status.ok()) return status;
  if (Status status = check_enum(from->normalize, STROBE_NORMALIZE_NONE, "normalize"); !status.ok()) return status;
  if (from->reserved != 0) return invalid("strobe_options.reserved is {}: it must be 0", from->reserved);
  AttentionOptions options;
  if (from->has_scale != 0) options.scale = from->scale;
  options.causal = static_cast<CausalMask>(from->causal);
  if (from->has_window != 0) options.window = {from->window_left, from->window_right};
  options.chunk = from->chunk;
  options.softcap = from->softcap;
  options.dropout = from->dropout;
  options.deterministic = from->deterministic != 0;
  options.row_invariant = from->row_invariant != 0;
  options.log_length = from->log_length;
  options.normalize = static_cast<Normalization>(from->normalize);
  return options;
}

Result<ReadPass<ForwardArguments>> read_arguments(const strobe_forward_arguments* given) {
  constexpr std::string_view kName = "strobe_forward_arguments";
  const Result<strobe_forward_arguments> from = read_given(given, kName);
  if (!from.ok()) return from.status();
  if (from->v_rotation.reserved != 0) {
    return invalid("strobe_rotation.reserved is {}: it must be 0", from->v_rotation.reserved);
  }
  ReadPass<ForwardArguments> read;
  Status status = first_failure([&] { return read_tensors(*from, read.arguments); },
                                [&] { return read_expression(*from, kName, read); });
  if (!status.ok()) return status;
  read_shared(*from, read.arguments);
  read.arguments.v_rotation = {from->v_rotation.given != 0, from->v_rotation.seed};
  return read;
}

Result<ReadPass<BackwardArguments>> read_arguments(const strobe_backward_arguments* given) {
  constexpr std::string_view kName = "strobe_backward_arguments";
  const Result<strobe_backward_arguments> from = read_given(given, kName);
  if (!from.ok()) return from.status();
  ReadPass<BackwardArguments> read;
  Status status = first_failure([&] { return read_tensors(*from, read.arguments); },
                                [&] { return read_expression(*from, kName, read); });
  if (status.ok() && from->d_captures != nullptr) {
    status = read_list(from->d_captures, from->capture_count, "d_captures", read.d_captures);
  }
  if (!status.ok()) return status;
  read_shared(*from, read.arguments);
  read.arguments.d_captures = read.d_captures;
  return read;
}

Result<JvpArguments> read_arguments(const strobe_jvp_arguments* given) {
  const Result<strobe_jvp_arguments> from = read_given(given, "strobe_jvp_arguments");
  if (!from.ok()) return from.status();
  JvpArguments arguments;
  if (Status status = read_tensors(*from, arguments); !status.ok()) return status;
  read_shared(*from, arguments);
  return arguments;
}

Result<ScoreFunction> read_function(const char* score, const char* mask, const strobe_capture_type* captures,
                                    std::int32_t count) {
  if (count < 0 || count > kMaxCaptures) {
    return invalid("capture_count is {}: a call takes from 0 to {}", count, kMaxCaptures);
  }
  if (count > 0 && captures == nullptr) return invalid("captures is null: give an array of {} types", count);
  std::vector<CaptureType> types;
  for (std::int32_t i = 0; i < count; ++i) {
    if (captures[i].name == nullptr) return invalid("the name of capture {} is null", i);
    if (Status status = check_enum(captures[i].dtype, STROBE_INT64, "the dtype of a capture"); !status.ok()) {
      return status;
    }
    types.push_back({captures[i].name, static_cast<DType>(captures[i].dtype), captures[i].rank});
  }
  const auto text = [](const char* given) { return given == nullptr ? std::string_view() : std::string_view(given); };
  return ScoreFunction::parse(text(score), text(mask), std::move(types));
}

Result<QuantizeArguments> read_arguments(const strobe_quantize_arguments* given) {
  const Result<strobe_quantize_arguments> from = read_given(given, "strobe_quantize_arguments");
  if (!from.ok()) return from.status();
  QuantizeArguments arguments;
  if (Status status = read_tensors(*from, arguments); !status.ok()) return status;
  read_bounds(from->sequences, arguments.sequences);
  return arguments;
}

Result<AppendArguments> read_arguments(const strobe_append_arguments* given) {
  const Result<strobe_append_arguments> from = read_given(given, "strobe_append_arguments");
  if (!from.ok()) return from.status();
  AppendArguments arguments;
  if (Status status = read_tensors(*from, arguments); !status.ok()) return status;
  arguments.interleaved = from->interleaved != 0;
  arguments.q_in_order = from->q_at_first_position == 0;
  return arguments;
}

namespace {

/// Of either struct, whose name is given: the number of parts and what they are.
template <class Given>
Result<std::vector<PartialResult>> read_parts(const Given& from, std::string_view name) {
  if (Status status = check_enum(from.reserved, 0, fmt::format("{}.reserved", name)); !status.ok()) return status;
  if (from.parts < 0 || from.parts > kMaxMergedParts) {
    return invalid("{}.parts is {}: a merge takes from 1 to {}", name, from.parts, kMaxMergedParts);
  }
  if (from.parts > 0 && (from.part_o == nullptr || from.part_lse == nullptr)) {
    return invalid("part_o or part_lse is null: give arrays of {} tensors", from.parts);
  }
  std::vector<PartialResult> parts(static_cast<std::size_t>(from.parts));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Status status = first_failure([&] { return read_view(from.part_o[i], "part_o", parts[i].o); },
                                  [&] { return read_view(from.part_lse[i], "part_lse", parts[i].lse); });
    if (!status.ok()) return status;
  }
  return parts;
}

}  // namespace

Result<ReadMerge> read_arguments(const strobe_merge_arguments* given) {
  const Result<strobe_merge_arguments> from = read_given(given, "strobe_merge_arguments");
  if (!from.ok()) return from.status();
  Result<std::vector<PartialResult>> parts = read_parts(*from, "strobe_merge_arguments");
  if (!parts.ok()) return parts.status();
  ReadMerge merge;
  merge.parts = *std::move(parts);
  Status status = first_failure([&] { return read_view(from->o, "o", merge.o); },
                                [&] { return read_view(from->lse, "lse", merge.lse); });
  if (!status.ok()) return status;
  return merge;
}

Result<ReadMergeBackward> read_arguments(const strobe_merge_backward_arguments* given) {
  constexpr std::string_view kName = "strobe_merge_backward_arguments";
  const Result<strobe_merge_backward_arguments> from = read_given(given, kName);
  if (!from.ok()) return from.status();
  Result<std::vector<PartialResult>> parts = read_parts(*from, kName);
  if (!parts.ok()) return parts.status();
  ReadMergeBackward merge;
  merge.parts = *std::move(parts);
  if (from->parts > 0 && (from->part_d_o == nullptr || from->part_d_lse == nullptr)) {
    return invalid("part_d_o or part_d_lse is null: give arrays of {} tensors", from->parts);
  }
  merge.gradients.resize(merge.parts.size());
  Status status = first_failure([&] { return read_view(from->d_o, "d_o", merge.d_o); },
                                [&] { return read_view(from->d_lse, "d_lse", merge.d_lse); });
  for (std::size_t i = 0; i < merge.gradients.size() && status.ok(); ++i) {
    status = first_failure([&] { return read_view(from->part_d_o[i], "part_d_o", merge.gradients[i].d_o); },
                           [&] { return read_view(from->part_d_lse[i], "part_d_lse", merge.gradients[i].d_lse); });
  }
  if (!status.ok()) return status;
  return merge;
}

Result<QuantizeOptions> read_options(const strobe_quantize_options* given) {
  if (given == nullptr) return invalid("options is null: give a strobe_quantize_options");
  const Result<strobe_quantize_options> from = read_versioned(given, "strobe_quantize_options");
  if (!from.ok()) return from.status();
  Status status = first_failure([&] { return check_enum(from->element, STROBE_INT8, "element"); },
                                [&] { return check_enum(from->q_scales, STROBE_SCALE_ROW, "q_scales"); },
                                [&] { return check_enum(from->k_scales, STROBE_SCALE_ROW, "k_scales"); },
                                [&] { return check_enum(from->v_scales, STROBE_SCALE_ROW, "v_scales"); },
                                [&] { return check_enum(from->reserved, 0, "strobe_quantize_options.reserved"); });
  if (!status.ok()) return status;
  return QuantizeOptions{.element = static_cast<DType>(from->element),
                         .q_scales = static_cast<ScaleUnit>(from->q_scales),
                         .k_scales = static_cast<ScaleUnit>(from->k_scales),
                         .v_scales = static_cast<ScaleUnit>(from->v_scales),
                         .rotate_qk = from->rotate_qk != 0,
                         .rotate_v = from->rotate_v != 0,
                         .seed = from->seed,
                         .center_k = from->center_k != 0};
}

Result<ErrorBudget> read_budget(const strobe_error_budget* given) {
  const Result<strobe_error_budget> from = read_versioned(given, "strobe_error_budget");
  if (!from.ok()) return from.status();
  Status status = first_failure([&] { return check_enum(from->mode, STROBE_QUANTIZATION_ACCURATE, "mode"); },
                                [&] { return check_enum(from->reserved, 0, "strobe_error_budget.reserved"); });
  if (!status.ok()) return status;
  return ErrorBudget{static_cast<QuantizationMode>(from->mode), from->max_rmse, from->max_error};
}

Status check_plan(const strobe_quantization_plan* to) {
  if (to == nullptr) return invalid("plan is null: give a strobe_quantization_plan");
  std::size_t size = 0;
  std::memcpy(&size, to, sizeof size);
  return check_struct_size<strobe_quantization_plan>(size, "strobe_quantization_plan");
}

void write_plan(const QuantizationPlan& from, const char* explanation, strobe_quantization_plan* to) {
  strobe_quantization_plan plan{};
  std::memcpy(&plan.struct_size, to, sizeof plan.struct_size);
  const QuantizeOptions& options = from.options;
  plan.options = {.struct_size = sizeof plan.options,
                  .element = static_cast<std::int32_t>(options.element),
                  .q_scales = static_cast<std::int32_t>(options.q_scales),
                  .k_scales = static_cast<std::int32_t>(options.k_scales),
                  .v_scales = static_cast<std::int32_t>(options.v_scales),
                  .rotate_qk = options.rotate_qk ? 1 : 0,
                  .rotate_v = options.rotate_v ? 1 : 0,
                  .center_k = options.center_k ? 1 : 0,
                  .reserved = 0,
                  .seed = options.seed};
  plan.rmse = from.rmse;
  plan.error_bound = from.error_bound;
  plan.measured = from.measured ? 1 : 0;
  plan.keys_per_sum = from.keys_per_sum;
  plan.explanation = explanation;
  std::memcpy(to, &plan, std::min(plan.struct_size, sizeof plan));
}

Result<ReadExecution> read_execution(const strobe_execution* given) {
  const Result<strobe_execution> from = read_versioned(given, "strobe_execution");
  if (!from.ok()) return from.status();
  if (Status status = check_enum(from->engine, STROBE_ENGINE_GPU, "engine"); !status.ok()) return status;
  ReadExecution read;
  read.execution.engine = static_cast<Engine>(from->engine);
  if (from->kernels != nullptr) read.execution.kernels = from->kernels;
  read.execution.threads = from->threads;
  read.execution.stream = from->stream;
  read.execution.workspace = from->workspace;
  read.execution.workspace_bytes = from->workspace_bytes;
  if (from->parallel_for != nullptr) {
    read.parallel_for = [run = from->parallel_for, context = from->parallel_for_context](
                            int count, const std::function<void(int)>& body) {
      const auto call = [](void* function, std::int32_t index) {
        (*static_cast<const std::function<void(int)>*>(function))(index);
      };
      run(context, count, call, const_cast<std::function<void(int)>*>(&body));
    };
  }
  if (from->allocate_workspace != nullptr) {
    read.allocate_workspace = [allocate = from->allocate_workspace, context = from->allocate_workspace_context](
                                  std::size_t bytes) { return allocate(context, bytes); };
  }
  return read;
}

}  // namespace strobe::api
