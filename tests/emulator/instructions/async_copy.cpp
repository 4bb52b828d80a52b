// SPDX-License-Identifier: Apache-2.0
// cp.async: copies from global to shared memory. They are complete at once.
#include <algorithm>

#include "instructions/address.h"
#include "instructions/bulk.h"
#include "instructions/lanes.h"
#include "instructions/mbarrier.h"

namespace strobe::emulator {
namespace {

struct Copy {  // as an instruction's detail
  std::uint32_t to_is_wide : 1;
  std::uint32_t from_is_wide : 1;
  std::uint32_t has_size : 1;
  std::uint32_t bytes : 8;
};

/// Arguments: to, from, offset of from, bytes that are read: what is not read becomes zeros.
Step copy(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto how = std::bit_cast<Copy>(instruction.detail);
  const std::size_t bytes = how.bytes;
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t to =
        address_in(warp, instruction.argument(0), how.to_is_wide != 0, instruction.immediate, lane);
    const auto offset = static_cast<std::int64_t>(warp.in<std::uint64_t>(instruction.argument(2))[lane]);
    const std::uint64_t from = address_in(warp, instruction.argument(1), how.from_is_wide != 0, offset, lane);
    std::byte* const written = locate(warp, Space::shared, to, bytes, bytes, lane);
    const std::size_t wanted = how.has_size != 0 ? warp.in<std::uint32_t>(instruction.argument(3))[lane] : bytes;
    if (wanted > bytes) throw Fault("more bytes to be read than are copied");
    if (from % bytes != 0) throw Fault(text_of("0x%llx is not aligned", static_cast<unsigned long long>(from)));
    if (wanted > 0) std::memcpy(written, locate(warp, Space::global, from, wanted, 1, lane), wanted);
    std::memset(written + wanted, 0, bytes - wanted);
  });
  warp.block().grid().note_progress();
  return Step::next;
}

void decode_copy(Decoder& decoder, const Statement& statement) {
  const auto& operands = statement.operands;
  const AddressOperand to = decode_address(decoder, operands[0]);
  const AddressOperand from = decode_address(decoder, operands[1]);
  const bool has_hint = statement.has("L2::cache_hint");
  const bool has_size = operands.size() > 3U + (has_hint ? 1 : 0);
  const Copy how{.to_is_wide = to.is_wide ? 1U : 0U,
                 .from_is_wide = from.is_wide ? 1U : 0U,
                 .has_size = has_size ? 1U : 0U,
                 .bytes = static_cast<std::uint32_t>(operands[2].integer)};
  if (has_size && decoder.bits_of(operands[3]) == 1) decoder.unsupported("a predicate that hides the source");
  const Place size = has_size ? decoder.in(operands[3], 32) : decoder.constant(how.bytes, 32);
  const Place offset = decoder.constant(static_cast<std::uint64_t>(from.offset), 64);
  decoder.emit(copy, {}, {to.base, from.base, offset, size}, to.offset, std::bit_cast<std::uint32_t>(how));
}

/// An arrival of each lane whose copies are complete.
template <bool is_expected>
Step arrive(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address =
        address_in(warp, instruction.argument(0), instruction.detail != 0, instruction.immediate, lane);
    MemoryBarrier barrier(locate(warp, Space::shared, address, 8, 8, lane));
    if (!is_expected) barrier.add_missing();
    barrier.arrive(1);
  });
  warp.block().grid().note_progress();
  return Step::next;
}

void decode_cp(Decoder& decoder, const Statement& statement) {
  if (statement.has("bulk")) return decode_bulk(decoder, statement);
  if (statement.has("commit_group") || statement.has("wait_group") || statement.has("wait_all")) return;
  if (statement.has("mbarrier")) {
    const AddressOperand address = decode_address(decoder, statement.operands[0]);
    decoder.emit(statement.has("noinc") ? arrive<true> : arrive<false>, {}, {address.base}, address.offset,
                 address.is_wide ? 1 : 0);
    return;
  }
  decode_copy(decoder, statement);
}

}  // namespace

void add_async_copy(DecodeTable& table) { table["cp"] = decode_cp; }

}  // namespace strobe::emulator
