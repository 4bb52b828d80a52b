// SPDX-License-Identifier: Apache-2.0
#include "eight_bit_calls.h"

#include <fmt/format.h>

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

constexpr std::int64_t kRowsOfGroup = 32;  // of ScaleUnit::group

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

/// [batch, heads, units]: the largest magnitude of every `unit` rows of each sequence and head of [batch, seqlen,
/// heads, head_dim] over `largest`, as quantize() has it.
io::HostTensor scales_of(const io::HostTensor& rows, std::int64_t unit, float largest) {
  const std::int64_t batch = rows.shape[0], seqlen = rows.shape[1], heads = rows.shape[2], columns = rows.shape[3];
  const std::int64_t units = std::max<std::int64_t>((seqlen + unit - 1) / unit, 1);
  io::HostTensor scales = io::make_tensor(DType::float32, {batch, heads, units});
  auto* const to = reinterpret_cast<float*>(scales.bytes.data());
  std::fill_n(to, batch * heads * units, 0x1p-80F);
  const float* from = floats(rows);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t row = 0; row < seqlen; ++row) {
      for (std::int64_t head = 0; head < heads; ++head, from += columns) {
        float& scale = to[(b * heads + head) * units + row / unit];
        for (std::int64_t i = 0; i < columns; ++i) scale = std::max(scale, std::abs(from[i]) / largest);
      }
    }
  }
  return scales;
}

/// Entries [first, first + count) of an axis.
TensorView part(TensorView view, std::size_t axis, std::int64_t first, std::int64_t count) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  view.data = static_cast<std::byte*>(view.data) + first * view.strides[axis] * size;
  view.shape[axis] = count;
  return view;
}

/// A cache of K and V in 8 bits.
struct StoredCache {
  io::HostTensor k, v, k_scales, v_scales;
};

/// K and V in a cache with a scale for each head of every `unit` rows, appended unit by unit.
Result<StoredCache> stored_by_units(io::HostTensor& k, io::HostTensor& v, DType element, std::int64_t unit,
                                    const Execution& execution) {
  const float largest = element == DType::int8 ? 127.0F : 448.0F;
  StoredCache cache{io::make_tensor(element, k.shape), io::make_tensor(element, v.shape), scales_of(k, unit, largest),
                    scales_of(v, unit, largest)};
  const io::HostTensor none = io::make_tensor(DType::int32, {k.shape[0]});  // rows that are there before: zeros
  for (std::int64_t first = 0; first < k.shape[1]; first += unit) {
    const std::int64_t count = std::min(unit, k.shape[1] - first);
    const Status status = append({.k_cache = part(io::view(cache.k), 1, first, count),
                                  .v_cache = part(io::view(cache.v), 1, first, count),
                                  .k_new = part(io::view(k), 1, first, count),
                                  .v_new = part(io::view(v), 1, first, count),
                                  .cache_seqlens = io::view(none),
                                  .k_descale = part(io::view(cache.k_scales), 2, first / unit, 1),
                                  .v_descale = part(io::view(cache.v_scales), 2, first / unit, 1)},
                                 execution);
    if (!status.ok()) return status;
  }
  return cache;
}

/// K and V in a cache with a scale for each row of a head, which append() finds.
Result<StoredCache> stored_by_rows(io::HostTensor& k, io::HostTensor& v, DType element, const Execution& execution) {
  const std::vector<std::int64_t> scales{k.shape[0], k.shape[2], k.shape[1]};
  StoredCache cache{io::make_tensor(element, k.shape), io::make_tensor(element, v.shape),
                    io::make_tensor(DType::float32, scales), io::make_tensor(DType::float32, scales)};
  const io::HostTensor none = io::make_tensor(DType::int32, {k.shape[0]});
  const Status status = append({.k_cache = io::view(cache.k),
                                .v_cache = io::view(cache.v),
                                .k_new = io::view(std::as_const(k)),
                                .v_new = io::view(std::as_const(v)),
                                .cache_seqlens = io::view(none),
                                .k_row_descale = io::view(cache.k_scales),
                                .v_row_descale = io::view(cache.v_scales)},
                               execution);
  if (!status.ok()) return status;
  return cache;
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

const char* name_of_unit(const CacheFormat& format) {
  if (format.unit == ScaleUnit::head) return "head";
  return format.unit == ScaleUnit::group ? "32 keys" : "row";
}

std::string name_of(const CacheFormat& format) {
  return fmt::format("K, V alone: {}, a scale per {}", format.element == DType::int8 ? "int8" : "e4m3",
                     name_of_unit(format));
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
  const io::HostTensor k = converted(k_, DType::bfloat16);
  const io::HostTensor v = converted(v_, DType::bfloat16);
  return run_with_bfloat16_queries({.k = io::view(k), .v = io::view(v)});
}

Status EightBitCalls::run_cache(const CacheFormat& format) {
  const std::int64_t seqlen = std::max<std::int64_t>(k_.shape[1], 1);
  const Result<StoredCache> cache =
      format.unit == ScaleUnit::row && k_.shape[1] > 0
          ? stored_by_rows(k_, v_, format.element, execution_)
          : stored_by_units(k_, v_, format.element, format.unit == ScaleUnit::group ? kRowsOfGroup : seqlen,
                            execution_);
  if (!cache.ok()) return cache.status();
  return run_with_bfloat16_queries({.k = io::view(cache->k),
                                    .v = io::view(cache->v),
                                    .k_descale = io::view(cache->k_scales),
                                    .v_descale = io::view(cache->v_scales)});
}

Status EightBitCalls::run_with_bfloat16_queries(ForwardArguments arguments) {
  const io::HostTensor q = converted(q_, DType::bfloat16);
  io::HostTensor o = io::make_tensor(DType::bfloat16, o_.shape);
  arguments.q = io::view(q);
  if (Status status = run(arguments, o); !status.ok()) return status;
  o_ = converted(o, DType::float32);
  return {};
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
