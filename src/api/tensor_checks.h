// SPDX-License-Identifier: Apache-2.0
// What must hold of any tensor that a caller hands over, each broken rule with its message.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "strobe/attention.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe::api {

template <class... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::invalid_argument, fmt::format(format, std::forward<Args>(args)...)};
}

template <class... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::unsupported, fmt::format(format, std::forward<Args>(args)...)};
}

/// What is said when there is no memory, so short that a std::string holds it without any.
inline constexpr const char* kMemoryRanOut = "out of memory";

/// The first failure of checks that each assume the ones before.
template <class First, class... Rest>
Status first_failure(const First& first, const Rest&... rest) {
  Status status = first();
  if constexpr (sizeof...(rest) == 0) {
    return status;
  } else {
    if (!status.ok()) return status;
    return first_failure(rest...);
  }
}

/// A tensor and the name that messages call it by.
struct NamedTensor {
  std::string_view name;
  ConstTensorView view;
};

/// The addresses from the first to past the last element of a tensor that has some.
struct Span {
  Span() = default;  // no addresses: arrays of them need no clearing
  explicit Span(const ConstTensorView& tensor)
      : begin(reinterpret_cast<std::uintptr_t>(tensor.data)), end(begin + size_of(tensor.dtype)) {
    const std::uintptr_t size = size_of(tensor.dtype);
    for (std::size_t a = 0; a < static_cast<std::size_t>(tensor.rank); ++a) {
      if (tensor.shape[a] > 1) end += static_cast<std::uintptr_t>((tensor.shape[a] - 1) * tensor.strides[a]) * size;
    }
  }

  bool apart_from(const Span& other) const { return end <= other.begin || other.end <= begin; }

  std::uintptr_t begin, end;
};

/// Whether it has no elements: its pointer may then be null and is not to be computed with.
bool empty(const ConstTensorView& tensor);

/// Whether its pointer is one to such elements. Their sizes are powers of two: every run of a plan asks, without a
/// division.
inline bool has_valid_pointer(const ConstTensorView& tensor) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  return address != 0 && (address & (size_of(tensor.dtype) - 1)) == 0;
}

/// "[2, 5, 8, 64]"
std::string shape_text(const ConstTensorView& tensor);

/// Whether 64 bits count the bytes that workspaces take, at most 16 an element, where the first axis of `tensor` is
/// repeated until it has `batch * pages` entries.
bool counts_elements(const ConstTensorView& tensor, std::int64_t batch, std::int64_t pages);

/// "cpu" or "cuda:0"
std::string device_text(const Device& device);

/// Extents and strides are in range: none is negative, and all of them span at most 2^48 elements.
Status check_memory(const NamedTensor& tensor);

/// Given, of the wanted rank, extents and strides in range, last stride 1. `layout` names the axes: "[batch, ...]".
Status check_layout(const NamedTensor& tensor, int rank, std::string_view layout);

Status check_dtype(const NamedTensor& tensor, DType wanted, std::string_view reason);

/// On the device that q is on.
Status check_device(const NamedTensor& tensor, const Device& device_of_q);

Status check_on_host(const NamedTensor& tensor);

/// Execution::threads of any call.
Status check_threads(int threads);

/// The dropout probability of any call.
Status check_dropout(float probability);

/// What dropout draws from: its pointer, where it is read.
Status check_random_state(float dropout, const RandomState& random);

/// Where a call of so many sequences and query heads is in a larger one.
Status check_random_place(const RandomState& random, std::int64_t batch, std::int64_t heads_q);

/// Equal shapes; `layout` names the axes.
Status check_shape(const NamedTensor& tensor, std::initializer_list<std::int64_t> wanted, std::string_view layout);

/// A pointer where there are elements, aligned to them.
Status check_data(const NamedTensor& tensor);

/// No element of a writable tensor shares memory with another of its own.
Status check_distinct_elements(const NamedTensor& output);

/// Memory of two tensors apart. Interleaved views of one buffer (q, k and v of a packed projection) pass; where the
/// strides leave it open, the pair is rejected.
Status check_apart(const NamedTensor& output, const NamedTensor& other);

}  // namespace strobe::api
