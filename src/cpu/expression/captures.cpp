// SPDX-License-Identifier: Apache-2.0
#include "cpu/expression/captures.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <type_traits>

#include "cpu/kernels/expression_steps.h"
#include "expression/ranges.h"
#include "strobe/float16.h"

namespace strobe::cpu {
namespace {

using expression::Range;

/// The offset of an element, or -1 outside of the tensor.
template <class Views>
std::int64_t offset_of(const Views& tensor, int rank, const void* const* indices, std::int64_t i) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < rank; ++axis) {
    const std::int32_t index = static_cast<const std::int32_t*>(indices[axis])[i];
    if (index < 0 || index >= tensor.shape[axis]) return -1;
    offset += index * tensor.strides[axis];
  }
  return offset;
}

float element(float value) { return value; }
float element(float16 value) { return to_float(value); }
float element(bfloat16 value) { return to_float(value); }
std::int32_t element(std::int32_t value) { return value; }
std::int32_t element(std::uint8_t value) { return value != 0 ? 1 : 0; }
std::int32_t element(std::int64_t value) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(value, std::numeric_limits<std::int32_t>::min(),
                                                            std::numeric_limits<std::int32_t>::max()));
}

template <class T>
void load_all(const ConstTensorView& capture, int rank, const void* const* operands, void* to, std::int64_t count) {
  using Element = decltype(element(T()));
  const auto* const data = static_cast<const T*>(capture.data);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t offset = offset_of(capture, rank, operands, i);
    static_cast<Element*>(to)[i] = offset < 0 ? Element() : element(data[offset]);
  }
}

/// Of a tensor of such elements, and small enough, else nothing.
std::optional<GatheredCapture> gathered(const ConstTensorView& capture, int rank) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (size_of(capture.dtype) != sizeof(std::int32_t)) return std::nullopt;
  GatheredCapture to{.data = capture.data, .rank = rank};
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(rank); ++axis) {
    if (capture.shape[axis] == 0) return std::nullopt;
    if (capture.shape[axis] > 1) last += (capture.shape[axis] - 1) * capture.strides[axis];
    if (capture.shape[axis] > kMost || capture.strides[axis] > kMost || last > kMost) return std::nullopt;
    to.extents[axis] = static_cast<std::int32_t>(capture.shape[axis]);
    to.strides[axis] = static_cast<std::int32_t>(capture.strides[axis]);
  }
  return to;
}

/// visit(a null pointer to the dtype's type)
template <class Visit>
auto with_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::float16: return visit(static_cast<const float16*>(nullptr));
    case DType::bfloat16: return visit(static_cast<const bfloat16*>(nullptr));
    case DType::int32: return visit(static_cast<const std::int32_t*>(nullptr));
    case DType::int64: return visit(static_cast<const std::int64_t*>(nullptr));
    case DType::uint8: return visit(static_cast<const std::uint8_t*>(nullptr));
    default: return visit(static_cast<const float*>(nullptr));
  }
}

/// The least and the largest element along one axis, others fixed at `offset`.
template <class T>
Range range_along(const T* data, std::int64_t offset, std::int64_t stride, std::int64_t count) {
  Range range = expression::just(element(data[offset]));
  for (std::int64_t i = 1; i < count; ++i) {
    range = expression::from_either(range, expression::just(element(data[offset + i * stride])));
  }
  return range;
}

}  // namespace

void load_capture(const ConstTensorView& capture, int rank, const void* const* operands, void* to, std::int64_t count) {
  if (const std::optional<GatheredCapture> vectors = gathered(capture, rank)) {
    return gather(*vectors, operands, to, count);
  }
  with_type(capture.dtype, [&]<class T>(const T*) { load_all<T>(capture, rank, operands, to, count); });
}

void add_at(const TensorView& gradient, int rank, const void* const* roots, std::int64_t first, std::int64_t count,
            const float* values) {
  const auto* const derivatives = static_cast<const float*>(roots[0]) + first;
  auto* const data = static_cast<float*>(gradient.data);
  std::int64_t element = -1;
  double sum = 0.0;
  const auto flush = [&] {
    if (element >= 0) data[element] += static_cast<float>(sum);
    sum = 0.0;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[i] == 0.0F) continue;  // hidden, or nothing: a derivative there may be infinite
    const std::int64_t at = offset_of(gradient, rank, roots + 1, first + i);
    if (at != element) {
      flush();
      element = at;
    }
    sum += static_cast<double>(values[i]) * static_cast<double>(derivatives[i]);
  }
  flush();
}

Range capture_range(const ConstTensorView& capture, std::span<const Range> indices, expression::Type type) {
  constexpr std::int64_t kMostElements = 4096;
  const Range unknown = expression::any_of(type);
  std::int64_t offset = 0;
  std::int64_t stride = 0;
  std::int64_t count = 1;
  bool outside = false;
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    const std::int64_t low = std::max<std::int64_t>(indices[axis].low, 0);
    const std::int64_t high = std::min<std::int64_t>(indices[axis].high, capture.shape[axis] - 1);
    outside = outside || low != indices[axis].low || high != indices[axis].high;
    if (low > high) return expression::just(0);  // all outside
    offset += low * capture.strides[axis];
    if (low == high) continue;
    if (count > 1 || high - low >= kMostElements) return unknown;
    stride = capture.strides[axis];
    count = high - low + 1;
  }
  const Range range = with_type(capture.dtype, [&]<class T>(const T*) {
    if constexpr (std::is_integral_v<T>) return range_along(static_cast<const T*>(capture.data), offset, stride, count);
    return unknown;
  });
  return outside ? expression::from_either(range, expression::just(0)) : range;
}

}  // namespace strobe::cpu
