// SPDX-License-Identifier: Apache-2.0
// Bulk copies, of rows and of boxes of tensors, between global and shared memory. They are complete at once.
#include "instructions/bulk.h"

#include <algorithm>
#include <array>

#include "driver/tensor_map.h"
#include "instructions/address.h"
#include "instructions/lanes.h"
#include "instructions/mbarrier.h"
#include "instructions/swizzle.h"

namespace strobe::emulator {
namespace {

constexpr std::size_t kAlignment = 16;

enum class Form : std::uint8_t { load, load_box, store, store_box, between_blocks };

struct Bulk {  // as an instruction's detail
  std::uint32_t form : 4;
  std::uint32_t adds : 1;  // float32
  std::uint32_t multicasts : 1;
  std::uint32_t dimensions : 4;
};

// Arguments of every form: shared address, barrier, mask of blocks, global address or tensor map, bytes, coordinates.
// Addresses are 64 bits wide, with their offsets in the places behind them.
constexpr int kShared = 0;
constexpr int kSharedOffset = 1;
constexpr int kBarrier = 2;
constexpr int kBarrierOffset = 3;
constexpr int kMask = 4;
constexpr int kGlobal = 5;
constexpr int kGlobalOffset = 6;
constexpr int kBytes = 7;
constexpr int kCoordinate = 8;

std::uint64_t wide(const Warp& warp, const Instruction& instruction, int argument, int lane) {
  return warp.in<std::uint64_t>(instruction.argument(argument))[lane] +
         warp.in<std::uint64_t>(instruction.argument(argument + 1))[lane];
}

/// Shared memory of the block that the address is in, and in multicasts of all blocks that the mask names.
template <typename Visit>
void for_receivers(Warp& warp, const Instruction& instruction, int lane, std::uint64_t address, std::uint64_t barrier,
                   const Visit& visit) {
  const auto bulk = std::bit_cast<Bulk>(instruction.detail);
  constexpr std::uint64_t kOffset = (std::uint64_t{1} << kRankShift) - 1;
  Cluster& cluster = warp.block().cluster();
  if (bulk.multicasts == 0) {
    Block& owner = cluster.owner(warp.block(), address);
    visit(owner, address & kOffset);
    if (&cluster.owner(warp.block(), barrier) != &owner) throw Fault("the mbarrier of another block");
    return;
  }
  const std::uint32_t mask = warp.in<std::uint16_t>(instruction.argument(kMask))[lane];
  for (std::size_t rank = 0; rank < cluster.blocks().size(); ++rank) {
    if ((mask >> rank & 1) != 0) visit(cluster.blocks()[rank], address & kOffset);
  }
}

void complete(Block& block, std::uint64_t barrier, std::size_t bytes) {
  constexpr std::uint64_t kOffset = (std::uint64_t{1} << kRankShift) - 1;
  MemoryBarrier(block.shared(barrier & kOffset, 8)).complete_bytes(static_cast<std::int64_t>(bytes));
}

/// A box of a tensor: where its rows of the innermost axis are, in memory and in the box.
class Box {
 public:
  Box(Warp& warp, const Instruction& instruction, int lane) {
    const std::uint64_t address = wide(warp, instruction, kGlobal, lane);
    std::memcpy(&map_, locate(warp, Space::generic, address, 128, 64, lane), sizeof(map_));
    const auto bulk = std::bit_cast<Bulk>(instruction.detail);
    if (map_.magic != kTensorMapMagic) throw Fault("no tensor map");
    if (map_.rank != bulk.dimensions) throw Fault("a tensor map of another rank");
    for (std::size_t axis = 0; axis < map_.rank; ++axis) {
      first_[axis] = warp.in<std::int32_t>(instruction.argument(kCoordinate + static_cast<int>(axis)))[lane];
    }
    const std::size_t span = swizzle_span(map_.swizzle);
    if (span != 0 && row_bytes() > span) throw Fault("a box whose rows are longer than its swizzle");
  }

  std::size_t row_bytes() const { return std::size_t{map_.box[0]} * map_.element_bytes; }
  std::size_t bytes() const {
    std::size_t rows = 1;
    for (std::size_t axis = 1; axis < map_.rank; ++axis) rows *= map_.box[axis];
    return rows * row_bytes();
  }
  std::size_t alignment() const { return 128; }

