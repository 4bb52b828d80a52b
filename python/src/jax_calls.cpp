// SPDX-License-Identifier: Apache-2.0
// A call names its operands and results, in order, by attributes `operands` and `results` ("q k v bias"); every other
// attribute is an option.
#include "jax_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "call/option_fields.h"
#include "call/tensors.h"
#include "dense_strides.h"
#include "score_functions.h"
#include "strobe/attention.h"
#include "strobe/jvp.h"
#include "strobe/quantize.h"
#include "thread_pool.h"
#include "xla_ffi.h"

namespace nb = nanobind;

namespace strobe::python {
namespace {

using xla::CallFrame;

struct NamedTensor {
  std::string_view name;
  TensorView view;
};

struct Call {
  std::vector<NamedTensor> tensors;
  AttentionOptions options;
  QuantizeOptions quantize;
  Rotation v_rotation;
  Execution execution;
  std::int64_t block_size = 128;
  RandomState random;  // but for seed and offset: the place of the call in a larger one
  std::int64_t max_seqlen_q = -1;
  std::int64_t max_seqlen_k = -1;
  std::string score, mask, capture_names;  // names and ranks of captures: "slope:1 table:2"
  SharedFunction function;
  std::vector<ConstTensorView> captures;
  std::vector<TensorView> d_captures;  // or none

