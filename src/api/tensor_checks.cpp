// SPDX-License-Identifier: Apache-2.0
#include "api/tensor_checks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>

#include "call/checked.h"
#include "call/random_state.h"

namespace strobe::api {
namespace {

// Of one tensor, extents of 0 counted as 1: far more than memory holds, and so few that products of its own extents,
// and of its extents and strides, need no Checked.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;

std::span<const std::int64_t> extents(const ConstTensorView& tensor) {
  return {tensor.shape.data(), static_cast<std::size_t>(tensor.rank)};
}

std::string strides_text(const ConstTensorView& tensor) {
  return fmt::format("[{}]", fmt::join(std::span(tensor.strides).first(static_cast<std::size_t>(tensor.rank)), ", "));
}

struct Axis {
  std::int64_t extent;  // elements, or bytes for the innermost block
  std::int64_t stride;  // bytes
};

/// The tensor's axes by falling stride, in bytes, with axes that continue one another merged and the contiguous inner
/// block as the last axis (stride 1). Held in place: every call of a plan looks at them.
class MergedAxes {
 public:
  explicit MergedAxes(const ConstTensorView& tensor) {
    const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
    for (std::size_t a = 0; a < static_cast<std::size_t>(tensor.rank); ++a) {
      if (tensor.shape[a] > 1) insert({tensor.shape[a], tensor.strides[a] * size});
    }
    axes_[count_++] = {size, 1};
    for (std::size_t a = count_ - 1; a-- > 0;) {
      if (axes_[a].stride != axes_[a + 1].extent * axes_[a + 1].stride) continue;
      axes_[a] = {axes_[a].extent * axes_[a + 1].extent, axes_[a + 1].stride};
      std::move(axes_.begin() + a + 2, axes_.begin() + count_, axes_.begin() + a + 1);
      --count_;
    }
  }

  std::span<const Axis> all() const { return {axes_.data(), count_}; }
  std::span<const Axis> outer() const { return {axes_.data(), count_ - 1}; }
  const Axis& innermost() const { return axes_[count_ - 1]; }

 private:
  void insert(const Axis& axis) {
    std::size_t at = count_++;
    for (; at > 0 && axes_[at - 1].stride < axis.stride; --at) axes_[at] = axes_[at - 1];
    axes_[at] = axis;
  }

