// SPDX-License-Identifier: Apache-2.0
// How tests and measurements change what a planner has chosen.
#pragma once

#include <functional>
#include <typeindex>
#include <utility>

#include "strobe/export.h"

namespace strobe::gpu {

/// While it lives, the calls that this thread plans (by make_plan) take what `change` makes of the planner's choice of
/// a type, which must fit the problem; the innermost one counts. Exported for the program and the tests, no part of the
/// public API: they name a type by Override.
class STROBE_API AnyOverride {
 public:
  using Change = std::function<void(void* choice)>;

  AnyOverride(std::type_index type, Change change);
  ~AnyOverride();
  AnyOverride(const AnyOverride&) = delete;
  AnyOverride& operator=(const AnyOverride&) = delete;

  /// The innermost change of that type on this thread; null where there is none.
  static const Change* find(std::type_index type);
};

/// The same of one type of choice: DeviceShape, or the configuration of a family's kernel.
template <class Choice>
class Override : public AnyOverride {
 public:
  using Change = std::function<void(Choice& choice)>;

  explicit Override(Change change)
      : AnyOverride(typeid(Choice),
                    [change = std::move(change)](void* choice) { change(*static_cast<Choice*>(choice)); }) {}
};

/// Whether this thread's calls take another choice of that type than the planner's.
template <class Choice>
bool is_overridden() {
  return AnyOverride::find(typeid(Choice)) != nullptr;
}

/// What the call takes in the place of the planner's choice.
template <class Choice>
Choice overridden(Choice choice) {
  if (const AnyOverride::Change* const change = AnyOverride::find(typeid(Choice)); change != nullptr) {
    (*change)(&choice);
  }
  return choice;
}

}  // namespace strobe::gpu
