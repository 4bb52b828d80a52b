#include "api/tensor_checks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace strobe::api {
namespace {

// Far more than memory holds, and small enough that no product of sizes below overflows 64 bits.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;

std::span<const std::int64_t> extents(const ConstTensorView& tensor) {
  return {tensor.shape.data(), static_cast<std::size_t>(tensor.rank)};
}

std::string strides_text(const ConstTensorView& tensor) {
  return fmt::format("[{}]", fmt::join(std::span(tensor.strides).first(static_cast<std::size_t>(tensor.rank)), ", "));
}

bool empty(const ConstTensorView& tensor) { return std::ranges::count(extents(tensor), 0) > 0; }

struct Axis {
  std::int64_t extent;  // elements, or bytes for the innermost block
  std::int64_t stride;  // bytes
};

/// The tensor's axes by falling stride, in bytes, with axes that continue one another merged and the contiguous inner
/// block as the last axis (stride 1).
std::vector<Axis> merged_axes(const ConstTensorView& tensor) {
  const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
  std::vector<Axis> axes;
  for (std::size_t a = 0; a < static_cast<std::size_t>(tensor.rank); ++a) {
    if (tensor.shape[a] > 1) axes.push_back({tensor.shape[a], tensor.strides[a] * size});
  }
  std::ranges::sort(axes, [](const Axis& x, const Axis& y) { return x.stride > y.stride; });
  axes.push_back({size, 1});
  for (std::size_t a = axes.size() - 1; a-- > 0;) {
    if (axes[a].stride != axes[a + 1].extent * axes[a + 1].stride) continue;
    axes[a] = {axes[a].extent * axes[a + 1].extent, axes[a + 1].stride};
    axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(a) + 1);
  }
  return axes;
}

std::uintptr_t address(const ConstTensorView& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data); }

/// Bytes from the first to past the last element.
std::uintptr_t span_bytes(const std::vector<Axis>& axes) {
  std::uintptr_t bytes = 1;
  for (const Axis& axis : axes) bytes += static_cast<std::uintptr_t>((axis.extent - 1) * axis.stride);
  return bytes;
}

}  // namespace

std::string shape_text(const ConstTensorView& tensor) { return fmt::format("[{}]", fmt::join(extents(tensor), ", ")); }

std::string device_text(const Device& device) {
  return device.type == DeviceType::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

Status check_layout(const NamedTensor& tensor, int rank, std::string_view layout) {
  const auto& [name, view] = tensor;
  if (!view.given()) return invalid("{} is missing: give a tensor {}", name, layout);
  if (view.rank != rank) return invalid("{} has rank {}: it must have rank {} {}", name, view.rank, rank, layout);
  std::int64_t elements = 1;
  std::int64_t span = 1;
  for (std::size_t a = 0; a < static_cast<std::size_t>(rank); ++a) {
    const std::int64_t extent = view.shape[a];
    const std::int64_t stride = view.strides[a];
    if (extent < 0) return invalid("{} has shape {}: an extent must not be negative", name, shape_text(view));
    if (__builtin_mul_overflow(elements, std::max<std::int64_t>(extent, 1), &elements) || elements > kMaxElements) {
      return invalid("{} has shape {}: it must span at most 2^48 elements of memory", name, shape_text(view));
    }
    if (extent <= 1) continue;
    if (stride < 0) return invalid("{} has stride {} on axis {}: strides must not be negative", name, stride, a);
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(extent - 1, stride, &reach) || __builtin_add_overflow(span, reach, &span) ||
        span > kMaxElements) {
      return invalid("{} has shape {} and strides {}: it must span at most 2^48 elements of memory", name,
                     shape_text(view), strides_text(view));
    }
  }
  const auto last = static_cast<std::size_t>(rank - 1);
  if (view.shape[last] > 1 && view.strides[last] != 1) {
    return invalid("{} has stride {} on its last axis: it must be 1", name, view.strides[last]);
  }
  return {};
}

Status check_dtype(const NamedTensor& tensor, DType wanted, std::string_view reason) {
  if (tensor.view.dtype == wanted) return {};
  return invalid("{} is {}: it must be {}{}", tensor.name, name_of(tensor.view.dtype), name_of(wanted), reason);
}

Status check_shape(const NamedTensor& tensor, std::initializer_list<std::int64_t> wanted, std::string_view layout) {
  if (std::ranges::equal(extents(tensor.view), wanted)) return {};
  return invalid("{} has shape {}: it must be [{}] {}", tensor.name, shape_text(tensor.view), fmt::join(wanted, ", "),
                 layout);
}

Status check_data(const NamedTensor& tensor) {
  const auto& [name, view] = tensor;
  if (empty(view)) return {};
  if (view.data == nullptr) return invalid("{} has shape {} and a null pointer", name, shape_text(view));
  const std::size_t size = size_of(view.dtype);
  if (address(view) % size != 0) return invalid("{}'s pointer must be aligned to its {}-byte elements", name, size);
  return {};
}

Status check_distinct_elements(const NamedTensor& output) {
  if (empty(output.view)) return {};
  const std::vector<Axis> axes = merged_axes(output.view);
  for (std::size_t a = 0; a + 1 < axes.size(); ++a) {
    const std::vector<Axis> inner(axes.begin() + static_cast<std::ptrdiff_t>(a) + 1, axes.end());
    if (axes[a].stride < static_cast<std::int64_t>(span_bytes(inner))) {
      return invalid("{} has strides {} with shape {}: elements of an output must not share memory", output.name,
                     strides_text(output.view), shape_text(output.view));
    }
  }
  return {};
}

Status check_apart(const NamedTensor& output, const NamedTensor& other) {
  if (!other.view.given() || empty(output.view) || empty(other.view)) return {};
  const std::vector<Axis> a = merged_axes(output.view);
  const std::vector<Axis> b = merged_axes(other.view);
  const std::uintptr_t a_begin = address(output.view);
  const std::uintptr_t b_begin = address(other.view);
  if (a_begin + span_bytes(a) <= b_begin || b_begin + span_bytes(b) <= a_begin) return {};
  // Every inner block of both begins at a multiple of `period` from its tensor's first: apart within a period, apart
  // everywhere.
  std::int64_t period = 0;
  for (const auto& axes : {a, b}) {
    for (std::size_t i = 0; i + 1 < axes.size(); ++i) period = std::gcd(period, axes[i].stride);
  }
  if (period > 0) {
    const auto p = static_cast<std::uintptr_t>(period);
    const std::uintptr_t ahead = (b_begin % p + p - a_begin % p) % p;  // of a's block, to b's
    if (ahead >= static_cast<std::uintptr_t>(a.back().extent) &&
        ahead + static_cast<std::uintptr_t>(b.back().extent) <= p) {
      return {};
    }
  }
  return invalid("{} overlaps {}: outputs must not share memory with any other tensor", output.name, other.name);
}

}  // namespace strobe::api