  /// Calls visit(offset in the box, address in memory, elements in front of the tensor, elements in it): nothing where
  /// the row is outside.
  template <typename Visit>
  void for_rows(const Visit& visit) const {
    std::array<std::int64_t, 5> at{};
    for (std::size_t offset = 0; offset < bytes(); offset += row_bytes()) {
      bool inside = true;
      std::uint64_t address = map_.address;
      for (std::size_t axis = 1; axis < map_.rank; ++axis) {
        const std::int64_t index = first_[axis] + at[axis];
        inside &= index >= 0 && index < static_cast<std::int64_t>(map_.extents[axis]);
        address += static_cast<std::uint64_t>(index) * map_.strides[axis - 1];
      }
      const std::int64_t begin = std::max<std::int64_t>(0, -first_[0]);
      const std::int64_t end =
          std::min<std::int64_t>(map_.box[0], static_cast<std::int64_t>(map_.extents[0]) - first_[0]);
      const bool has_any = inside && begin < end;
      const std::uint64_t first = address + static_cast<std::uint64_t>(first_[0] + begin) * map_.element_bytes;
      visit(offset, first, has_any ? static_cast<std::size_t>(begin) * map_.element_bytes : 0,
            has_any ? static_cast<std::size_t>(end - begin) * map_.element_bytes : 0);
      for (std::size_t axis = 1; axis < map_.rank; ++axis) {
        if (++at[axis] < map_.box[axis]) break;
        at[axis] = 0;
      }
    }
  }

  /// Calls visit(byte of the row, place in shared memory, bytes) for pieces that swizzling keeps together.
  template <typename Visit>
  void for_pieces(Block& block, std::uint64_t address, std::size_t offset, std::size_t begin, std::size_t count,
                  const Visit& visit) const {
    for (std::size_t at = begin; at < begin + count;) {
      const std::size_t piece = std::min(begin + count, (at / kAlignment + 1) * kAlignment) - at;
      visit(at, block.shared(swizzled(address + offset + at, map_.swizzle), piece), piece);
      at += piece;
    }
  }

 private:
  TensorMap map_;
  std::array<std::int64_t, 5> first_{};
};

void load_box(Warp& warp, const Instruction& instruction, int lane) {
  const Box box(warp, instruction, lane);
  const std::uint64_t to = wide(warp, instruction, kShared, lane);
  const std::uint64_t barrier = wide(warp, instruction, kBarrier, lane);
  if (to % box.alignment() != 0) throw Fault("a box at an address that is not a multiple of 128");
  for_receivers(warp, instruction, lane, to, barrier, [&](Block& block, std::uint64_t address) {
    box.for_rows([&](std::size_t offset, std::uint64_t from, std::size_t begin, std::size_t count) {
      const std::byte* const row = count > 0 ? locate(warp, Space::global, from, count, 1, lane) : nullptr;
      const auto zero = [](std::size_t, std::byte* place, std::size_t bytes) { std::memset(place, 0, bytes); };
      box.for_pieces(block, address, offset, 0, begin, zero);
      box.for_pieces(block, address, offset, begin, count, [&](std::size_t at, std::byte* place, std::size_t bytes) {
        std::memcpy(place, row + (at - begin), bytes);
      });
      box.for_pieces(block, address, offset, begin + count, box.row_bytes() - begin - count, zero);
    });
    complete(block, barrier, box.bytes());
  });
}

void add_floats(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at + 4 <= bytes; at += 4) {
    float sum = 0.0F;
    float term = 0.0F;
    std::memcpy(&sum, to + at, 4);
    std::memcpy(&term, from + at, 4);
    sum += term;
    std::memcpy(to + at, &sum, 4);
  }
}

void store_box(Warp& warp, const Instruction& instruction, int lane) {
  const bool adds = std::bit_cast<Bulk>(instruction.detail).adds != 0;
  const Box box(warp, instruction, lane);
  const std::uint64_t from = wide(warp, instruction, kShared, lane);
  if (from % box.alignment() != 0) throw Fault("a box at an address that is not a multiple of 128");
  box.for_rows([&](std::size_t offset, std::uint64_t to, std::size_t begin, std::size_t count) {
    if (count == 0) return;
    std::byte* const row = locate(warp, Space::global, to, count, 1, lane);
    box.for_pieces(warp.block(), from, offset, begin, count, [&](std::size_t at, std::byte* place, std::size_t bytes) {
      if (adds)
        add_floats(row + (at - begin), place, bytes);
      else
        std::memcpy(row + (at - begin), place, bytes);
    });
  });
}

Step copy(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto bulk = std::bit_cast<Bulk>(instruction.detail);
  const auto form = static_cast<Form>(bulk.form);
  for_lanes(lanes, [&](int lane) {
    if (form == Form::load_box) return load_box(warp, instruction, lane);
    if (form == Form::store_box) return store_box(warp, instruction, lane);
    const std::uint64_t shared = wide(warp, instruction, kShared, lane);
    const std::uint64_t other = wide(warp, instruction, kGlobal, lane);
    const std::size_t bytes = warp.in<std::uint32_t>(instruction.argument(kBytes))[lane];
    if (bytes % kAlignment != 0) throw Fault(text_of("a copy of %zu bytes, which are no multiple of 16", bytes));
    if (form == Form::store) {
      const std::byte* const from = locate(warp, Space::shared, shared, bytes, kAlignment, lane);
      std::byte* const to = locate(warp, Space::global, other, bytes, kAlignment, lane);
      if (bulk.adds != 0)
        add_floats(to, from, bytes);
      else
        std::memcpy(to, from, bytes);
      return;
    }
    const Space space = form == Form::load ? Space::global : Space::shared;
    const std::byte* const from = locate(warp, space, other, bytes, kAlignment, lane);
    const std::uint64_t barrier = wide(warp, instruction, kBarrier, lane);
    if (shared % kAlignment != 0) throw Fault("shared memory that is not aligned");
    for_receivers(warp, instruction, lane, shared, barrier, [&](Block& block, std::uint64_t address) {
      std::memcpy(block.shared(address, bytes), from, bytes);
      complete(block, barrier, bytes);
    });
  });
  warp.block().grid().note_progress();
  return Step::next;
}

/// The places of an address, as 64 bits.
void push_address(Decoder& decoder, std::vector<Place>& arguments, const SourceOperand& operand) {
  const AddressOperand address = decode_address(decoder, operand);
  arguments.push_back(address.is_wide ? address.base : widened(decoder, address.base));
  arguments.push_back(decoder.constant(static_cast<std::uint64_t>(address.offset), 64));
}

}  // namespace

