// SPDX-License-Identifier: Apache-2.0
// The number of fields of a struct, so that a list of them that lacks one does not compile.
#pragma once

#include <cstddef>
#include <utility>

namespace strobe {
namespace internal {

/// Initialises any field.
struct Anything {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor): this is what it is for
};

template <std::size_t>
using AnythingAt = Anything;

template <class Struct, std::size_t... indices>
constexpr bool takes(std::index_sequence<indices...>) {
  return requires { Struct{AnythingAt<indices>{}...}; };
}

}  // namespace internal

/// The number of fields of an aggregate that has some.
template <class Struct, std::size_t count = 1>
constexpr std::size_t count_fields() {
  if constexpr (internal::takes<Struct>(std::make_index_sequence<count + 1>{})) {
    return count_fields<Struct, count + 1>();
  } else {
    return count;
  }
}

}  // namespace strobe
