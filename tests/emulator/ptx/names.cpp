// SPDX-License-Identifier: Apache-2.0
#include "ptx/names.h"

#include <cctype>
#include <cstdlib>
#include <cstring>

namespace strobe::emulator {

std::int64_t type_bytes(std::string_view type) {
  if (type.ends_with("128")) return 16;
  if (type.ends_with("64")) return 8;
  if (type.ends_with("32") || type.ends_with("16x2")) return 4;
  if (type.ends_with("16")) return 2;
  return 1;
}

RegisterKind kind_of(std::string_view type) {
  if (type == ".pred") return RegisterKind::predicate;
  switch (type_bytes(type)) {
    case 16: return RegisterKind::bits128;
    case 8: return RegisterKind::bits64;
    case 4: return RegisterKind::bits32;
    default: return RegisterKind::bits16;
  }
}

SourceOperand number_in(std::string_view text) {
  SourceOperand parsed;
  const std::string digits(text);
  if (text.starts_with("0f") || text.starts_with("0F")) {
    parsed.kind = SourceOperand::Kind::real32;
    parsed.integer = static_cast<std::int64_t>(std::strtoull(digits.c_str() + 2, nullptr, 16));
  } else if (text.starts_with("0d") || text.starts_with("0D")) {
    parsed.kind = SourceOperand::Kind::real64;
    parsed.integer = static_cast<std::int64_t>(std::strtoull(digits.c_str() + 2, nullptr, 16));
  } else if (!text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) != 0 || text[0] == '-')) {
    if (text.find('.') != std::string_view::npos) {
      parsed.kind = SourceOperand::Kind::real64;
      const double value = std::strtod(digits.c_str(), nullptr);
      std::memcpy(&parsed.integer, &value, sizeof(value));
    } else {
      parsed.kind = SourceOperand::Kind::integer;
      const bool is_negative = text[0] == '-';
      const auto value = static_cast<std::int64_t>(std::strtoull(digits.c_str() + (is_negative ? 1 : 0), nullptr, 0));
      parsed.integer = is_negative ? -value : value;
    }
  }
  return parsed;
}

int Names::open_scope(int parent) {
  scopes_.emplace_back().parent = parent;
  return static_cast<int>(scopes_.size()) - 1;
}

void Names::declare(int scope, std::string_view name, RegisterKind kind) {
  const std::size_t angle = name.find('<');
  if (angle == std::string_view::npos) {
    at(scope).registers[std::string(name)] = add_register(kind);
  } else {
    at(scope).families[std::string(name.substr(0, angle))] = kind;
  }
}

int Names::add_register(RegisterKind kind) {
  kernel_.registers.push_back(kind);
  return static_cast<int>(kernel_.registers.size()) - 1;
}

int Names::find_register(int scope, std::string_view name) {
  const std::string key(name);
  const std::size_t digits = name.find_last_not_of("0123456789") + 1;
  for (; scope >= 0; scope = at(scope).parent) {
    Scope& in = at(scope);
    if (const auto found = in.registers.find(key); found != in.registers.end()) return found->second;
    if (digits == name.size()) continue;
    const auto family = in.families.find(std::string(name.substr(0, digits)));
    if (family != in.families.end()) return in.registers[key] = add_register(family->second);
  }
  return -1;
}

int Names::find_label(int scope, const std::string& name) const {
  for (; scope >= 0; scope = at(scope).parent) {
    if (const auto found = at(scope).labels.find(name); found != at(scope).labels.end()) return found->second;
  }
  return -1;
}

const Symbol* Names::find_symbol(std::string_view name) const {
  using Symbols = const std::vector<std::unique_ptr<Symbol>>*;
  for (const Symbols symbols : {Symbols{&kernel_.locals}, Symbols{&kernel_.params}, Symbols{&module_.symbols}}) {
    for (const auto& symbol : *symbols) {
      if (symbol->name == name) return symbol.get();
    }
  }
  return nullptr;
}

}  // namespace strobe::emulator
