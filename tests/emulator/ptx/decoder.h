// SPDX-License-Identifier: Apache-2.0
// From statements to instructions: finds each one's handler, and places for registers and constants.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "machine/instruction.h"
#include "ptx/source.h"

namespace strobe::emulator {

class Decoder;
using DecodeFunction = void (*)(Decoder& decoder, const Statement& statement);
using DecodeTable = std::unordered_map<std::string_view, DecodeFunction>;

// Each file of instructions/ adds its own, by the first part of the opcode.
void add_integer(DecodeTable& table);
void add_bits(DecodeTable& table);
void add_floating(DecodeTable& table);
void add_approximate(DecodeTable& table);
void add_convert(DecodeTable& table);
void add_compare(DecodeTable& table);
void add_move(DecodeTable& table);
void add_memory(DecodeTable& table);
void add_atomic(DecodeTable& table);
void add_control(DecodeTable& table);
void add_barrier(DecodeTable& table);
void add_mbarrier(DecodeTable& table);
void add_warp(DecodeTable& table);
void add_matrix(DecodeTable& table);
void add_async_copy(DecodeTable& table);
void add_warpgroup(DecodeTable& table);
void add_cluster(DecodeTable& table);

class Decoder {
 public:
  Decoder(const SourceModule& module, const SourceKernel& kernel);
  std::unique_ptr<Program> decode();

  [[noreturn]] void unsupported(std::string_view why) const;

  /// What an operand is read from: a register, or a constant, of so many bits; 1: a predicate.
  Place in(const SourceOperand& operand, int bits);
  /// What a result is written to; a place of its own where it is not wanted.
  Place out(const SourceOperand& operand, int bits);
  /// A register that no statement names.
  Place temporary(int bits);
  Place constant(std::uint64_t value, int bits);
  /// Of a register or constant operand; 0 for one without bits of its own, such as a number.
  int bits_of(const SourceOperand& operand) const;
  /// A predicate that add.cc and its kind keep.
  Place carry();

  Instruction& emit(Handler handler, std::initializer_list<Place> results, std::initializer_list<Place> arguments,
                    std::int64_t immediate = 0, std::uint32_t detail = 0);
  Instruction& emit(Handler handler, const std::vector<Place>& results, const std::vector<Place>& arguments,
                    std::int64_t immediate = 0, std::uint32_t detail = 0);

  /// Targets of a branch by an index, as statements; the handler's immediate becomes the address of the list.
  void add_table(Instruction& instruction, const std::vector<int>& statements);

  const SourceKernel& kernel() const { return kernel_; }

 private:
  Place special(const std::string& name);
  RegisterKind kind_of_place(Place place) const;
  void resolve_targets(const std::vector<int>& first_instruction);
  void lay_out();

  const SourceKernel& kernel_;
  const Statement* statement_ = nullptr;
  std::unique_ptr<Program> program_;
  std::vector<RegisterKind> registers_;   // the kernel's, then temporaries
  std::vector<std::size_t> first_place_;  // of each instruction, in the program's places
  std::vector<std::pair<std::uint64_t, int>> constants_;
  std::map<std::pair<std::uint64_t, int>, Place> constant_places_;
  std::map<Special, Place> special_places_;
  Place carry_ = kNoPlace;
};

/// Gives registers that are never alive at once the same bytes. `places`: for each register, its place.
std::size_t allocate_registers(const Program& program, const std::vector<RegisterKind>& registers,
                               const std::vector<Place>& always_alive, std::vector<Place>& places);

/// The bits of the last part of an opcode that is a type, as 32 for "s32".
int type_bits(std::string_view type);
bool is_signed(std::string_view type);

}  // namespace strobe::emulator
