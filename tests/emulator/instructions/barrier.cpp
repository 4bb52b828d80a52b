// SPDX-License-Identifier: Apache-2.0
// Named barriers of a block, and the barrier of a warp.
#include "instructions/bulk.h"
#include "instructions/lanes.h"
#include "machine/grid.h"

namespace strobe::emulator {
namespace {

struct BarrierUse {  // as an instruction's detail
  std::uint32_t waits : 1;
  std::uint32_t is_aligned : 1;
  std::uint32_t reduction : 2;
};

/// All lanes have the same: the first one's.
int uniform(const Warp& warp, Place place, LaneMask lanes) {
  const auto* const values = warp.in<std::uint32_t>(place);
  const std::uint32_t first = values[__builtin_ctz(lanes)];
  for_lanes(lanes, [&](int lane) {
    if (values[lane] != first) throw Fault("lanes of a warp name different barriers or numbers of threads");
  });
  return static_cast<int>(first);
}

/// Arguments: barrier, threads (0: all), predicate.
Step use_barrier(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto use = std::bit_cast<BarrierUse>(instruction.detail);
  const auto reduction = static_cast<Reduction>(use.reduction);
  const int number = uniform(warp, instruction.argument(0), lanes);
  const int expected = uniform(warp, instruction.argument(1), lanes);
  Block& block = warp.block();
  // A warp that comes as one counts as 32 threads, also where lanes of it have ended.
  block.arrive(number, expected, use.is_aligned != 0 ? kLanes : __builtin_popcount(lanes));
  NamedBarrier& barrier = block.barrier(number);
  if (reduction != Reduction::none) {
    const LaneMask holds = warp.predicate(instruction.argument(2)) & lanes;
    if (barrier.reduction != Reduction::none && barrier.reduction != reduction) throw Fault("different reductions");
    barrier.reduction = reduction;
    barrier.any |= holds != 0;
    barrier.all &= holds == lanes;
    barrier.count += __builtin_popcount(holds);
  }
  warp.move(lanes, warp.pc() + 1);
  if (use.waits != 0) {
    const Place result = instruction.results > 0 ? instruction.result(0) : kNoPlace;
    block.wait(number, {.warp = &warp, .lanes = lanes, .result = result, .line = instruction.line});
  }
  block.complete_if_all(barrier);
  return Step::moved;
}

void decode_warp_barrier(Decoder& decoder, const Statement& statement) {
  const Place members = decoder.in(statement.operands[0], 32);
  Instruction& instruction = decoder.emit(nullptr, {}, {});
  instruction.gather = Gather::named;
  instruction.members = members;
}

/// bar{.cta}.{sync, arrive, red} and barrier{.cta}, which is the same for lanes that do not come together.
void decode_barrier(Decoder& decoder, const Statement& statement) {
  if (statement.has("cluster")) return decode_cluster_barrier(decoder, statement);
  if (statement.has("warp")) return decode_warp_barrier(decoder, statement);
  const bool is_aligned = statement.opcode[0] == "bar" || statement.has("aligned");
  const bool reduces = statement.has("red");
  const auto& operands = statement.operands;
  const std::size_t first = reduces ? 1 : 0;
  const std::size_t last = operands.size() - (reduces ? 1 : 0);  // behind the number of threads
  const Place barrier = decoder.in(operands.at(first), 32);
  const Place threads = last > first + 1 ? decoder.in(operands[first + 1], 32) : decoder.constant(0, 32);
  BarrierUse use{.waits = statement.has("arrive") ? 0U : 1U, .is_aligned = is_aligned ? 1U : 0U, .reduction = 0};
  std::vector<Place> results;
  std::vector<Place> arguments = {barrier, threads};
  if (reduces) {
    const bool counts = statement.has("popc");
    use.reduction = static_cast<std::uint32_t>(counts                ? Reduction::count
                                               : statement.has("or") ? Reduction::any
                                                                     : Reduction::all);
    arguments.push_back(decoder.in(operands.back(), 1));
    results.push_back(decoder.out(operands[0], counts ? 32 : 1));
  }
  Instruction& instruction = decoder.emit(use_barrier, results, arguments, 0, std::bit_cast<std::uint32_t>(use));
  if (is_aligned) instruction.gather = Gather::all;
}

}  // namespace

void add_barrier(DecodeTable& table) {
  table["bar"] = decode_barrier;
  table["barrier"] = decode_barrier;
}

}  // namespace strobe::emulator
