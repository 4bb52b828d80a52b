// SPDX-License-Identifier: Apache-2.0
// The options of a call that are one number or flag of AttentionOptions, by the names that Python has for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include "strobe/attention.h"

namespace strobe::python {

struct OptionField {
  std::string_view name;
  std::variant<std::optional<float> AttentionOptions::*, float AttentionOptions::*, std::int64_t AttentionOptions::*,
               bool AttentionOptions::*>
      field;
};

inline constexpr OptionField kOptionFields[] = {
    {"scale", &AttentionOptions::scale},
    {"softcap", &AttentionOptions::softcap},
    {"chunk", &AttentionOptions::chunk},
    {"dropout", &AttentionOptions::dropout},
    {"deterministic", &AttentionOptions::deterministic},
    {"row_invariant", &AttentionOptions::row_invariant},
};

/// Calls visit(value) with a reference to the named field of `options`. False if there is none of that name.
template <class Visit>
bool visit_option(AttentionOptions& options, std::string_view name, const Visit& visit) {
  for (const OptionField& option : kOptionFields) {
    if (option.name != name) continue;
    std::visit([&](const auto field) { visit(options.*field); }, option.field);
    return true;
  }
  return false;
}

}  // namespace strobe::python
