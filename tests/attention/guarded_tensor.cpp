// SPDX-License-Identifier: Apache-2.0
#include "guarded_tensor.h"

#include <algorithm>
#include <cstring>

#include "call/arithmetic.h"

namespace strobe::test {
namespace {

constexpr std::byte kPoison{0xFF};  // all ones is NaN in every floating-point format

// Axes from the innermost in memory to the outermost; the last axis of the view always is the innermost.
std::vector<int> memory_order(int rank, Layout layout, Random& random) {
  std::vector<int> order;
  for (int axis = rank - 1; axis >= 0; --axis) order.push_back(axis);
  if (layout == Layout::transposed && rank >= 3) std::swap(order[1], order[2]);
  if (layout == Layout::scrambled) {
    for (int place = rank - 1; place > 1; --place) std::swap(order[place], order[random.integer(1, place)]);
  }
  return order;
}

/// Element `index` in row-major order of the view's shape.
const std::byte* element_of(const ConstTensorView& view, std::int64_t index) {
  std::int64_t offset = 0;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    offset += index % view.shape[axis] * view.strides[axis];
    index /= view.shape[axis];
  }
  return static_cast<const std::byte*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
}

template <class T>
void store(std::byte* target, T value) {
  std::memcpy(target, &value, sizeof value);
}

template <class T>
T load(const std::byte* source) {
  T value;
  std::memcpy(&value, source, sizeof value);
  return value;
}

}  // namespace

GuardedTensor::GuardedTensor(DType dtype, const std::vector<std::int64_t>& shape, const Placement& placement,
                             Random& random) {
  view_.dtype = dtype;
  place(shape, placement, random);
  poison();
}

void GuardedTensor::place(const std::vector<std::int64_t>& shape, const Placement& placement, Random& random) {
  view_.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view_.shape.begin());
  const bool gaps = placement.layout == Layout::padded || placement.layout == Layout::scrambled;
  const auto gap = [&](std::int64_t most) { return gaps ? random.integer(0, most) : 0; };
  std::int64_t stride = 1;
  for (const int axis : memory_order(view_.rank, placement.layout, random)) {
    view_.strides[axis] = stride;
    stride = round_up(stride * std::max<std::int64_t>(1, shape[axis]) + gap(9), placement.alignment);
  }
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  offsets_.resize(count);
  std::int64_t end = 0;
  for (std::int64_t index = 0; index < count; ++index) {
    std::int64_t rest = index;
    for (int axis = view_.rank - 1; axis >= 0; --axis) {
      offsets_[index] += rest % shape[axis] * view_.strides[axis];
      rest /= shape[axis];
    }
    end = std::max(end, offsets_[index] + 1);
  }
  const std::int64_t start = placement.guard == Guard::page_after ? 0 : round_up(gap(15), placement.alignment);
  const std::size_t width = size_of(view_.dtype);
  memory_ = GuardedMemory(static_cast<std::size_t>(start + end) * width, placement.guard);
  view_.data = memory_.data() + start * width;
}

std::byte* GuardedTensor::element(std::int64_t index) const {
  return static_cast<std::byte*>(view_.data) + offsets_[index] * size_of(view_.dtype);
}

void GuardedTensor::set(std::int64_t index, double value) {
  std::byte* target = element(index);
  switch (view_.dtype) {
    case DType::float32: store(target, static_cast<float>(value)); break;
    case DType::bfloat16: store(target, to_bfloat16(static_cast<float>(value))); break;
    case DType::float16: store(target, to_float16(static_cast<float>(value))); break;
    case DType::int32: store(target, static_cast<std::int32_t>(value)); break;
    case DType::int64: store(target, static_cast<std::int64_t>(value)); break;
    case DType::uint8:
    case DType::int8:
    case DType::float8_e4m3: store(target, static_cast<std::uint8_t>(value)); break;
  }
}

void GuardedTensor::set_bits(std::int64_t index, std::uint64_t bits) { store(element(index), bits); }

double GuardedTensor::get(std::int64_t index) const {
  const std::byte* source = element(index);
  switch (view_.dtype) {
    case DType::float32: return load<float>(source);
    case DType::bfloat16: return to_float(load<bfloat16>(source));
    case DType::float16: return to_float(load<float16>(source));
    case DType::int32: return load<std::int32_t>(source);
    case DType::int64: return static_cast<double>(load<std::int64_t>(source));
    case DType::uint8:
    case DType::int8:
    case DType::float8_e4m3: break;
  }
  return load<std::uint8_t>(source);
}

void GuardedTensor::copy(const ConstTensorView& from) {
  const std::size_t width = size_of(view_.dtype);
  for (std::int64_t index = 0; index < size(); ++index) std::memcpy(element(index), element_of(from, index), width);
}

bool GuardedTensor::has_the_bits_of(const ConstTensorView& other) const {
  const std::size_t width = size_of(view_.dtype);
  for (std::int64_t index = 0; index < size(); ++index) {
    if (std::memcmp(element(index), element_of(other, index), width) != 0) return false;
  }
  return true;
}

void GuardedTensor::poison() { std::ranges::fill(memory_.accessible(), kPoison); }

bool GuardedTensor::guards_intact() const {
  const std::span<const std::byte> memory = memory_.accessible();
  const std::size_t width = size_of(view_.dtype);
  std::vector<bool> inside(memory.size(), false);
  for (std::int64_t index = 0; index < size(); ++index) {
    const auto first = inside.begin() + (element(index) - memory.data());
    std::fill(first, first + static_cast<std::ptrdiff_t>(width), true);
  }
  for (std::size_t byte = 0; byte < memory.size(); ++byte) {
    if (!inside[byte] && memory[byte] != kPoison) return false;
  }
  return true;
}

bool GuardedTensor::untouched() const {
  return std::ranges::all_of(memory_.accessible(), [](std::byte byte) { return byte == kPoison; });
}

std::vector<std::byte> GuardedTensor::element_bytes() const {
  const std::size_t width = size_of(view_.dtype);
  std::vector<std::byte> bytes(offsets_.size() * width);
  for (std::int64_t index = 0; index < size(); ++index) {
    std::memcpy(bytes.data() + index * width, element(index), width);
  }
  return bytes;
}

}  // namespace strobe::test