  /// Not given where the call has none of that name.
  TensorView tensor(std::string_view name) const {
    const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
    return found == tensors.end() ? TensorView() : found->view;
  }
};

/// "capture_3", and "d_capture_3" for its gradient.
bool is_capture(std::string_view name) { return name.starts_with("capture_") || name.starts_with("d_capture_"); }

/// "random" are the words of dropout's seed and offset.
bool is_tensor(std::string_view name) {
  return is_capture(name) || name == "random" || find_tensor<ForwardArguments>(name) != nullptr ||
         find_tensor<BackwardArguments>(name) != nullptr || find_tensor<JvpArguments>(name) != nullptr ||
         find_tensor<QuantizeArguments>(name) != nullptr;
}

std::optional<DType> dtype_of(xla::DataType dtype) {
  switch (dtype) {
    case xla::DataType::f32: return DType::float32;
    case xla::DataType::f16: return DType::float16;
    case xla::DataType::bf16: return DType::bfloat16;
    case xla::DataType::s32:
    case xla::DataType::u32: return DType::int32;
    case xla::DataType::u8:
    case xla::DataType::pred: return DType::uint8;
    case xla::DataType::s8: return DType::int8;
    case xla::DataType::f8e4m3fn: return DType::float8_e4m3;
    case xla::DataType::s64: return DType::int64;
  }
  return std::nullopt;
}

Status failure(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

/// XLA's buffers are dense and row-major.
Status read_buffer(const xla::Buffer& buffer, std::string_view name, const Device& device, TensorView& view) {
  const std::optional<DType> dtype = dtype_of(buffer.dtype);
  const bool scalar = buffer.rank == 0 && is_capture(name);
  if (!dtype || (buffer.rank < 1 && !scalar) || buffer.rank > kMaxRank) {
    return failure(fmt::format("{} is of a dtype or rank that no tensor of a call has", name));
  }
  view.data = buffer.data;
  view.dtype = *dtype;
  view.device = device;
  view.rank = std::max(static_cast<int>(buffer.rank), 1);
  view.shape[0] = 1;
  std::copy_n(buffer.extents, buffer.rank, view.shape.begin());
  if (!set_dense_strides(view)) return failure(fmt::format("{} must span at most 2^48 elements of memory", name));
  return {};
}

/// Reads `buffers` by the names in `names`, which blanks separate.
Status read_buffers(const xla::Buffers& buffers, std::string_view names, const Device& device, Call& call) {
  for (std::int64_t index = 0; index < buffers.count; ++index) {
    const std::string_view name = names.substr(0, names.find(' '));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    if (!is_tensor(name)) return failure(fmt::format("\"{}\" is no tensor of a call", name));
    NamedTensor& tensor = call.tensors.emplace_back(NamedTensor{name, {}});
    if (Status status = read_buffer(*buffers.buffers[index], name, device, tensor.view); !status.ok()) return status;
  }
  return {};
}

/// The attribute's value: of a string, its characters.
std::string_view text_of(const xla::Attributes& attributes, std::int64_t index) {
  const auto& span = *static_cast<const xla::ByteSpan*>(attributes.values[index]);
  return {span.data, span.size};
}

void read_number(std::string_view name, const xla::Scalar& scalar, Call& call) {
  const auto integer = [&scalar] { return *static_cast<const std::int64_t*>(scalar.value); };
  const auto number = [&scalar] { return *static_cast<const float*>(scalar.value); };
  const auto read_field = [&]<class Value>(Value& value) {
    if constexpr (std::is_same_v<Value, bool>) {
      value = integer() != 0;
    } else if constexpr (std::is_same_v<Value, std::int64_t>) {
      value = integer();
    } else {
      value = number();
    }
  };
  if (visit_option(call.options, name, read_field)) return;
  if (name == "causal") call.options.causal = static_cast<CausalMask>(integer());
  if (name == "normalize") call.options.normalize = static_cast<Normalization>(integer());
  if (name == "window_left") call.options.window.left = integer();
  if (name == "window_right") call.options.window.right = integer();
  if (name == "block_size") call.block_size = integer();
  if (name == "dropout_first_batch") call.random.first_batch = integer();
  if (name == "dropout_first_head") call.random.first_head = integer();
  if (name == "dropout_heads") call.random.heads = integer();
  if (name == "max_seqlen_q") call.max_seqlen_q = integer();
  if (name == "max_seqlen_k") call.max_seqlen_k = integer();
  if (name == "v_rotation") call.v_rotation = {.given = true, .seed = static_cast<std::uint64_t>(integer())};
  if (name == "q_scales") call.quantize.q_scales = static_cast<ScaleUnit>(integer());
  if (name == "k_scales") call.quantize.k_scales = static_cast<ScaleUnit>(integer());
  if (name == "v_scales") call.quantize.v_scales = static_cast<ScaleUnit>(integer());
  if (name == "rotate_qk") call.quantize.rotate_qk = integer() != 0;
  if (name == "rotate_v") call.quantize.rotate_v = integer() != 0;
  if (name == "seed") call.quantize.seed = static_cast<std::uint64_t>(integer());
  if (name == "threads") call.execution.threads = static_cast<int>(integer());
}

/// Seed and offset are read through a pointer, without a shape.
Status check_random(const TensorView& random) {
  const bool words = random.rank == 1 && random.shape[0] == 4 && random.dtype == DType::int32;
  if (!random.given() || words) return {};
  return failure("random must be four int32: the words of seed and offset, low first");
}

/// The function of the call's texts, and what it reads and writes, which the operands and results have by number.
Status read_expression(Call& call) {
  if (call.score.empty() && call.mask.empty()) return {};
  std::vector<CaptureType> types;
  std::string_view names = call.capture_names;
  while (!names.empty()) {
    const std::string_view one = names.substr(0, names.find(' '));
    names.remove_prefix(std::min(names.size(), one.size() + 1));
    const std::size_t colon = one.find(':');
    const ConstTensorView view = call.tensor(fmt::format("capture_{}", types.size()));
    const TensorView gradient = call.tensor(fmt::format("d_capture_{}", types.size()));
    if (colon == std::string_view::npos || !view.given()) return failure("captures without a name or a tensor");
    types.push_back({std::string(one.substr(0, colon)), view.dtype, one.substr(colon) == ":0" ? 0 : view.rank});
    call.captures.push_back(view);
    call.d_captures.push_back(gradient);
  }
  if (std::ranges::none_of(call.d_captures, &TensorView::given)) call.d_captures.clear();
  Result<SharedFunction> function = parsed_once(call.score, call.mask, std::move(types));
  if (!function.ok()) return function.status();
  call.function = *std::move(function);
  return {};
}

Status read_call(const CallFrame& frame, const Device& device, Call& call) {
  for (std::int64_t index = 0; index < frame.attributes.count; ++index) {
    const xla::ByteSpan& span = *frame.attributes.names[index];
    const std::string_view name(span.data, span.size);
    Status status;
    if (name == "operands") {
      status = read_buffers(frame.operands, text_of(frame.attributes, index), device, call);
    } else if (name == "results") {
      status = read_buffers(frame.results, text_of(frame.attributes, index), device, call);
    } else if (name == "score") {
      call.score = text_of(frame.attributes, index);
    } else if (name == "mask_text") {
      call.mask = text_of(frame.attributes, index);
    } else if (name == "capture_names") {
      call.capture_names = text_of(frame.attributes, index);
    } else if (frame.attributes.kinds[index] == xla::AttributeKind::scalar) {
      read_number(name, *static_cast<const xla::Scalar*>(frame.attributes.values[index]), call);
    }
    if (!status.ok()) return status;
  }
  Status status = read_expression(call);
  return status.ok() ? check_random(call.tensor("random")) : status;
}

template <class Arguments>
Arguments arguments_of(const Call& call) {
  Arguments arguments;
  for_each_tensor(arguments, [&call](const CallTensor& tensor, auto& view) { view = call.tensor(tensor.name); });
  arguments.sequences.max_seqlen_q = call.max_seqlen_q;
  arguments.sequences.max_seqlen_k = call.max_seqlen_k;
  return arguments;
}

/// A bias of one row stands for every query: XLA has no strides of 0.
void broadcast_rows(ConstTensorView& bias, std::int64_t seqlen_q) {
  if (bias.rank != 4 || bias.shape[2] != 1) return;
  bias.shape[2] = seqlen_q;
  bias.strides[2] = 0;
}

template <class Arguments>
Arguments pass_of(const Call& call) {
  auto arguments = arguments_of<Arguments>(call);
  if (arguments.q.rank == 4) broadcast_rows(arguments.modifiers.bias, arguments.q.shape[1]);
  arguments.modifiers.block_size = call.block_size;
  arguments.modifiers.function = call.function.get();
  arguments.modifiers.captures = call.captures;
  if constexpr (std::is_same_v<Arguments, BackwardArguments>) arguments.d_captures = call.d_captures;
  arguments.random = call.random;
  // Words of seed and offset, low ones first, read when the call runs. XLA aligns its buffers to 16 bytes and more.
  arguments.random.on_device = static_cast<const std::uint64_t*>(call.tensor("random").data);
  return arguments;
}

/// Calls have an lse whether or not there is one: -inf in host memory, where alone there may be none.
void leave_out_lse(const Call& call, TensorView& lse) {
  if (call.options.normalize == Normalization::softmax) return;
  if (lse.given() && lse.device.type == DeviceType::cpu) {
    std::int64_t count = 1;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(lse.rank); ++axis) count *= lse.shape[axis];
    std::fill_n(static_cast<float*>(lse.data), count, -std::numeric_limits<float>::infinity());
  }
  lse = {};
}

Status run_forward(const Call& call) {
  auto arguments = pass_of<ForwardArguments>(call);
  leave_out_lse(call, arguments.lse);
  arguments.v_rotation = call.v_rotation;
  return forward(arguments, call.options, call.execution);
}

Status run_backward(const Call& call) {
  auto arguments = pass_of<BackwardArguments>(call);
  if (call.options.normalize == Normalization::none) arguments.lse = {};
  return backward(arguments, call.options, call.execution);
}

Status run_jvp(const Call& call) { return jvp(pass_of<JvpArguments>(call), call.options, call.execution); }

Status run_quantize(const Call& call) {
  const auto arguments = arguments_of<QuantizeArguments>(call);
  QuantizeOptions options = call.quantize;
  options.element = arguments.q8.dtype;
  options.center_k = arguments.q_shift.given();
  return quantize(arguments, options, call.execution);
}

xla::Error* report(const xla::Api& api, const Status& status) {
  if (status.ok()) return nullptr;
  const auto code = [&status] {
    switch (status.code()) {
      case StatusCode::invalid_argument: return xla::ErrorCode::invalid_argument;
      case StatusCode::unsupported: return xla::ErrorCode::unimplemented;
      case StatusCode::out_of_memory: return xla::ErrorCode::resource_exhausted;
      case StatusCode::ok:
      case StatusCode::device_error: break;
    }
    return xla::ErrorCode::internal;
  }();
  xla::ErrorArguments arguments{{sizeof(arguments), nullptr}, status.message().c_str(), code};
  return api.create_error(&arguments);
}

/// XLA asks each handler once what it was written for.
bool answers_metadata(const CallFrame& frame, std::uint32_t traits) {
  if (frame.header.extensions == nullptr || frame.header.extensions->kind != xla::ExtensionKind::metadata) return false;
  xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(frame.header.extensions)->metadata;
  metadata.version.major = xla::kMajorVersion;
  metadata.version.minor = frame.api->version.minor;
  metadata.traits = traits;
  return true;
}

xla::Error* on_host(const CallFrame& frame, Status (*run)(const Call&)) {
  if (answers_metadata(frame, 0)) return nullptr;
  Call call;
  call.execution.parallel_for = parallel_for();
  Status status = read_call(frame, {}, call);
  if (call.execution.threads == 0) call.execution.threads = threads_without_torch();
  return report(*frame.api, status.ok() ? run(call) : status);
}

/// XLA's allocator for the workspace of one call. What it gave goes back when the call's work is enqueued: XLA hands
/// memory out in the order of its stream.
class Scratch {
 public:
  explicit Scratch(const CallFrame& frame) : frame_(frame) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* operator()(std::size_t bytes) {
    std::size_t space = bytes + kAlignment;
    xla::AllocateArguments arguments{{sizeof(arguments), nullptr}, frame_.context, space, kXlaAlignment, nullptr};
    error_ = frame_.api->allocate(&arguments);
    if (error_ != nullptr) return nullptr;
    memory_ = {{sizeof(memory_), nullptr}, frame_.context, space, arguments.data};
    return std::align(kAlignment, bytes, arguments.data, space);
  }