void decode_bulk(Decoder& decoder, const Statement& statement) {
  if (statement.has("commit_group") || statement.has("wait_group") || statement.has("prefetch")) return;
  const auto& operands = statement.operands;
  const bool is_box = statement.has("tensor");
  const bool is_store = statement.has("bulk_group");
  const bool is_multicast = statement.has("multicast::cluster");
  const bool between = !is_store && statement.has("shared::cta");
  const Form form = between  ? Form::between_blocks
                    : is_box ? (is_store ? Form::store_box : Form::load_box)
                             : (is_store ? Form::store : Form::load);
  if (statement.has("reduce") && (!statement.has("add") || (!is_box && statement.opcode.back() != "f32"))) {
    decoder.unsupported("another reduction");
  }
  if (is_box && !statement.has("tile") && (statement.has("im2col") || statement.has("tile::gather4"))) {
    decoder.unsupported("another mode");
  }
  const Bulk bulk{.form = static_cast<std::uint32_t>(form),
                  .adds = statement.has("reduce") ? 1U : 0U,
                  .multicasts = is_multicast ? 1U : 0U,
                  .dimensions = static_cast<std::uint32_t>(is_box ? operands[is_store ? 0 : 1].parts.size() - 1 : 0)};
  const SourceOperand& shared = operands[is_store ? 1 : 0];
  const SourceOperand& global = operands[is_store ? 0 : 1];
  std::size_t next = 2;
  const Place bytes = is_box ? decoder.constant(0, 32) : decoder.in(operands[next++], 32);
  std::vector<Place> arguments;
  push_address(decoder, arguments, shared);
  if (is_store) {
    arguments.insert(arguments.end(), 2, decoder.constant(0, 64));
  } else {
    push_address(decoder, arguments, operands[next++]);
  }
  arguments.push_back(is_multicast ? decoder.in(operands[next++], 16) : decoder.constant(0, 16));
  push_address(decoder, arguments, global);
  arguments.push_back(bytes);
  for (std::size_t i = 1; is_box && i < global.parts.size(); ++i) arguments.push_back(decoder.in(global.parts[i], 32));
  decoder.emit(copy, std::vector<Place>{}, arguments, 0, std::bit_cast<std::uint32_t>(bulk));
}

}  // namespace strobe::emulator
