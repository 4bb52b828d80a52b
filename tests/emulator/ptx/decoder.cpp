// SPDX-License-Identifier: Apache-2.0
#include "ptx/decoder.h"

#include <algorithm>
#include <cstring>

#include "instructions/predicates.h"

namespace strobe::emulator {
namespace {

const DecodeTable& decode_table() {
  static const DecodeTable table = [] {
    DecodeTable all;
    for (const auto add : {add_integer, add_bits, add_floating, add_approximate, add_convert, add_compare, add_move,
                           add_memory, add_atomic, add_control, add_barrier, add_mbarrier, add_warp, add_matrix,
                           add_async_copy, add_warpgroup, add_cluster}) {
      add(all);
    }
    return all;
  }();
  return table;
}

RegisterKind kind_for(int bits) {
  switch (bits) {
    case 1: return RegisterKind::predicate;
    case 8:
    case 16: return RegisterKind::bits16;
    case 32: return RegisterKind::bits32;
    case 64: return RegisterKind::bits64;
    default: return RegisterKind::bits128;
  }
}

int bits_for(RegisterKind kind) {
  switch (kind) {
    case RegisterKind::predicate: return 1;
    case RegisterKind::bits16: return 16;
    case RegisterKind::bits32: return 32;
    case RegisterKind::bits64: return 64;
    case RegisterKind::bits128: return 128;
  }
  return 0;
}

Special special_named(std::string_view name) {
  static const std::unordered_map<std::string_view, Special> specials = {
      {"%laneid", Special::laneid},
      {"%warpid", Special::warpid},
      {"%nwarpid", Special::nwarpid},
      {"%smid", Special::smid},
      {"%nsmid", Special::nsmid},
      {"%gridid", Special::gridid},
      {"%lanemask_eq", Special::lanemask_eq},
      {"%lanemask_le", Special::lanemask_le},
      {"%lanemask_lt", Special::lanemask_lt},
      {"%lanemask_ge", Special::lanemask_ge},
      {"%lanemask_gt", Special::lanemask_gt},
      {"%cluster_ctarank", Special::cluster_ctarank},
      {"%cluster_nctarank", Special::cluster_nctarank},
      {"%is_explicit_cluster", Special::is_explicit_cluster},
      {"%dynamic_smem_size", Special::dynamic_smem_size},
      {"%total_smem_size", Special::total_smem_size},
  };
  static const std::unordered_map<std::string_view, Special> axes = {
      {"%tid", Special::tid_x},
      {"%ntid", Special::ntid_x},
      {"%ctaid", Special::ctaid_x},
      {"%nctaid", Special::nctaid_x},
      {"%clusterid", Special::clusterid_x},
      {"%nclusterid", Special::nclusterid_x},
      {"%cluster_ctaid", Special::cluster_ctaid_x},
      {"%cluster_nctaid", Special::cluster_nctaid_x},
  };
  if (const auto found = specials.find(name); found != specials.end()) return found->second;
  const std::size_t dot = name.find('.');
  const auto found = axes.find(name.substr(0, dot));
  if (dot == std::string_view::npos || found == axes.end()) return Special::count;
  return static_cast<Special>(static_cast<int>(found->second) + (name[dot + 1] - 'x'));
}

/// A number as PTX writes it, as a value of so many bits.
std::uint64_t value_of(const SourceOperand& operand, int bits) {
  if (operand.kind == SourceOperand::Kind::real64 && bits == 32) {
    double value = 0.0;
    std::memcpy(&value, &operand.integer, sizeof(value));
    const auto single = static_cast<float>(value);
    std::uint32_t word = 0;
    std::memcpy(&word, &single, sizeof(word));
    return word;
  }
  return static_cast<std::uint64_t>(operand.integer);
}

std::size_t constant_bytes(int bits) { return bits == 1 ? 64 : static_cast<std::size_t>(bits) / 8 * kLanes; }

}  // namespace

int type_bits(std::string_view type) {
  if (type == "pred") return 1;
  if (type.ends_with("128")) return 128;
  if (type.ends_with("64")) return 64;
  if (type.ends_with("32") || type.ends_with("16x2")) return 32;
  if (type.ends_with("16") || type.ends_with("8x2")) return 16;
  if (type.ends_with("8")) return 8;
  return 0;
}

bool is_signed(std::string_view type) { return type.starts_with('s'); }

Decoder::Decoder(const SourceModule&, const SourceKernel& kernel)
    : kernel_(kernel), program_(std::make_unique<Program>()), registers_(kernel.registers) {}

void Decoder::unsupported(std::string_view why) const { throw UnsupportedPtx(statement_->line, statement_->text, why); }

Place Decoder::temporary(int bits) {
  registers_.push_back(kind_for(bits));
  return static_cast<Place>(registers_.size()) - 1;
}

// Until lay_out(), a place is the number of a register, or -1 - the number of a constant.
Place Decoder::constant(std::uint64_t value, int bits) {
  if (bits == 8) bits = 16;
  if (bits < 64) value &= (std::uint64_t{1} << bits) - 1;
  const auto [found, is_new] = constant_places_.try_emplace({value, bits}, -1 - static_cast<Place>(constants_.size()));
  if (is_new) constants_.emplace_back(value, bits);
  return found->second;
}

int Decoder::bits_of(const SourceOperand& operand) const {
  if (operand.kind == SourceOperand::Kind::reg) return bits_for(registers_[static_cast<std::size_t>(operand.number)]);
  return 0;
}

Place Decoder::special(const std::string& name) {
  const Special which = special_named(name);
  if (which == Special::count) unsupported("an unknown special register");
  const auto found = special_places_.find(which);
  if (found != special_places_.end()) return found->second;
  return special_places_[which] = temporary(32);
}

Place Decoder::carry() {
  if (carry_ == kNoPlace) carry_ = temporary(1);
  return carry_;
}

Place Decoder::in(const SourceOperand& operand, int bits) {
  using Kind = SourceOperand::Kind;
  switch (operand.kind) {
    case Kind::reg: {
      const int own = bits_of(operand);
      if (own != (bits == 8 ? 16 : bits)) unsupported("a register of another size");
      if (!operand.negated) return operand.number;
      const Place negated = temporary(1);
      emit(not_predicate, {negated}, {operand.number});
      return negated;
    }
    case Kind::integer:
    case Kind::real32:
    case Kind::real64:
      return constant(bits == 1 ? static_cast<std::uint64_t>(operand.integer != 0) : value_of(operand, bits), bits);
    case Kind::symbol: return constant(static_cast<std::uint64_t>(operand.symbol->offset + operand.integer), bits);
    case Kind::special:
      if (operand.name == "WARP_SZ") return constant(kLanes, bits);
      if (bits != 32) unsupported("a special register of another size");
      return special(operand.name);
    default: unsupported("an operand that cannot be read");
  }
}

Place Decoder::out(const SourceOperand& operand, int bits) {
  if (operand.kind == SourceOperand::Kind::none) return temporary(bits);
  if (operand.kind != SourceOperand::Kind::reg) unsupported("a result that is no register");
  if (bits_of(operand) != (bits == 8 ? 16 : bits)) unsupported("a result of another size");
  return operand.number;
}

Instruction& Decoder::emit(Handler handler, std::initializer_list<Place> results,
                           std::initializer_list<Place> arguments, std::int64_t immediate, std::uint32_t detail) {
  return emit(handler, std::vector<Place>(results), std::vector<Place>(arguments), immediate, detail);
}

Instruction& Decoder::emit(Handler handler, const std::vector<Place>& results, const std::vector<Place>& arguments,
                           std::int64_t immediate, std::uint32_t detail) {
  first_place_.push_back(program_->places.size());
  program_->places.insert(program_->places.end(), results.begin(), results.end());
  program_->places.insert(program_->places.end(), arguments.begin(), arguments.end());
  Instruction& instruction = program_->code.emplace_back();
  instruction.handler = handler;
  instruction.immediate = immediate;
  instruction.detail = detail;
  instruction.results = static_cast<std::uint16_t>(results.size());
  instruction.arguments = static_cast<std::uint16_t>(arguments.size());
  instruction.guard = statement_->guard < 0 ? kNoPlace : statement_->guard;
  instruction.guard_negated = statement_->guard_negated;
  instruction.line = statement_->line;
  instruction.text = statement_->text;
  return instruction;
}

void Decoder::add_table(Instruction& instruction, const std::vector<int>& statements) {
  instruction.table = static_cast<std::int16_t>(program_->tables.size());
  program_->tables.emplace_back(statements.begin(), statements.end());
}

std::unique_ptr<Program> Decoder::decode() {
  std::vector<int> first_instruction;
  for (const Statement& statement : kernel_.statements) {
    statement_ = &statement;
    first_instruction.push_back(static_cast<int>(program_->code.size()));
    const auto found = decode_table().find(statement.opcode[0]);
    if (found == decode_table().end()) unsupported("an unknown instruction");
    found->second(*this, statement);
  }
  first_instruction.push_back(static_cast<int>(program_->code.size()));
  static const Statement end = [] {
    Statement statement;
    statement.text = "the end of the kernel";
    statement.opcode = {"exit"};
    return statement;
  }();
  statement_ = &end;
  decode_table().at("exit")(*this, end);
  resolve_targets(first_instruction);
  lay_out();
  program_->name = kernel_.name;
  program_->param_bytes = kernel_.param_bytes;
  program_->local_bytes = kernel_.local_bytes;
  program_->static_shared = kernel_.static_shared;
  program_->max_threads = kernel_.max_threads;
  program_->min_blocks = kernel_.min_blocks;
  program_->cluster = kernel_.cluster;
  for (const auto& param : kernel_.params) program_->params.emplace_back(param->offset, param->bytes);
  return std::move(program_);
}

/// A branch's immediate is a statement until here.
void Decoder::resolve_targets(const std::vector<int>& first_instruction) {
  for (Instruction& instruction : program_->code) {
    if (instruction.table >= 0) {
      const auto* const table = &program_->tables[static_cast<std::size_t>(instruction.table)];
      instruction.immediate = reinterpret_cast<std::int64_t>(table);
    }
    if (instruction.handler != nullptr || instruction.gather != Gather::none) continue;
    instruction.immediate = first_instruction.at(static_cast<std::size_t>(instruction.immediate));
  }
  for (std::vector<std::int64_t>& table : program_->tables) {
    for (std::int64_t& target : table) target = first_instruction.at(static_cast<std::size_t>(target));
  }
}

void Decoder::lay_out() {
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
  for (const auto& [value, bits] : constants_) {
    offsets.push_back(bytes);
    bytes += constant_bytes(bits);
  }
  program_->constants.resize(bytes);
  for (std::size_t i = 0; i < constants_.size(); ++i) {
    const auto& [value, bits] = constants_[i];
    const std::size_t size = bits == 1 ? 4 : static_cast<std::size_t>(bits) / 8;
    const std::uint64_t written = bits == 1 ? (value != 0 ? kAllLanes : 0) : value;
    for (int lane = 0; lane < (bits == 1 ? 1 : kLanes); ++lane) {
      std::memcpy(program_->constants.data() + offsets[i] + static_cast<std::size_t>(lane) * size, &written,
                  std::min<std::size_t>(size, 8));
    }
  }
  for (std::size_t i = 0; i < program_->code.size(); ++i) {
    program_->code[i].places = program_->places.data() + first_place_[i];
  }
  std::vector<Place> always_alive;
  for (const auto& [which, place] : special_places_) always_alive.push_back(place);
  std::vector<Place> places;
  program_->register_bytes = allocate_registers(*program_, registers_, always_alive, places);
  const auto final_place = [&](Place place) {
    if (place == kNoPlace) return place;
    if (place >= 0) return places[static_cast<std::size_t>(place)];
    return static_cast<Place>(offsets[static_cast<std::size_t>(-1 - place)]) - static_cast<Place>(bytes);
  };
  for (Place& place : program_->places) place = final_place(place);
  for (Instruction& instruction : program_->code) {
    instruction.guard = final_place(instruction.guard);
    instruction.members = final_place(instruction.members);
  }
  for (const auto& [which, place] : special_places_) program_->specials.emplace_back(which, final_place(place));
}

}  // namespace strobe::emulator
