// SPDX-License-Identifier: Apache-2.0
// mov, cvta and its kind.
#include "instructions/address.h"
#include "instructions/lanes.h"

namespace strobe::emulator {
namespace {

struct Same {
  template <typename T>
  static T of(T a) {
    return a;
  }
};

Step move_predicate(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  warp.set_predicate(instruction.result(0), warp.predicate(instruction.argument(0)), lanes);
  return Step::next;
}

template <typename T>
Step read_clock(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  T values[kLanes];
  for (T& value : values) value = static_cast<T>(warp.block().grid().clock());
  warp.store(instruction.result(0), values, lanes);
  return Step::yield;
}

/// Parts of a number, the lowest first, into one register.
template <typename Part, typename Whole>
Step join(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  Whole values[kLanes] = {};
  for (int i = 0; i < instruction.arguments; ++i) {
    const Part* const part = warp.in<Part>(instruction.argument(i));
    for (int lane = 0; lane < kLanes; ++lane) {
      values[lane] |=
          static_cast<Whole>(static_cast<Whole>(part[lane]) << (8 * sizeof(Part) * static_cast<unsigned>(i)));
    }
  }
  warp.store(instruction.result(0), values, lanes);
  return Step::next;
}
template <typename Part, typename Whole>
Step split(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  Whole values[kLanes];
  std::memcpy(values, warp.in<Whole>(instruction.argument(0)), sizeof(values));
  for (int i = 0; i < instruction.results; ++i) {
    Part parts[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      parts[lane] = static_cast<Part>(values[lane] >> (8 * sizeof(Part) * static_cast<unsigned>(i)));
    }
    warp.store(instruction.result(i), parts, lanes);
  }
  return Step::next;
}

using Wide = unsigned __int128;

/// join or split, by the sizes of whole and parts.
template <bool joins>
Handler parts_handler(int whole, std::size_t count) {
  const int part = whole / static_cast<int>(count);
  const auto choose = [&]<typename Part, typename Whole>() -> Handler {
    if (whole != static_cast<int>(8 * sizeof(Whole)) || part != static_cast<int>(8 * sizeof(Part))) return nullptr;
    return joins ? join<Part, Whole> : split<Part, Whole>;
  };
  for (const Handler handler :
       {choose.template operator()<std::uint16_t, std::uint32_t>(),
        choose.template operator()<std::uint32_t, std::uint64_t>(),
        choose.template operator()<std::uint16_t, std::uint64_t>(), choose.template operator()<std::uint64_t, Wide>(),
        choose.template operator()<std::uint32_t, Wide>()}) {
    if (handler != nullptr) return handler;
  }
  return nullptr;
}

bool decode_parts(Decoder& decoder, const Statement& statement, int bits) {
  const SourceOperand& to = statement.operands[0];
  const SourceOperand& from = statement.operands[1];
  const bool splits = to.kind == SourceOperand::Kind::vector;
  const bool joins = from.kind == SourceOperand::Kind::vector;
  if (!splits && !joins) return false;
  const auto& parts = splits ? to.parts : from.parts;
  const int part_bits = bits / static_cast<int>(parts.size());
  const Handler handler = splits ? parts_handler<false>(bits, parts.size()) : parts_handler<true>(bits, parts.size());
  if (handler == nullptr) decoder.unsupported("parts of other sizes");
  std::vector<Place> places;
  for (const SourceOperand& part : parts) {
    places.push_back(splits ? decoder.out(part, part_bits) : decoder.in(part, part_bits));
  }
  if (splits)
    decoder.emit(handler, places, {decoder.in(from, bits)});
  else
    decoder.emit(handler, {decoder.out(to, bits)}, places);
  return true;
}

void decode_move(Decoder& decoder, const Statement& statement) {
  const int bits = type_bits(statement.opcode.back());
  const SourceOperand& from = statement.operands[1];
  if (from.kind == SourceOperand::Kind::special) {
    const bool is_clock = from.name == "%clock64" || from.name == "%globaltimer";
    if (is_clock || from.name == "%clock" || from.name == "%globaltimer_lo") {
      decoder.emit(is_clock ? read_clock<std::uint64_t> : read_clock<std::uint32_t>,
                   {decoder.out(statement.operands[0], bits)}, {});
      return;
    }
  }
  if (decode_parts(decoder, statement, bits)) return;
  Handler handler = nullptr;
  switch (bits) {
    case 1: handler = move_predicate; break;
    case 16: handler = kUnary<Same, std::uint16_t>; break;
    case 32: handler = kUnary<Same, std::uint32_t>; break;
    case 64: handler = kUnary<Same, std::uint64_t>; break;
    case 128: handler = kUnary<Same, Wide>; break;
    default: decoder.unsupported("an unknown type");
  }
  decoder.emit(handler, {decoder.out(statement.operands[0], bits)}, {decoder.in(from, bits)});
}

/// Adds to addresses: the window, or where parameters lie.
template <typename T>
Step rebase(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  std::uint64_t by = static_cast<std::uint64_t>(instruction.immediate);
  if (instruction.detail != 0) by += reinterpret_cast<std::uint64_t>(warp.block().grid().params());
  const T* const from = warp.in<T>(instruction.argument(0));
  alignas(64) T values[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) values[lane] = static_cast<T>(from[lane] + by);
  warp.store(instruction.result(0), values, lanes);
  return Step::next;
}

void decode_cvta(Decoder& decoder, const Statement& statement) {
  const int bits = type_bits(statement.opcode.back());
  const Space space = space_of(statement);
  const bool to = statement.has("to");
  std::int64_t window = 0;
  if (space == Space::shared || space == Space::shared_cluster) window = static_cast<std::int64_t>(kSharedWindow);
  if (space == Space::local) window = static_cast<std::int64_t>(kLocalWindow);
  const bool is_param = space == Space::param;
  if (bits != 64 || (is_param && to)) decoder.unsupported("a conversion of addresses");
  decoder.emit(rebase<std::uint64_t>, {decoder.out(statement.operands[0], 64)}, {decoder.in(statement.operands[1], 64)},
               to ? -window : window, is_param ? 1 : 0);
}

Step is_in_space(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto* const addresses = warp.in<std::uint64_t>(instruction.argument(0));
  const auto space = static_cast<Space>(instruction.detail);
  LaneMask mask = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::uint64_t window = addresses[lane] & kWindowMask;
    const bool is_shared = window == kSharedWindow;
    const bool is_local = window == kLocalWindow;
    const bool holds = space == Space::shared || space == Space::shared_cluster ? is_shared
                       : space == Space::local                                  ? is_local
                                                                                : !is_shared && !is_local;
    mask |= static_cast<LaneMask>(holds ? 1 : 0) << lane;
  }
  warp.set_predicate(instruction.result(0), mask, lanes);
  return Step::next;
}

}  // namespace

void add_move(DecodeTable& table) {
  table["mov"] = decode_move;
  table["cvta"] = decode_cvta;
  table["isspacep"] = [](Decoder& decoder, const Statement& statement) {
    decoder.emit(is_in_space, {decoder.out(statement.operands[0], 1)}, {decoder.in(statement.operands[1], 64)}, 0,
                 static_cast<std::uint32_t>(space_of(statement)));
  };
}

}  // namespace strobe::emulator