  std::array<Axis, kMaxRank + 1> axes_{};
  std::size_t count_ = 0;
};

/// Bytes from the first to past the last element.
std::uintptr_t span_bytes(std::span<const Axis> axes) {
  std::uintptr_t bytes = 1;
  for (const Axis& axis : axes) bytes += static_cast<std::uintptr_t>((axis.extent - 1) * axis.stride);
  return bytes;
}

}  // namespace

bool empty(const ConstTensorView& tensor) {
  for (const std::int64_t extent : extents(tensor)) {
    if (extent == 0) return true;
  }
  return false;
}

bool counts_elements(const ConstTensorView& tensor, std::int64_t batch, std::int64_t pages) {
  const Checked entries = Checked(batch) * pages;
  if (!entries.fits()) return false;
  Checked bytes = Checked(16) * std::max({tensor.shape[0], entries.value(), std::int64_t{1}});
  for (const std::int64_t extent : extents(tensor).subspan(1)) bytes = bytes * std::max<std::int64_t>(extent, 1);
  return bytes.fits();
}

std::string shape_text(const ConstTensorView& tensor) { return fmt::format("[{}]", fmt::join(extents(tensor), ", ")); }

std::string device_text(const Device& device) {
  return device.type == DeviceType::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

Status check_memory(const NamedTensor& tensor) {
  const auto& [name, view] = tensor;
  if (view.device.type == DeviceType::cpu && view.device.index != 0) {
    return invalid("{} is on device {} of the cpu: its index must be 0", name, view.device.index);
  }
  Checked elements = 1;
  Checked span = 1;
  for (std::size_t a = 0; a < static_cast<std::size_t>(view.rank); ++a) {
    const std::int64_t extent = view.shape[a];
    const std::int64_t stride = view.strides[a];
    if (extent < 0) return invalid("{} has shape {}: an extent must not be negative", name, shape_text(view));
    elements = elements * std::max<std::int64_t>(extent, 1);
    if (!elements.at_most(kMaxElements)) {
      return invalid("{} has shape {}: it must span at most 2^48 elements of memory", name, shape_text(view));
    }
    if (extent <= 1) continue;
    if (stride < 0) return invalid("{} has stride {} on axis {}: strides must not be negative", name, stride, a);
    span = span + Checked(extent - 1) * stride;
    if (!span.at_most(kMaxElements)) {
      return invalid("{} has shape {} and strides {}: it must span at most 2^48 elements of memory", name,
                     shape_text(view), strides_text(view));
    }
  }
  return {};
}

Status check_layout(const NamedTensor& tensor, int rank, std::string_view layout) {
  const auto& [name, view] = tensor;
  if (!view.given()) return invalid("{} is missing: give a tensor {}", name, layout);
  if (view.rank != rank) return invalid("{} has rank {}: it must have rank {} {}", name, view.rank, rank, layout);
  if (Status status = check_memory(tensor); !status.ok()) return status;
  const auto last = static_cast<std::size_t>(rank - 1);
  // NumPy gives a tensor without elements strides of 0.
  if (view.shape[last] > 1 && view.strides[last] != 1 && !empty(view)) {
    return invalid("{} has stride {} on its last axis: it must be 1", name, view.strides[last]);
  }
  return {};
}

Status check_dtype(const NamedTensor& tensor, DType wanted, std::string_view reason) {
  if (tensor.view.dtype == wanted) return {};
  return invalid("{} is {}: it must be {}{}", tensor.name, name_of(tensor.view.dtype), name_of(wanted), reason);
}

Status check_device(const NamedTensor& tensor, const Device& device_of_q) {
  if (tensor.view.device == device_of_q) return {};
  return invalid("{} is on {} and q on {}: all tensors must be on one device", tensor.name,
                 device_text(tensor.view.device), device_text(device_of_q));
}

Status check_on_host(const NamedTensor& tensor) {
  if (tensor.view.device.type == DeviceType::cpu) return {};
  return invalid("{} is on {}: it must be in host memory", tensor.name, device_text(tensor.view.device));
}

Status check_threads(int threads) {
  constexpr int kMaxThreads = 4096;
  if (threads >= 0 && threads <= kMaxThreads) return {};
  return invalid("threads is {}: it must be from 1 to {}, or 0 for one per hardware thread", threads, kMaxThreads);
}

Status check_dropout(float probability) {
  const bool probable = probability >= 0.0F && probability < 1.0F;
  if (!probable) return invalid("dropout is {}: it must be at least 0 and less than 1", probability);
  constexpr float kDropsAll = 511.0F / 512.0F;  // the least that is rounded to 256/256
  if (probability < kDropsAll) return {};
  return invalid(
      "dropout is {}: it is rounded to a multiple of 1/256, which must be less than 1: give less than 511/512",
      probability);
}

Status check_random_state(float dropout, const RandomState& random) {
  const auto address = reinterpret_cast<std::uintptr_t>(random.on_device);
  if (dropout == 0.0F || address % alignof(std::uint64_t) == 0) return {};
  return invalid("random.on_device is not aligned to {} bytes", alignof(std::uint64_t));
}

Status check_random_place(const RandomState& random, std::int64_t batch, std::int64_t heads_q) {
  if (random.first_batch < 0 || random.first_head < 0 || random.heads < 0) {
    return invalid("random has first_batch {}, first_head {} and heads {}: each must be 0 or more", random.first_batch,
                   random.first_head, random.heads);
  }
  const std::int64_t heads = heads_in_all(random, heads_q);
  if (random.first_head > heads - heads_q) {
    return invalid("random.first_head is {} and q has {} heads: random.heads, the heads of all, is {}",
                   random.first_head, heads_q, random.heads);
  }
  constexpr std::int64_t kNumbers = std::int64_t{1} << 32;
  if (((Checked(random.first_batch) + batch) * heads).at_most(kNumbers)) return {};
  return invalid("random has first_batch {} and heads {}: there may be 2^32 heads of sequences in all",
                 random.first_batch, random.heads);
}

Status check_shape(const NamedTensor& tensor, std::initializer_list<std::int64_t> wanted, std::string_view layout) {
  if (std::ranges::equal(extents(tensor.view), wanted)) return {};
  return invalid("{} has shape {}: it must be [{}] {}", tensor.name, shape_text(tensor.view), fmt::join(wanted, ", "),
                 layout);
}

Status check_data(const NamedTensor& tensor) {
  const auto& [name, view] = tensor;
  if (empty(view) || has_valid_pointer(view)) return {};
  if (view.data == nullptr) return invalid("{} has shape {} and a null pointer", name, shape_text(view));
  return invalid("{}'s pointer must be aligned to its {}-byte elements", name, size_of(view.dtype));
}

Status check_distinct_elements(const NamedTensor& output) {
  if (empty(output.view)) return {};
  const MergedAxes merged(output.view);
  const std::span<const Axis> axes = merged.all();
  for (std::size_t a = 0; a + 1 < axes.size(); ++a) {
    if (axes[a].stride < static_cast<std::int64_t>(span_bytes(axes.subspan(a + 1)))) {
      return invalid("{} has strides {} with shape {}: elements of an output must not share memory", output.name,
                     strides_text(output.view), shape_text(output.view));
    }
  }
  return {};
}

Status check_apart(const NamedTensor& output, const NamedTensor& other) {
  if (!other.view.given() || empty(output.view) || empty(other.view)) return {};
  const Span a_span(output.view);
  const Span b_span(other.view);
  if (a_span.apart_from(b_span)) return {};
  const MergedAxes a(output.view);
  const MergedAxes b(other.view);
  // Every inner block of both begins at a multiple of `period` from its tensor's first: apart within a period, apart
  // everywhere.
  std::int64_t period = 0;
  for (const auto& axes : {a.outer(), b.outer()}) {
    for (const Axis& axis : axes) period = std::gcd(period, axis.stride);
  }
  if (period > 0) {
    const auto p = static_cast<std::uintptr_t>(period);
    const std::uintptr_t ahead = (b_span.begin % p + p - a_span.begin % p) % p;  // of a's block, to b's
    if (ahead >= static_cast<std::uintptr_t>(a.innermost().extent) &&
        ahead + static_cast<std::uintptr_t>(b.innermost().extent) <= p) {
      return {};
    }
  }
  return invalid("{} overlaps {}: outputs must not share memory with any other tensor", output.name, other.name);
}

}  // namespace strobe::api
