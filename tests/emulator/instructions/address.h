// SPDX-License-Identifier: Apache-2.0
// Operands in memory: [register + offset] in one of the state spaces, checked against what exists there.
#pragma once

#include <bit>

#include "machine/grid.h"
#include "ptx/decoder.h"

namespace strobe::emulator {

/// An address operand: where its base is, and what is added.
struct AddressOperand {
  Place base = kNoPlace;
  bool is_wide = false;  // a base of 64 bits
  std::int64_t offset = 0;
};
AddressOperand decode_address(Decoder& decoder, const SourceOperand& operand);

/// By the parts of an opcode.
Space space_of(const Statement& statement);

inline std::uint64_t address_in(const Warp& warp, Place base, bool is_wide, std::int64_t offset, int lane) {
  if (is_wide) return warp.in<std::uint64_t>(base)[lane] + static_cast<std::uint64_t>(offset);
  return static_cast<std::uint32_t>(warp.in<std::uint32_t>(base)[lane] + static_cast<std::uint64_t>(offset));
}

/// A register of 64 bits with what one of 32 bits holds.
Place widened(Decoder& decoder, Place place);

/// Where so many bytes are. Throws Fault where they do not exist or the address is not a multiple of `alignment`.
std::byte* locate(Warp& warp, Space space, std::uint64_t address, std::size_t bytes, std::size_t alignment, int lane);

}  // namespace strobe::emulator
