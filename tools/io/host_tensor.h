// SPDX-License-Identifier: Apache-2.0
// A tensor that owns its host memory: what the file readers give and the programs compute on.
#pragma once

#include <oneapi/tbb/cache_aligned_allocator.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "call/checked.h"
#include "strobe/tensor.h"

namespace strobe::io {

/// Memory that begins with a cache line, as frameworks' does.
using HostBytes = std::vector<std::byte, oneapi::tbb::cache_aligned_allocator<std::byte>>;

struct HostTensor {
  DType dtype = DType::float32;
  std::vector<std::int64_t> shape;  // row-major, at most kMaxRank extents
  HostBytes bytes;
};

inline std::size_t element_count(const HostTensor& tensor) { return tensor.bytes.size() / size_of(tensor.dtype); }

/// Bytes of a row-major tensor; nothing when they end inside a byte, or when they or a stride do not fit 63 bits: an
/// extent of 0 hides no others.
inline std::optional<std::size_t> byte_count(const std::vector<std::int64_t>& shape, std::size_t element_bits) {
  Checked bits = element_bits;
  bool is_empty = false;
  for (const std::int64_t extent : shape) {
    is_empty = is_empty || extent == 0;
    if (extent != 0) bits = bits * extent;
  }
  if (!bits.fits()) return std::nullopt;
  if (is_empty) return 0;
  if (bits.value() % 8 != 0) return std::nullopt;
  return static_cast<std::size_t>(bits.value() / 8);
}

/// A tensor of zeros. Throws std::bad_alloc for more bytes than memory or 63 bits hold.
inline HostTensor make_tensor(DType dtype, std::vector<std::int64_t> shape) {
  const std::optional<std::size_t> bytes = byte_count(shape, 8 * size_of(dtype));
  if (!bytes) throw std::bad_alloc();
  return {dtype, std::move(shape), HostBytes(*bytes)};
}

/// Views contiguous row-major memory; `shape` has at most kMaxRank extents.
template <class Pointer>
BasicTensorView<Pointer> row_major_view(Pointer data, DType dtype, const std::vector<std::int64_t>& shape) {
  BasicTensorView<Pointer> view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    view.shape[axis] = shape[axis];
    view.strides[axis] = stride;
    stride *= shape[axis];
  }
  return view;
}

/// Views the whole tensor; valid while it lives. Tensor is HostTensor or const HostTensor.
template <class Tensor>
auto view(Tensor& tensor) {
  using Pointer = std::conditional_t<std::is_const_v<Tensor>, const void*, void*>;
  return row_major_view<Pointer>(tensor.bytes.data(), tensor.dtype, tensor.shape);
}

}  // namespace strobe::io
