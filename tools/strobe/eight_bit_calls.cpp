// SPDX-License-Identifier: Apache-2.0
#include "eight_bit_calls.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "attention_tensors.h"
#include "io/quantized.h"
#include "strobe/cache.h"

namespace strobe::program {
namespace {

const float* floats(const io::HostTensor& tensor) { return reinterpret_cast<const float*>(tensor.bytes.data()); }

double rmse(const io::HostTensor& actual, const io::HostTensor& expected) {
  const std::size_t count = io::element_count(actual);
  double sum = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    const double error = static_cast<double>(floats(actual)[i]) - static_cast<double>(floats(expected)[i]);
    sum += error * error;
  }
  return std::sqrt(sum / static_cast<double>(count));
}

/// [batch, heads, 1]: the largest magnitude of each sequence and head of [batch, seqlen, heads, head_dim] over
/// `largest`, as quantize() has it.
io::HostTensor scales_of_heads(const io::HostTensor& rows, float largest) {
  const std::int64_t batch = rows.shape[0], seqlen = rows.shape[1], heads = rows.shape[2], columns = rows.shape[3];
  io::HostTensor scales = io::make_tensor(DType::float32, {batch, heads, 1});
  auto* const to = reinterpret_cast<float*>(scales.bytes.data());
  std::fill_n(to, batch * heads, 0x1p-80F);
  const float* from = floats(rows);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t row = 0; row < seqlen; ++row) {
      for (std::int64_t head = 0; head < heads; ++head, from += columns) {
        float& scale = to[b * heads + head];
        for (std::int64_t i = 0; i < columns; ++i) scale = std::max(scale, std::abs(from[i]) / largest);
      }
    }
  }
  return scales;
}

}  // namespace

std::vector<Ingredients> ingredients() {
  const auto e4m3 = [](ScaleUnit unit, bool rotate_qk, bool rotate_v) {
    return QuantizeOptions{.element = DType::float8_e4m3,
                           .q_scales = unit,
                           .k_scales = unit,
                           .v_scales = unit,
                           .rotate_qk = rotate_qk,
                           .rotate_v = rotate_v,
                           .center_k = false};
  };
  const QuantizeOptions int8;
  QuantizeOptions plain = int8;
  plain.rotate_qk = plain.rotate_v = plain.center_k = false;
  QuantizeOptions centred = plain;
  centred.center_k = true;
  QuantizeOptions rotated = centred;
  rotated.rotate_qk = true;
  QuantizeOptions by_blocks = int8;
  by_blocks.v_scales = ScaleUnit::block;
  return {{"e4m3, a scale per tensor", e4m3(ScaleUnit::tensor, false, false)},
          {"e4m3, blocks", e4m3(ScaleUnit::block, false, false)},
          {"e4m3, blocks, Q K rotated", e4m3(ScaleUnit::block, true, false)},
          {"e4m3, blocks, Q K V rotated", e4m3(ScaleUnit::block, true, true)},
          {"e4m3, all, scales as int8's", {.element = DType::float8_e4m3}},
          {"int8", plain},
          {"int8, K centred", centred},
          {"int8, K centred, Q K rotated", rotated},
          {"int8, all, V scales by blocks", by_blocks},
          {"int8, all: the default", int8}};
}

const char* name_of_cache(DType element) {
  return element == DType::int8 ? "K, V alone: int8, a scale per head" : "K, V alone: e4m3, a scale per head";
}

EightBitCalls::EightBitCalls(io::HostTensor q, io::HostTensor k, io::HostTensor v, const AttentionOptions& options,
                             const Execution& execution)
    : options_(options), execution_(execution), q_(std::move(q)), k_(std::move(k)), v_(std::move(v)) {
  exact_ = o_ = io::make_tensor(DType::float32, {q_.shape[0], q_.shape[1], q_.shape[2], v_.shape[3]});
}

Status EightBitCalls::find_exact() { return run({.q = io::view(q_), .k = io::view(k_), .v = io::view(v_)}, exact_); }

Status EightBitCalls::run_eight_bit(const QuantizeOptions& quantize) {
  const Result<io::Quantized> operands = io::quantized(io::view(std::as_const(q_)), io::view(std::as_const(k_)),
                                                       io::view(std::as_const(v_)), quantize, execution_);
  return operands.ok() ? run(operands->arguments(), o_) : operands.status();
}

Status EightBitCalls::run_bfloat16() {
  const io::HostTensor q = converted(q_, DType::bfloat16);
  const io::HostTensor k = converted(k_, DType::bfloat16);
  const io::HostTensor v = converted(v_, DType::bfloat16);
  io::HostTensor o = io::make_tensor(DType::bfloat16, o_.shape);
  if (Status status = run({.q = io::view(q), .k = io::view(k), .v = io::view(v)}, o); !status.ok()) return status;
  o_ = converted(o, DType::float32);
  return {};
}

Status EightBitCalls::run_cache(DType element) {
  const float largest = element == DType::int8 ? 127.0F : 448.0F;
  const io::HostTensor k_scales = scales_of_heads(k_, largest), v_scales = scales_of_heads(v_, largest);
  io::HostTensor k = io::make_tensor(element, k_.shape), v = io::make_tensor(element, v_.shape);
  const io::HostTensor none = io::make_tensor(DType::int32, {k_.shape[0]});  // rows that are there before: zeros
  Status status = append({.k_cache = io::view(k),
                          .v_cache = io::view(v),
                          .k_new = io::view(std::as_const(k_)),
                          .v_new = io::view(std::as_const(v_)),
                          .cache_seqlens = io::view(none),
                          .k_descale = io::view(k_scales),
                          .v_descale = io::view(v_scales)},
                         execution_);
  if (!status.ok()) return status;
  return run({.q = io::view(q_),
              .k = io::view(std::as_const(k)),
              .v = io::view(std::as_const(v)),
              .k_descale = io::view(k_scales),
              .v_descale = io::view(v_scales)},
             o_);
}

Result<QuantizationPlan> EightBitCalls::plan(QuantizationMode mode) const {
  return plan_quantization(io::view(q_), io::view(k_), io::view(v_), {.mode = mode}, options_);
}

double EightBitCalls::error(bool relative) const {
  const double absolute = rmse(o_, exact_);
  return relative ? absolute / rmse(exact_, io::make_tensor(DType::float32, exact_.shape)) : absolute;
}

Status EightBitCalls::run(ForwardArguments arguments, io::HostTensor& o) const {
  arguments.o = io::view(o);
  return forward(arguments, options_, execution_);
}

}  // namespace strobe::program
