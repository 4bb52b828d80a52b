// SPDX-License-Identifier: Apache-2.0
#include "instructions/address.h"

namespace strobe::emulator {
namespace {

using Address = unsigned long long;

std::byte* locate_global(Grid& grid, std::uint64_t address, std::size_t bytes) {
  if (!grid.recent.contains(address, bytes)) {
    const Allocation found = GlobalMemory::instance().find(address);
    if (!found.contains(address, bytes)) {
      throw Fault(text_of("%zu bytes at 0x%llx, which is no global memory%s", bytes, static_cast<Address>(address),
                          GlobalMemory::instance().describe(address).c_str()));
    }
    grid.recent = found;
  }
  return reinterpret_cast<std::byte*>(address);
}

std::byte* locate_local(Warp& warp, std::uint64_t offset, std::size_t bytes, int lane) {
  const std::size_t of_lane = warp.local().size() / kLanes;
  if (offset + bytes > of_lane) {
    throw Fault(text_of("%zu bytes at 0x%llx of local memory, of which there are %zu", bytes,
                        static_cast<Address>(offset), of_lane));
  }
  return warp.local().data() + static_cast<std::size_t>(lane) * of_lane + offset;
}

}  // namespace

Place widened(Decoder& decoder, Place place) {
  const Handler widen = [](Warp& warp, const Instruction& instruction, LaneMask lanes) {
    const auto* const narrow = warp.in<std::uint32_t>(instruction.argument(0));
    std::uint64_t values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) values[lane] = narrow[lane];
    warp.store(instruction.result(0), values, lanes);
    return Step::next;
  };
  const Place wide = decoder.temporary(64);
  decoder.emit(widen, {wide}, {place});
  return wide;
}

AddressOperand decode_address(Decoder& decoder, const SourceOperand& operand) {
  if (operand.kind != SourceOperand::Kind::address || operand.parts.empty()) decoder.unsupported("no address");
  const SourceOperand& base = operand.parts[0];
  AddressOperand decoded{.offset = operand.integer};
  decoded.is_wide = decoder.bits_of(base) != 32;
  decoded.base = decoder.in(base, decoded.is_wide ? 64 : 32);
  return decoded;
}

Space space_of(const Statement& statement) {
  if (statement.has("shared::cluster")) return Space::shared_cluster;
  if (statement.has("shared") || statement.has("shared::cta")) return Space::shared;
  if (statement.has("global")) return Space::global;
  if (statement.has("local")) return Space::local;
  if (statement.has("const")) return Space::constant;
  for (const std::string_view part : statement.opcode) {
    if (part.starts_with("param")) return Space::param;
  }
  return Space::generic;
}

std::byte* locate(Warp& warp, Space space, std::uint64_t address, std::size_t bytes, std::size_t alignment, int lane) {
  if (address % alignment != 0) {
    throw Fault(text_of("0x%llx is not a multiple of %zu (lane %d)", static_cast<Address>(address), alignment, lane));
  }
  Block& block = warp.block();
  switch (space) {
    case Space::shared: return block.shared(address, bytes);
    case Space::shared_cluster: return block.cluster().shared(block, address, bytes);
    case Space::local: return locate_local(warp, address, bytes, lane);
    case Space::param: {
      Grid& grid = block.grid();
      if (address + bytes > static_cast<std::uint64_t>(grid.program().param_bytes)) {
        throw Fault(text_of("%zu bytes at 0x%llx of parameters", bytes, static_cast<Address>(address)));
      }
      return grid.params() + address;
    }
    case Space::generic:
      if ((address & kWindowMask) == kSharedWindow) {
        return block.cluster().shared(block, address & ~kWindowMask, bytes);
      }
      if ((address & kWindowMask) == kLocalWindow) return locate_local(warp, address & ~kWindowMask, bytes, lane);
      return locate_global(block.grid(), address, bytes);
    default: return locate_global(block.grid(), address, bytes);
  }
}

}  // namespace strobe::emulator
