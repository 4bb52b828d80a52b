#include "guarded_tensor.h"

#include <algorithm>
#include <cstring>

namespace strobe::test {
namespace {

constexpr std::byte kPoison{0xFF};   // all ones is NaN in every floating-point format
constexpr std::int64_t kGuard = 64;  // elements before and after

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

}  // namespace

GuardedTensor::GuardedTensor(DType dtype, const std::vector<std::int64_t>& shape, Layout layout, Random& random) {
  view_.dtype = dtype;
  place(shape, layout, random);
  poison();
}

void GuardedTensor::place(const std::vector<std::int64_t>& shape, Layout layout, Random& random) {
  view_.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view_.shape.begin());
  const bool gaps = layout == Layout::padded || layout == Layout::scrambled;
  std::int64_t stride = 1;
  for (const int axis : memory_order(view_.rank, layout, random)) {
    view_.strides[axis] = stride;
    stride *= std::max<std::int64_t>(1, shape[axis]);
    if (gaps) stride += random.integer(0, 9);
  }
  const std::int64_t start = kGuard + (gaps ? random.integer(0, 15) : 0);
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  offsets_.resize(count);
  for (std::int64_t index = 0; index < count; ++index) {
    std::int64_t rest = index;
    offsets_[index] = start;
    for (int axis = view_.rank - 1; axis >= 0; --axis) {
      offsets_[index] += rest % shape[axis] * view_.strides[axis];
      rest /= shape[axis];
    }
  }
  memory_.assign((start + stride + kGuard) * size_of(view_.dtype), kPoison);
  view_.data = memory_.data() + start * size_of(view_.dtype);
}

void GuardedTensor::set(std::int64_t index, double value) {
  std::byte* target = memory_.data() + offsets_[index] * size_of(view_.dtype);
  const float narrow = static_cast<float>(value);
  const bfloat16 brain = to_bfloat16(narrow);
  const float16 half = to_float16(narrow);
  switch (view_.dtype) {
    case DType::bfloat16: std::memcpy(target, &brain, sizeof brain); break;
    case DType::float16: std::memcpy(target, &half, sizeof half); break;
    default: std::memcpy(target, &narrow, sizeof narrow); break;
  }
}

double GuardedTensor::get(std::int64_t index) const {
  const std::byte* source = memory_.data() + offsets_[index] * size_of(view_.dtype);
  float narrow = 0.0F;
  std::uint16_t bits = 0;
  if (view_.dtype == DType::float32) {
    std::memcpy(&narrow, source, sizeof narrow);
    return narrow;
  }
  std::memcpy(&bits, source, sizeof bits);
  return view_.dtype == DType::bfloat16 ? to_float(bfloat16{bits}) : to_float(float16{bits});
}

void GuardedTensor::poison() { std::fill(memory_.begin(), memory_.end(), kPoison); }

bool GuardedTensor::guards_intact() const {
  const std::size_t width = size_of(view_.dtype);
  std::vector<bool> inside(memory_.size() / width, false);
  for (const std::int64_t offset : offsets_) inside[offset] = true;
  for (std::size_t byte = 0; byte < memory_.size(); ++byte) {
    if (!inside[byte / width] && memory_[byte] != kPoison) return false;
  }
  return true;
}

bool GuardedTensor::untouched() const {
  return std::all_of(memory_.begin(), memory_.end(), [](std::byte byte) { return byte == kPoison; });
}

std::vector<std::byte> GuardedTensor::element_bytes() const {
  const std::size_t width = size_of(view_.dtype);
  std::vector<std::byte> bytes(offsets_.size() * width);
  for (std::size_t index = 0; index < offsets_.size(); ++index) {
    std::memcpy(bytes.data() + index * width, memory_.data() + offsets_[index] * width, width);
  }
  return bytes;
}

}  // namespace strobe::test
