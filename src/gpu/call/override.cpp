// SPDX-License-Identifier: Apache-2.0
#include "gpu/call/override.h"

#include <algorithm>
#include <vector>

namespace strobe::gpu {
namespace {

struct Entry {
  std::type_index type;
  AnyOverride::Change change;
};

/// The innermost one last.
std::vector<Entry>& entries() {
  thread_local std::vector<Entry> overrides;
  return overrides;
}

}  // namespace

AnyOverride::AnyOverride(std::type_index type, Change change) { entries().push_back({type, std::move(change)}); }

AnyOverride::~AnyOverride() { entries().pop_back(); }

const AnyOverride::Change* AnyOverride::find(std::type_index type) {
  const std::vector<Entry>& overrides = entries();
  const auto found =
      std::find_if(overrides.rbegin(), overrides.rend(), [&](const Entry& entry) { return entry.type == type; });
  return found == overrides.rend() ? nullptr : &found->change;
}

}  // namespace strobe::gpu
