// SPDX-License-Identifier: Apache-2.0
#include "instructions/mbarrier.h"

#include "instructions/address.h"
#include "instructions/lanes.h"

namespace strobe::emulator {
namespace {

enum class Action : std::uint8_t { initialize, invalidate, arrive, expect, arrive_and_expect, complete, drop };

struct BarrierUse {  // as an instruction's detail
  std::uint32_t space : 8;
  std::uint32_t is_wide : 1;
  std::uint32_t action : 4;
  std::uint32_t by_parity : 1;
};

std::byte* barrier_at(Warp& warp, const Instruction& instruction, int lane) {
  const auto use = std::bit_cast<BarrierUse>(instruction.detail);
  const std::uint64_t address =
      address_in(warp, instruction.argument(0), use.is_wide != 0, instruction.immediate, lane);
  return locate(warp, static_cast<Space>(use.space), address, 8, 8, lane);
}

/// Arguments: address, then a count of arrivals or bytes. Result: the state before.
Step act(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto action = static_cast<Action>(std::bit_cast<BarrierUse>(instruction.detail).action);
  for_lanes(lanes, [&](int lane) {
    std::byte* const at = barrier_at(warp, instruction, lane);
    const std::uint32_t count = instruction.arguments > 1 ? warp.in<std::uint32_t>(instruction.argument(1))[lane] : 1;
    if (action == Action::initialize) return MemoryBarrier::initialize(at, count);
    MemoryBarrier barrier(at);
    if (instruction.results > 0) std::memcpy(&warp.out<std::uint64_t>(instruction.result(0))[lane], at, 8);
    switch (action) {
      case Action::invalidate: std::memset(at, 0, 8); break;
      case Action::arrive: barrier.arrive(count); break;
      case Action::expect: barrier.expect_bytes(count); break;
      case Action::complete: barrier.complete_bytes(count); break;
      case Action::arrive_and_expect:
        barrier.expect_bytes(count);
        barrier.arrive(1);
        break;
      default: throw Fault("an action of an mbarrier");
    }
  });
  warp.block().grid().note_progress();
  return Step::next;
}

/// Whether a phase is complete: that of a parity, or that of a state.
Step test(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto use = std::bit_cast<BarrierUse>(instruction.detail);
  LaneMask complete = 0;
  for_lanes(lanes, [&](int lane) {
    const MemoryBarrier barrier(barrier_at(warp, instruction, lane));
    const std::uint64_t waited_for = use.by_parity != 0 ? warp.in<std::uint32_t>(instruction.argument(1))[lane] & 1
                                                        : warp.in<std::uint64_t>(instruction.argument(1))[lane] >> 63;
    if (barrier.phase() != waited_for) complete |= 1U << lane;
  });
  warp.set_predicate(instruction.result(0), complete, lanes);
  return complete == lanes ? Step::next : Step::yield;
}

void decode_test(Decoder& decoder, const Statement& statement, BarrierUse use, const AddressOperand& address) {
  const bool by_parity = statement.has("parity");
  use.by_parity = by_parity ? 1 : 0;
  const Place waited_for = decoder.in(statement.operands[2], by_parity ? 32 : 64);
  decoder.emit(test, {decoder.out(statement.operands[0], 1)}, {address.base, waited_for}, address.offset,
               std::bit_cast<std::uint32_t>(use));
}

Action action_of(Decoder& decoder, const Statement& statement) {
  const std::string_view name = statement.opcode[1];
  if (name == "init") return Action::initialize;
  if (name == "inval") return Action::invalidate;
  if (name == "arrive") return statement.has("expect_tx") ? Action::arrive_and_expect : Action::arrive;
  if (name == "expect_tx") return Action::expect;
  if (name == "complete_tx") return Action::complete;
  decoder.unsupported("an unknown action");
}

void decode_mbarrier(Decoder& decoder, const Statement& statement) {
  const auto& operands = statement.operands;
  std::size_t at = 0;
  while (at < operands.size() && operands[at].kind != SourceOperand::Kind::address) ++at;
  const AddressOperand address = decode_address(decoder, operands.at(at));
  BarrierUse use{.space = static_cast<std::uint32_t>(space_of(statement)),
                 .is_wide = address.is_wide ? 1U : 0U,
                 .action = 0,
                 .by_parity = 0};
  if (statement.opcode[1] == "test_wait" || statement.opcode[1] == "try_wait") {
    return decode_test(decoder, statement, use, address);
  }
  if (statement.has("noComplete")) decoder.unsupported("noComplete");
  use.action = static_cast<std::uint32_t>(action_of(decoder, statement));
  std::vector<Place> arguments = {address.base};
  if (at + 1 < operands.size()) arguments.push_back(decoder.in(operands[at + 1], 32));
  std::vector<Place> results;
  if (at == 1 && operands[0].kind == SourceOperand::Kind::reg) results.push_back(decoder.out(operands[0], 64));
  decoder.emit(act, results, arguments, address.offset, std::bit_cast<std::uint32_t>(use));
}

}  // namespace

void emit_complete(Decoder& decoder, const Statement& statement, const SourceOperand& barrier, std::uint32_t bytes) {
  const AddressOperand address = decode_address(decoder, barrier);
  const BarrierUse use{.space = static_cast<std::uint32_t>(space_of(statement)),
                       .is_wide = address.is_wide ? 1U : 0U,
                       .action = static_cast<std::uint32_t>(Action::complete),
                       .by_parity = 0};
  decoder.emit(act, std::vector<Place>{}, {address.base, decoder.constant(bytes, 32)}, address.offset,
               std::bit_cast<std::uint32_t>(use));
}

void add_mbarrier(DecodeTable& table) { table["mbarrier"] = decode_mbarrier; }

}  // namespace strobe::emulator
