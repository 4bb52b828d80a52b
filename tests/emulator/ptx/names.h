// SPDX-License-Identifier: Apache-2.0
// What names and numbers in PTX stand for: registers and labels of scopes within scopes, variables of kernel and
// module.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ptx/source.h"

namespace strobe::emulator {

std::int64_t type_bytes(std::string_view type);
RegisterKind kind_of(std::string_view type);

/// An integer or real number; of no kind where the text is none.
SourceOperand number_in(std::string_view text);

/// The names of one kernel. Scopes are numbered; 0 is the kernel's body.
class Names {
 public:
  Names(const SourceModule& module, SourceKernel& kernel) : module_(module), kernel_(kernel), scopes_(1) {}

  int open_scope(int parent);
  int parent_of(int scope) const { return at(scope).parent; }

  /// %r<20> declares a family, others one register.
  void declare(int scope, std::string_view name, RegisterKind kind);
  void set_label(int scope, std::string_view name, int statement) { at(scope).labels[std::string(name)] = statement; }

  /// -1 and null where there is none of that name.
  int find_register(int scope, std::string_view name);
  int find_label(int scope, const std::string& name) const;
  const Symbol* find_symbol(std::string_view name) const;

 private:
  struct Scope {
    int parent = -1;
    std::unordered_map<std::string, int> registers;
    std::unordered_map<std::string, RegisterKind> families;  // by their prefix
    std::unordered_map<std::string, int> labels;
  };

  Scope& at(int scope) { return scopes_[static_cast<std::size_t>(scope)]; }
  const Scope& at(int scope) const { return scopes_[static_cast<std::size_t>(scope)]; }
  int add_register(RegisterKind kind);

  const SourceModule& module_;
  SourceKernel& kernel_;
  std::vector<Scope> scopes_;
};

}  // namespace strobe::emulator