  /// Gives the memory back. XLA's own error where it failed to allocate or to free.
  xla::Error* finish() { return error_ != nullptr || memory_.data == nullptr ? error_ : frame_.api->free(&memory_); }

 private:
  static constexpr std::size_t kAlignment = 64;     // of a workspace
  static constexpr std::size_t kXlaAlignment = 16;  // the most that XLA takes as a request

  const CallFrame& frame_;
  xla::FreeArguments memory_{};
  xla::Error* error_ = nullptr;
};

xla::Error* on_cuda(const CallFrame& frame, Status (*run)(const Call&), std::uint32_t traits) {
  if (answers_metadata(frame, traits)) return nullptr;
  Device device{DeviceType::cuda, 0};
  if (frame.api->header.struct_size >= sizeof(xla::Api)) {
    xla::DeviceOrdinalArguments ordinal{{sizeof(ordinal), nullptr}, frame.context, 0};
    if (xla::Error* error = frame.api->device_ordinal(&ordinal); error != nullptr) return error;
    device.index = ordinal.ordinal;
  }
  xla::StreamArguments stream{{sizeof(stream), nullptr}, frame.context, nullptr};
  if (xla::Error* error = frame.api->stream(&stream); error != nullptr) return error;
  Scratch scratch(frame);
  const AllocateWorkspace allocate = std::ref(scratch);
  Call call;
  call.execution.stream = stream.stream;
  call.execution.allocate_workspace = &allocate;
  Status status = read_call(frame, device, call);
  if (status.ok()) status = run(call);
  xla::Error* error = scratch.finish();
  return error != nullptr ? error : report(*frame.api, status);
}

xla::Error* host_forward(CallFrame* frame) { return on_host(*frame, run_forward); }
xla::Error* host_backward(CallFrame* frame) { return on_host(*frame, run_backward); }
xla::Error* host_tangent(CallFrame* frame) { return on_host(*frame, run_jvp); }
xla::Error* host_quantize(CallFrame* frame) { return on_host(*frame, run_quantize); }
xla::Error* cuda_forward(CallFrame* frame) { return on_cuda(*frame, run_forward, xla::kCommandBufferCompatible); }
// Not in command buffers, which are replayed when the workspace has long gone back to XLA. The forward needs none.
xla::Error* cuda_backward(CallFrame* frame) { return on_cuda(*frame, run_backward, 0); }
xla::Error* cuda_tangent(CallFrame* frame) { return on_cuda(*frame, run_jvp, 0); }
xla::Error* cuda_quantize(CallFrame* frame) { return on_cuda(*frame, run_quantize, 0); }

}  // namespace

void bind_jax_handlers(nb::module_& module) {
  module.def("jax_handlers", [] {
    const auto capsule = [](xla::Error* (*handler)(CallFrame*)) {
      return nb::steal(PyCapsule_New(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET", nullptr));
    };
    nb::dict handlers;
    handlers["host_forward"] = capsule(host_forward);
    handlers["host_backward"] = capsule(host_backward);
    handlers["host_tangent"] = capsule(host_tangent);
    handlers["host_quantize"] = capsule(host_quantize);
    handlers["cuda_forward"] = capsule(cuda_forward);
    handlers["cuda_backward"] = capsule(cuda_backward);
    handlers["cuda_tangent"] = capsule(cuda_tangent);
    handlers["cuda_quantize"] = capsule(cuda_quantize);
    return handlers;
  });
}

}  // namespace strobe::python
