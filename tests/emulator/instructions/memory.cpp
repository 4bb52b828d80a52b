// SPDX-License-Identifier: Apache-2.0
// Loads and stores.
#include "instructions/address.h"
#include "instructions/lanes.h"
#include "instructions/mbarrier.h"

namespace strobe::emulator {
namespace {

struct Access {  // as an instruction's detail
  std::uint32_t space : 8;
  std::uint32_t is_wide : 1;
  std::uint32_t may_wait : 1;  // what others write is looked at
};

template <typename Memory, typename Register>
Step load(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto access = std::bit_cast<Access>(instruction.detail);
  const auto space = static_cast<Space>(access.space);
  const std::size_t bytes = sizeof(Memory) * instruction.results;
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address =
        address_in(warp, instruction.argument(0), access.is_wide != 0, instruction.immediate, lane);
    const std::byte* const from = locate(warp, space, address, bytes, bytes, lane);
    for (int i = 0; i < instruction.results; ++i) {
      Memory value;
      std::memcpy(&value, from + sizeof(Memory) * static_cast<std::size_t>(i), sizeof(Memory));
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): ld.s8 extends the sign
      warp.out<Register>(instruction.result(i))[lane] = static_cast<Register>(value);
    }
  });
  return access.may_wait != 0 ? Step::yield : Step::next;
}

template <typename Memory, typename Register>
Step store(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto access = std::bit_cast<Access>(instruction.detail);
  const auto space = static_cast<Space>(access.space);
  const int count = instruction.arguments - 1;
  const std::size_t bytes = sizeof(Memory) * static_cast<std::size_t>(count);
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address =
        address_in(warp, instruction.argument(0), access.is_wide != 0, instruction.immediate, lane);
    std::byte* const to = locate(warp, space, address, bytes, bytes, lane);
    for (int i = 0; i < count; ++i) {
      const auto value = static_cast<Memory>(warp.in<Register>(instruction.argument(i + 1))[lane]);
      std::memcpy(to + sizeof(Memory) * static_cast<std::size_t>(i), &value, sizeof(Memory));
    }
  });
  if (space != Space::local) warp.block().grid().note_progress();
  return Step::next;
}

/// load or store, for memory of a type and registers of so many bits.
template <typename Memory, bool loads>
Handler of_registers(int bits) {
  switch (bits) {
    case 16:
      if constexpr (sizeof(Memory) <= 2) return loads ? load<Memory, std::uint16_t> : store<Memory, std::uint16_t>;
      return nullptr;
    case 32:
      if constexpr (sizeof(Memory) <= 4) return loads ? load<Memory, std::uint32_t> : store<Memory, std::uint32_t>;
      return nullptr;
    case 64:
      if constexpr (sizeof(Memory) <= 8) return loads ? load<Memory, std::uint64_t> : store<Memory, std::uint64_t>;
      return nullptr;
    default:
      if constexpr (sizeof(Memory) == 16) return loads ? load<Memory, Memory> : store<Memory, Memory>;
      return nullptr;
  }
}

template <bool loads>
Handler access_handler(std::string_view type, int register_bits) {
  const bool sign = is_signed(type) && loads;
  switch (type_bits(type)) {
    case 8:
      return sign ? of_registers<std::int8_t, loads>(register_bits) : of_registers<std::uint8_t, loads>(register_bits);
    case 16:
      return sign ? of_registers<std::int16_t, loads>(register_bits)
                  : of_registers<std::uint16_t, loads>(register_bits);
    case 32:
      return sign ? of_registers<std::int32_t, loads>(register_bits)
                  : of_registers<std::uint32_t, loads>(register_bits);
    case 64: return of_registers<std::uint64_t, loads>(register_bits);
    case 128: return of_registers<unsigned __int128, loads>(register_bits);
    default: return nullptr;
  }
}

std::vector<SourceOperand> elements(const SourceOperand& operand) {
  if (operand.kind == SourceOperand::Kind::vector) return operand.parts;
  return {operand};
}

int register_bits(const Decoder& decoder, const std::vector<SourceOperand>& operands, std::string_view type) {
  int bits = std::max(16, type_bits(type));
  for (const SourceOperand& operand : operands) bits = std::max(bits, decoder.bits_of(operand));
  return bits;
}

Access access_of(const Statement& statement, const AddressOperand& address) {
  const bool may_wait = statement.has("volatile") || statement.has("acquire") || statement.has("relaxed");
  return {.space = static_cast<std::uint32_t>(space_of(statement)),
          .is_wide = address.is_wide ? 1U : 0U,
          .may_wait = may_wait ? 1U : 0U};
}

void decode_load(Decoder& decoder, const Statement& statement) {
  const std::string_view type = statement.opcode.back();
  const std::vector<SourceOperand> results = elements(statement.operands[0]);
  const int bits = register_bits(decoder, results, type);
  const Handler handler = access_handler<true>(type, bits);
  if (handler == nullptr) decoder.unsupported("an unknown type");
  const AddressOperand address = decode_address(decoder, statement.operands[1]);
  std::vector<Place> places;
  for (const SourceOperand& result : results) places.push_back(decoder.out(result, bits));
  decoder.emit(handler, places, {address.base}, address.offset,
               std::bit_cast<std::uint32_t>(access_of(statement, address)));
}

void decode_store(Decoder& decoder, const Statement& statement) {
  const std::string_view type = statement.opcode.back();
  const std::vector<SourceOperand> values = elements(statement.operands[1]);
  const int bits = register_bits(decoder, values, type);
  const Handler handler = access_handler<false>(type, bits);
  if (handler == nullptr) decoder.unsupported("an unknown type");
  const AddressOperand address = decode_address(decoder, statement.operands[0]);
  std::vector<Place> places = {address.base};
  for (const SourceOperand& value : values) places.push_back(decoder.in(value, bits));
  decoder.emit(handler, std::vector<Place>{}, places, address.offset,
               std::bit_cast<std::uint32_t>(access_of(statement, address)));
  if (statement.has("async")) {  // complete at once
    const auto bytes = static_cast<std::uint32_t>(static_cast<int>(values.size()) * type_bits(type) / 8);
    emit_complete(decoder, statement, statement.operands.at(2), bytes);
  }
}

void decode_nothing(Decoder&, const Statement&) {}

}  // namespace

void add_memory(DecodeTable& table) {
  table["ld"] = decode_load;
  table["ldu"] = decode_load;
  table["st"] = decode_store;
  table["prefetch"] = decode_nothing;
  table["prefetchu"] = decode_nothing;
  table["applypriority"] = decode_nothing;
  table["discard"] = decode_nothing;
  table["fence"] = decode_nothing;  // memory is sequentially consistent here
  table["membar"] = decode_nothing;
}

}  // namespace strobe::emulator
