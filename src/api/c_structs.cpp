// SPDX-License-Identifier: Apache-2.0
#include "api/c_structs.h"

#include <algorithm>

namespace strobe::api {
namespace {

Status check_enum(std::int32_t value, std::int32_t last, std::string_view name) {
  if (value >= 0 && value <= last) return {};
  return invalid("{} is {}: it must be from 0 to {}", name, value, last);
}

/// Reads tensors into views, keeping the first failure.
class TensorReader {
 public:
  template <class Pointer>
  void read(const strobe_tensor& from, std::string_view name, BasicTensorView<Pointer>& to) {
    if (!status_.ok() || from.rank == 0) return;
    status_ = check(from, name);
    if (!status_.ok()) return;
    to.data = from.data;
    to.dtype = static_cast<DType>(from.dtype);
    to.device = {static_cast<DeviceType>(from.device_type), from.device_index};
    to.rank = from.rank;
    std::copy_n(from.shape, from.rank, to.shape.begin());
    std::copy_n(from.strides, from.rank, to.strides.begin());
  }

  void read(const strobe_sequences& from, Sequences& to) {
    read(from.cu_seqlens_q, "cu_seqlens_q", to.cu_seqlens_q);
    read(from.cu_seqlens_k, "cu_seqlens_k", to.cu_seqlens_k);
    read(from.seqused_q, "seqused_q", to.seqused_q);
    read(from.seqused_k, "seqused_k", to.seqused_k);
    to.max_seqlen_q = from.max_seqlen_q == 0 ? -1 : from.max_seqlen_q;
    to.max_seqlen_k = from.max_seqlen_k == 0 ? -1 : from.max_seqlen_k;
  }

  void read(const strobe_score_modifiers& from, ScoreModifiers& to) {
    read(from.alibi_slopes, "alibi_slopes", to.alibi_slopes);
    read(from.bias, "bias", to.bias);
    read(from.sink, "sink", to.sink);
    read(from.block_mask, "block_mask", to.block_mask);
    if (from.block_size != 0) to.block_size = from.block_size;
  }

  const Status& status() const { return status_; }

 private:
  static Status check(const strobe_tensor& tensor, std::string_view name) {
    if (tensor.rank < 0 || tensor.rank > STROBE_MAX_RANK) {
      return invalid("{} has rank {}: it must be from 1 to {}, or 0 for not given", name, tensor.rank, STROBE_MAX_RANK);
    }
    if (Status status = check_enum(tensor.dtype, STROBE_INT64, fmt::format("{}.dtype", name)); !status.ok()) {
      return status;
    }
    return check_enum(tensor.device_type, STROBE_CUDA, fmt::format("{}.device_type", name));
  }

