// SPDX-License-Identifier: Apache-2.0
// Whether two calls differ in nothing but in where their tensors lie and what these hold.
#pragma once

#include <cstddef>
#include <tuple>

#include "call/tensors.h"

namespace strobe {
namespace internal {

template <class Pointer>
constexpr bool alike(const BasicTensorView<Pointer>& a, const BasicTensorView<Pointer>& b) {
  if (a.rank != b.rank) return false;
  if (!a.given()) return true;
  return a.dtype == b.dtype && a.device == b.device && a.shape == b.shape && a.strides == b.strides;
}

/// Seeds are values, as elements are.
constexpr bool alike(const RandomState& /*a*/, const RandomState& /*b*/) { return true; }
constexpr bool alike(const Rotation& a, const Rotation& b) { return a.given == b.given; }

/// Calls with a function are never compared: what it and the captures point to is the caller's, and may be gone.
constexpr bool alike(const ScoreFunction* a, const ScoreFunction* b) { return a == nullptr && b == nullptr; }

template <class Value>
constexpr bool alike(const Value& a, const Value& b) {
  return a == b;
}

}  // namespace internal

/// Whether two structs of arguments have the same tensors, with the same dtypes, devices, shapes and strides: then one
/// is a valid call if the other is, but for its memory, and both are the same AttentionProblem.
template <class Arguments>
constexpr bool has_same_layout(const Arguments& a, const Arguments& b) {
  const auto field_is_same = [&]<class Field>(const Field& field) {
    if constexpr (requires { field.members; }) {
      return (a.*field.members).empty() && (b.*field.members).empty();
    } else if constexpr (requires { field.tensor; }) {
      return internal::alike(a.*field.member, b.*field.member);
    } else if constexpr (requires { field.member; }) {
      return has_same_layout(a.*field.member, b.*field.member);
    } else {
      return internal::alike(a.*field.value, b.*field.value);
    }
  };
  return std::apply([&](const auto&... fields) { return (field_is_same(fields) && ...); },
                    internal::kFields<Arguments>);
}

}  // namespace strobe
