// SPDX-License-Identifier: Apache-2.0
#include "attention_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

namespace strobe::program {
namespace {

/// The SplitMix64 finaliser: a bijection whose outputs on consecutive inputs pass as independent.
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

/// A stream of numbers that are each a function of (stream, position).
class CounterRandom {
 public:
  CounterRandom(std::uint64_t seed, std::uint64_t stream) : key_(mix(seed * 0x9E3779B97F4A7C15U + stream + 1)) {}

  /// In (0, 1), 53 bits.
  double uniform(std::uint64_t position) const {
    const std::uint64_t bits = mix(key_ + position * 0x9E3779B97F4A7C15U);
    return (static_cast<double>(bits >> 11U) + 0.5) * 0x1p-53;
  }

  /// Box and Muller's transform of two uniforms.
  double normal(std::uint64_t position) const {
    const double radius = std::sqrt(-2.0 * std::log(uniform(2 * position)));
    return radius * std::cos(2.0 * std::numbers::pi * uniform(2 * position + 1));
  }

 private:
  std::uint64_t key_;
};

void store(float value, DType dtype, std::byte* to) {
  if (dtype == DType::float32) std::memcpy(to, &value, sizeof value);
  const float16 half = to_float16(value);
  const bfloat16 brain = to_bfloat16(value);
  if (dtype == DType::float16) std::memcpy(to, &half, sizeof half);
  if (dtype == DType::bfloat16) std::memcpy(to, &brain, sizeof brain);
}

template <class T>
float load_as(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return to_float(value);
}

float load(const std::byte* from, DType dtype) {
  if (dtype == DType::float16) return load_as<float16>(from);
  return dtype == DType::bfloat16 ? load_as<bfloat16>(from) : load_as<float>(from);
}

io::HostTensor random_tensor(std::vector<std::int64_t> shape, DType dtype, Distribution distribution,
                             std::uint64_t seed, std::uint64_t tensor_index) {
  io::HostTensor tensor = io::make_tensor(dtype, std::move(shape));
  const CounterRandom base(seed, 3 * tensor_index);
  const CounterRandom outlier(seed, 3 * tensor_index + 1);
  const CounterRandom choice(seed, 3 * tensor_index + 2);
  const std::size_t count = io::element_count(tensor);
  for (std::size_t i = 0; i < count; ++i) {
    double value = base.normal(i);
    if (distribution == Distribution::outliers && choice.uniform(i) < 0.001) value += 10.0 * outlier.normal(i);
    store(static_cast<float>(value), dtype, tensor.bytes.data() + i * size_of(dtype));
  }
  return tensor;
}

TensorView without_data(DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view = tensor(static_cast<float*>(nullptr), shape);
  view.dtype = dtype;
  return view;
}

}  // namespace

void AttentionTensors::allocate_outputs(bool wants_max_logits, Normalization normalize) {
  const bool eight_bit = size_of(q.dtype) == 1;
  o = io::make_tensor(eight_bit ? output : q.dtype, {q.shape[0], q.shape[1], q.shape[2], v.shape[eight_bit ? 2 : 3]});
  lse = {};
  if (normalize == Normalization::softmax) {
    lse = io::make_tensor(DType::float32, {q.shape[0], q.shape[2], q.shape[1]});
  }
  if (wants_max_logits) max_logits = io::make_tensor(DType::float32, {q.shape[0], q.shape[2]});
  if (!modifiers.bias.shape.empty()) d_bias = io::make_tensor(DType::float32, modifiers.bias.shape);
  if (!modifiers.sink.shape.empty()) d_sink = io::make_tensor(DType::float32, modifiers.sink.shape);
  if (const Expression* const texts = modifiers.expression.get(); texts != nullptr) {
    d_captures.clear();
    for (std::size_t i = 0; i < texts->captures.size(); ++i) {
      const bool wanted = texts->function.has_gradient(static_cast<int>(i));
      d_captures.push_back(wanted ? io::make_tensor(DType::float32, texts->captures[i].shape) : io::HostTensor());
    }
  }
  dq = io::make_tensor(q.dtype, q.shape);
  dk = io::make_tensor(k.dtype, k.shape);
  dv = io::make_tensor(v.dtype, v.shape);
}

ForwardArguments AttentionTensors::forward() {
  return {.q = view(q),
          .k = view(k),
          .v = view(v),
          .o = view(o),
          .lse = view(lse),
          .modifiers = modifiers.views(),
          .random = random,
          .max_logits = view(max_logits),
          .q_descale = view(q_descale),
          .k_descale = view(k_descale),
          .v_descale = view(v_descale),
          .q_shift = view(q_shift),
          .v_rotation = v_rotation};
}

BackwardArguments AttentionTensors::backward() {
  d_capture_views.clear();
  for (io::HostTensor& tensor : d_captures) d_capture_views.push_back(view(tensor));
  return {.q = view(q),
          .k = view(k),
          .v = view(v),
          .o = view(o),
          .lse = view(lse),
          .d_o = view(d_o),
          .dq = view(dq),
          .dk = view(dk),
          .dv = view(dv),
          .modifiers = modifiers.views(),
          .random = random,
          .d_bias = view(d_bias),
          .d_sink = view(d_sink),
          .d_captures = d_capture_views};
}

ForwardArguments planned_forward(const Shape& shape, DType dtype, const Modifiers& modifiers, Normalization normalize) {
  const auto& [batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim, head_dim_v] = shape;
  TensorView lse;
  if (normalize == Normalization::softmax) lse = without_data(DType::float32, {batch, heads_q, seqlen_q});
  return {.q = without_data(dtype, {batch, seqlen_q, heads_q, head_dim}),
          .k = without_data(dtype, {batch, seqlen_k, heads_kv, head_dim}),
          .v = without_data(dtype, {batch, seqlen_k, heads_kv, head_dim_v}),
          .o = without_data(dtype, {batch, seqlen_q, heads_q, head_dim_v}),
          .lse = lse,
          .modifiers = modifiers.views()};
}

BackwardArguments planned_backward(const Shape& shape, DType dtype, const Modifiers& modifiers,
                                   Normalization normalize) {
  const ForwardArguments forward = planned_forward(shape, dtype, modifiers, normalize);
  const auto writable = [](const ConstTensorView& view) {
    return TensorView{nullptr, view.dtype, view.device, view.rank, view.shape, view.strides};
  };
  return {.q = forward.q,
          .k = forward.k,
          .v = forward.v,
          .o = forward.o,
          .lse = forward.lse,
          .d_o = forward.o,
          .dq = writable(forward.q),
          .dk = writable(forward.k),
          .dv = writable(forward.v),
          .modifiers = modifiers.views()};
}

AttentionTensors random_tensors(const Shape& shape, DType dtype, Distribution distribution, std::uint64_t seed) {
  const auto& [batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim, head_dim_v] = shape;
  AttentionTensors tensors;
  tensors.q = random_tensor({batch, seqlen_q, heads_q, head_dim}, dtype, distribution, seed, 0);
  tensors.k = random_tensor({batch, seqlen_k, heads_kv, head_dim}, dtype, distribution, seed, 1);
  tensors.v = random_tensor({batch, seqlen_k, heads_kv, head_dim_v}, dtype, distribution, seed, 2);
  tensors.d_o = random_tensor({batch, seqlen_q, heads_q, head_dim_v}, dtype, Distribution::normal, seed, 3);
  tensors.allocate_outputs();
  return tensors;
}

AttentionTensors repeating_tensors(const Shape& shape, DType dtype) {
  const auto& [batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim, head_dim_v] = shape;
  constexpr std::int64_t kPeriod = 1'000'003;  // a prime: no two rows of a tensor are alike
  AttentionTensors tensors;
  const auto fill = [&](std::vector<std::int64_t> extents, std::uint64_t tensor_index) {
    const io::HostTensor period = random_tensor({kPeriod}, dtype, Distribution::normal, /*seed=*/0, tensor_index);
    io::HostTensor tensor = io::make_tensor(dtype, std::move(extents));
    for (std::size_t at = 0; at < tensor.bytes.size(); at += period.bytes.size()) {
      const std::size_t bytes = std::min(period.bytes.size(), tensor.bytes.size() - at);
      std::memcpy(tensor.bytes.data() + at, period.bytes.data(), bytes);
    }
    return tensor;
  };
  tensors.q = fill({batch, seqlen_q, heads_q, head_dim}, 0);
  tensors.k = fill({batch, seqlen_k, heads_kv, head_dim}, 1);
  tensors.v = fill({batch, seqlen_k, heads_kv, head_dim_v}, 2);
  tensors.d_o = fill({batch, seqlen_q, heads_q, head_dim_v}, 3);
  tensors.allocate_outputs();
  return tensors;
}

io::HostTensor converted(const io::HostTensor& tensor, DType dtype) {
  if (tensor.dtype == dtype || tensor.dtype == DType::int32) return tensor;
  io::HostTensor result = io::make_tensor(dtype, tensor.shape);
  const std::size_t count = io::element_count(tensor);
  for (std::size_t i = 0; i < count; ++i) {
    store(load(tensor.bytes.data() + i * size_of(tensor.dtype), tensor.dtype), dtype,
          result.bytes.data() + i * size_of(dtype));
  }
  return result;
}

}  // namespace strobe::program