  Status status_;
};

/// What the arguments of both passes have.
template <class From, class Arguments>
void read_shared(const From& from, TensorReader& reader, Arguments& arguments) {
  reader.read(from.q, "q", arguments.q);
  reader.read(from.k, "k", arguments.k);
  reader.read(from.v, "v", arguments.v);
  reader.read(from.sequences, arguments.sequences);
  reader.read(from.modifiers, arguments.modifiers);
  arguments.random = {from.random.seed, from.random.offset, from.random_on_device};
}

}  // namespace

Result<TensorView> read_tensor(const strobe_tensor* given, std::string_view name) {
  if (given == nullptr) return invalid("{} is null: give a strobe_tensor", name);
  TensorView view;
  TensorReader reader;
  reader.read(*given, name, view);
  if (!reader.status().ok()) return reader.status();
  return view;
}

Result<AttentionOptions> read_options(const strobe_options* given) {
  const Result<strobe_options> from = read_versioned(given, "strobe_options");
  if (!from.ok()) return from.status();
  if (Status status = check_enum(from->causal, STROBE_CAUSAL_TOP_LEFT, "causal"); !status.ok()) return status;
  if (Status status = check_enum(from->row_invariant, 1, "row_invariant"); !status.ok()) return status;
  AttentionOptions options;
  if (from->has_scale != 0) options.scale = from->scale;
  options.causal = static_cast<CausalMask>(from->causal);
  if (from->has_window != 0) options.window = {from->window_left, from->window_right};
  options.chunk = from->chunk;
  options.softcap = from->softcap;
  options.dropout = from->dropout;
  options.deterministic = from->deterministic != 0;
  options.row_invariant = from->row_invariant != 0;
  return options;
}

Result<ForwardArguments> read_arguments(const strobe_forward_arguments* given) {
  if (given == nullptr) return invalid("arguments is null: give a strobe_forward_arguments");
  const Result<strobe_forward_arguments> from = read_versioned(given, "strobe_forward_arguments");
  if (!from.ok()) return from.status();
  ForwardArguments arguments;
  TensorReader reader;
  read_shared(*from, reader, arguments);
  reader.read(from->o, "o", arguments.o);
  reader.read(from->lse, "lse", arguments.lse);
  reader.read(from->q_descale, "q_descale", arguments.q_descale);
  reader.read(from->k_descale, "k_descale", arguments.k_descale);
  reader.read(from->v_descale, "v_descale", arguments.v_descale);
  reader.read(from->page_table, "page_table", arguments.page_table);
  reader.read(from->leftpad_k, "leftpad_k", arguments.sequences.leftpad_k);
  reader.read(from->cache_batch_idx, "cache_batch_idx", arguments.sequences.cache_batch_idx);
  reader.read(from->tree_mask, "tree_mask", arguments.tree_mask);
  reader.read(from->max_logits, "max_logits", arguments.max_logits);
  reader.read(from->q_shift, "q_shift", arguments.q_shift);
  if (from->v_rotation.reserved != 0) {
    return invalid("strobe_rotation.reserved is {}: it must be 0", from->v_rotation.reserved);
  }
  arguments.v_rotation = {from->v_rotation.given != 0, from->v_rotation.seed};
  if (!reader.status().ok()) return reader.status();
  return arguments;
}

Result<QuantizeArguments> read_arguments(const strobe_quantize_arguments* given) {
  if (given == nullptr) return invalid("arguments is null: give a strobe_quantize_arguments");
  const Result<strobe_quantize_arguments> from = read_versioned(given, "strobe_quantize_arguments");
  if (!from.ok()) return from.status();
  QuantizeArguments arguments;
  TensorReader reader;
  reader.read(from->q, "q", arguments.q);
  reader.read(from->k, "k", arguments.k);
  reader.read(from->v, "v", arguments.v);
  reader.read(from->q8, "q8", arguments.q8);
  reader.read(from->k8, "k8", arguments.k8);
  reader.read(from->v8, "v8", arguments.v8);
  reader.read(from->q_descale, "q_descale", arguments.q_descale);
  reader.read(from->k_descale, "k_descale", arguments.k_descale);
  reader.read(from->v_descale, "v_descale", arguments.v_descale);
  reader.read(from->q_shift, "q_shift", arguments.q_shift);
  reader.read(from->sequences, arguments.sequences);
  if (!reader.status().ok()) return reader.status();
  return arguments;
}

Result<AppendArguments> read_arguments(const strobe_append_arguments* given) {
  if (given == nullptr) return invalid("arguments is null: give a strobe_append_arguments");
  const Result<strobe_append_arguments> from = read_versioned(given, "strobe_append_arguments");
  if (!from.ok()) return from.status();
  AppendArguments arguments;
  TensorReader reader;
  reader.read(from->k_cache, "k_cache", arguments.k_cache);
  reader.read(from->v_cache, "v_cache", arguments.v_cache);
  reader.read(from->k_new, "k_new", arguments.k_new);
  reader.read(from->v_new, "v_new", arguments.v_new);
  reader.read(from->cu_seqlens_new, "cu_seqlens_new", arguments.cu_seqlens_new);
  reader.read(from->cache_seqlens, "cache_seqlens", arguments.cache_seqlens);
  reader.read(from->page_table, "page_table", arguments.page_table);
  reader.read(from->leftpad_k, "leftpad_k", arguments.leftpad_k);
  reader.read(from->cache_batch_idx, "cache_batch_idx", arguments.cache_batch_idx);
  reader.read(from->cos, "cos", arguments.cos);
  reader.read(from->sin, "sin", arguments.sin);
  reader.read(from->positions, "positions", arguments.positions);
  reader.read(from->q, "q", arguments.q);
  reader.read(from->q_out, "q_out", arguments.q_out);
  reader.read(from->cu_seqlens_q, "cu_seqlens_q", arguments.cu_seqlens_q);
  reader.read(from->positions_q, "positions_q", arguments.positions_q);
  reader.read(from->k_descale, "k_descale", arguments.k_descale);
  reader.read(from->v_descale, "v_descale", arguments.v_descale);
  if (!reader.status().ok()) return reader.status();
  arguments.interleaved = from->interleaved != 0;
  arguments.q_in_order = from->q_at_first_position == 0;
  return arguments;
}

Result<ReadMerge> read_arguments(const strobe_merge_arguments* given) {
  if (given == nullptr) return invalid("arguments is null: give a strobe_merge_arguments");
  const Result<strobe_merge_arguments> from = read_versioned(given, "strobe_merge_arguments");
  if (!from.ok()) return from.status();
  if (Status status = check_enum(from->reserved, 0, "strobe_merge_arguments.reserved"); !status.ok()) return status;
  if (from->parts < 0 || from->parts > kMaxMergedParts) {
    return invalid("strobe_merge_arguments.parts is {}: a merge takes from 1 to {}", from->parts, kMaxMergedParts);
  }
  if (from->parts > 0 && (from->part_o == nullptr || from->part_lse == nullptr)) {
    return invalid("part_o or part_lse is null: give arrays of {} tensors", from->parts);
  }
  ReadMerge merge;
  TensorReader reader;
  for (std::int32_t i = 0; i < from->parts; ++i) {
    PartialResult& part = merge.parts.emplace_back();
    reader.read(from->part_o[i], "part_o", part.o);
    reader.read(from->part_lse[i], "part_lse", part.lse);
  }
  reader.read(from->o, "o", merge.o);
  reader.read(from->lse, "lse", merge.lse);
  if (!reader.status().ok()) return reader.status();
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

Result<BackwardArguments> read_arguments(const strobe_backward_arguments* given) {
  if (given == nullptr) return invalid("arguments is null: give a strobe_backward_arguments");
  const Result<strobe_backward_arguments> from = read_versioned(given, "strobe_backward_arguments");
  if (!from.ok()) return from.status();
  BackwardArguments arguments;
  TensorReader reader;
  read_shared(*from, reader, arguments);
  reader.read(from->o, "o", arguments.o);
  reader.read(from->lse, "lse", arguments.lse);
  reader.read(from->d_o, "d_o", arguments.d_o);
  reader.read(from->d_lse, "d_lse", arguments.d_lse);
  reader.read(from->dq, "dq", arguments.dq);
  reader.read(from->dk, "dk", arguments.dk);
  reader.read(from->dv, "dv", arguments.dv);
  reader.read(from->d_bias, "d_bias", arguments.d_bias);
  reader.read(from->d_sink, "d_sink", arguments.d_sink);
  if (!reader.status().ok()) return reader.status();
  return arguments;
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
