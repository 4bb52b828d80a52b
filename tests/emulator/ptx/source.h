// SPDX-License-Identifier: Apache-2.0
// PTX as it is written: declarations and statements, with names resolved to registers, symbols and labels.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace strobe::emulator {

/// PTX that this emulator does not understand.
class UnsupportedPtx : public std::runtime_error {
 public:
  UnsupportedPtx(int line, std::string_view text, std::string_view why);
};

enum class Space : std::uint8_t { generic, global, constant, shared, shared_cluster, local, param };

/// A variable in memory.
struct Symbol {
  std::string name;
  Space space = Space::global;
  std::int64_t bytes = 0;
  std::int64_t alignment = 1;
  std::vector<std::uint8_t> initial;  // empty: zeros
  std::int64_t offset = 0;            // in its space, or the address of a global variable
  bool is_dynamic = false;            // extern shared memory: its size is the launch's
};

enum class RegisterKind : std::uint8_t { predicate, bits16, bits32, bits64, bits128 };

struct SourceOperand {
  enum class Kind : std::uint8_t { none, reg, special, symbol, label, integer, real32, real64, vector, pair, address };
  Kind kind = Kind::none;
  int number = 0;                    // of a register, or of a statement for a label
  bool negated = false;              // !%p
  std::int64_t integer = 0;          // value, bits of a real, or offset of a symbol or address
  std::string name;                  // of a special register or label
  const Symbol* symbol = nullptr;    // of a symbol
  std::vector<SourceOperand> parts;  // of a vector, pair or address: base, then coordinates
};

struct Statement {
  int line = 0;
  std::string_view text;
  int guard = -1;  // a predicate register
  bool guard_negated = false;
  std::vector<std::string_view> opcode;  // "add", "s32"
  std::vector<SourceOperand> operands;
  int scope = 0;

  bool has(std::string_view modifier) const;
};

struct SourceKernel {
  std::string name;
  std::vector<std::unique_ptr<Symbol>> params;
  std::vector<std::unique_ptr<Symbol>> locals;  // local and shared variables of its own
  std::vector<RegisterKind> registers;
  std::vector<Statement> statements;
  std::map<std::string, std::vector<int>> branch_targets;  // of brx.idx, as statements
  std::int64_t param_bytes = 0;
  std::int64_t local_bytes = 0;
  std::int64_t static_shared = 0;
  int max_threads = 1024;
  int min_blocks = 1;
  std::array<unsigned, 3> cluster = {1, 1, 1};  // blocks, where the kernel itself says so
};

struct SourceModule {
  std::string text;  // what every string_view points into
  std::vector<std::unique_ptr<Symbol>> symbols;
  std::vector<std::unique_ptr<SourceKernel>> kernels;
};

/// Shared memory begins here in its window, as on sm_90: 0 is no address.
inline constexpr std::int64_t kSharedBase = 1024;

std::unique_ptr<SourceModule> parse_ptx(std::string text);

}  // namespace strobe::emulator
