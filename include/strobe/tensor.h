// SPDX-License-Identifier: Apache-2.0
// Views of the caller's tensors. Strobe never owns, copies or frees the memory behind a view.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "strobe/export.h"
#include "strobe/float16.h"
#include "strobe/float8.h"

namespace strobe {

/// @stable
enum class DType : std::uint8_t { float32, float16, bfloat16, int32, float8_e4m3, uint8, int8, int64 };

/// Bytes of one element. @stable
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
    case DType::int32: return 4;
    case DType::float16:
    case DType::bfloat16: return 2;
    case DType::float8_e4m3:
    case DType::uint8:
    case DType::int8: return 1;
    case DType::int64: return 8;
  }
  return 0;
}

/// The dtype's name as users write it: "float32", "bfloat16", ... @stable
STROBE_API const char* name_of(DType dtype);

/// @stable
enum class DeviceType : std::uint8_t { cpu, cuda };

/// @stable
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// @stable
inline constexpr int kMaxRank = 4;

/// A non-owning view: pointer, dtype, device, shape and strides (in elements).
/// A default-constructed view has rank 0 and means "not given". A view with zero elements may have a null pointer.
/// @stable
template <class Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DType dtype = DType::float32;
  Device device{};
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  bool given() const { return rank != 0; }

  /// A writable view converts to a const one.
  operator BasicTensorView<const void*>() const  // NOLINT(google-explicit-constructor)
    requires(!std::is_same_v<Pointer, const void*>)
  {
    return {data, dtype, device, rank, shape, strides};
  }
};

/// @stable
using TensorView = BasicTensorView<void*>;
using ConstTensorView = BasicTensorView<const void*>;

namespace detail {
template <class T>
constexpr DType dtype_of() {
  using Element = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<Element, float>) return DType::float32;
  if constexpr (std::is_same_v<Element, float16>) return DType::float16;
  if constexpr (std::is_same_v<Element, bfloat16>) return DType::bfloat16;
  if constexpr (std::is_same_v<Element, std::int32_t>) return DType::int32;
  if constexpr (std::is_same_v<Element, std::uint8_t>) return DType::uint8;
  if constexpr (std::is_same_v<Element, std::int8_t>) return DType::int8;
  if constexpr (std::is_same_v<Element, std::int64_t>) return DType::int64;
  if constexpr (std::is_same_v<Element, float8_e4m3>) return DType::float8_e4m3;
}
}  // namespace detail

/// A view of contiguous (row-major) host memory; `shape` has at most kMaxRank extents. For memory of a GPU, set the
/// view's `device`.
/// T is float, float16, bfloat16, float8_e4m3, int32_t, int64_t, int8_t or uint8_t, or const-qualified for a
/// ConstTensorView. @stable
template <class T>
auto tensor(T* data, std::initializer_list<std::int64_t> shape) {
  BasicTensorView<std::conditional_t<std::is_const_v<T>, const void*, void*>> view;
  view.data = data;
  view.dtype = detail::dtype_of<T>();
  for (const std::int64_t extent : shape) {
    if (view.rank == kMaxRank) break;
    view.shape[static_cast<std::size_t>(view.rank++)] = extent;
  }
  std::int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.strides[static_cast<std::size_t>(axis)] = stride;
    // Unsigned: the call, not this function, reports extents whose product overflows.
    stride = static_cast<std::int64_t>(static_cast<std::uint64_t>(stride) *
                                       static_cast<std::uint64_t>(view.shape[static_cast<std::size_t>(axis)]));
  }
  return view;
}

}  // namespace strobe
