// SPDX-License-Identifier: Apache-2.0
// The options that are one number or flag of AttentionOptions, by their names in Python and C: what Python, JAX and the
// tests read and print of them is loops over this list.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include "strobe/attention.h"

namespace strobe {

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
    {"log_length", &AttentionOptions::log_length},
    {"dropout", &AttentionOptions::dropout},
    {"deterministic", &AttentionOptions::deterministic},
    {"row_invariant", &AttentionOptions::row_invariant},
};

/// Calls visit(name, value, whether it is the default) for every option of the list.
template <class Visit>
void for_each_option(const AttentionOptions& options, const Visit& visit) {
  const AttentionOptions defaults;
  for (const OptionField& option : kOptionFields) {
    std::visit([&](const auto field) { visit(option.name, options.*field, options.*field == defaults.*field); },
               option.field);
  }
}

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

}  // namespace strobe
