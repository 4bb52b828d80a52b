// SPDX-License-Identifier: Apache-2.0
// Operands of wgmma in shared memory: where a descriptor says that their elements lie.
#pragma once

#include "instructions/swizzle.h"
#include "machine/grid.h"

namespace strobe::emulator {

/// PTX ISA, "Matrix descriptor" and "Strides" of wgmma. Of a K-major operand rows of M or N hold consecutive elements
/// of K; of an MN-major one it is the other way round, and elements have 16 bits.
class Descriptor {
 public:
  explicit Descriptor(std::uint64_t bits)
      : start_((bits & 0x3fff) << 4),
        leading_((bits >> 16 & 0x3fff) << 4),
        stride_((bits >> 32 & 0x3fff) << 4),
        // 1: 128 bytes, 2: 64, 3: 32. As a tensor map's mode it is the other way round.
        mode_(static_cast<int>(bits >> 62) == 0 ? 0 : 4 - static_cast<int>(bits >> 62)) {
    if ((bits >> 49 & 7) != 0) throw Fault("a descriptor with a base offset");
  }

  static constexpr int kPieceBytes = 16;

  /// The 16 bytes that begin at byte `k` (a multiple of 16) of row `row`; K-major.
  const std::byte* k_major(Block& block, int row, int k) const {
    const auto group = static_cast<std::uint64_t>(row / 8);
    const auto within = static_cast<std::uint64_t>(row % 8);
    if (mode_ == 0) {
      return at(block, start_ + group * stride_ + within * kPieceBytes +
                           static_cast<std::uint64_t>(k / kPieceBytes) * leading_);
    }
    return at(block, start_ + group * stride_ + within * swizzle_span(mode_) + static_cast<std::uint64_t>(k));
  }

  /// The eight elements that begin at element `column` (a multiple of 8) of row `k` of K; MN-major.
  const std::byte* mn_major(Block& block, int column, int k) const {
    const auto span = static_cast<int>(swizzle_span(mode_)) / 2;  // in elements
    if (span == 0) throw Fault("an MN-major operand without a swizzle");
    return at(block, start_ + static_cast<std::uint64_t>(column / span) * leading_ +
                         static_cast<std::uint64_t>(k / 8) * stride_ +
                         static_cast<std::uint64_t>(k % 8) * swizzle_span(mode_) +
                         2 * static_cast<std::uint64_t>(column % span));
  }

 private:
  const std::byte* at(Block& block, std::uint64_t address) const {
    return block.shared(swizzled(address, mode_), kPieceBytes);
  }
  std::uint64_t start_, leading_, stride_;
  int mode_;
};

}  // namespace strobe::emulator
