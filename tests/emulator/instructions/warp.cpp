// SPDX-License-Identifier: Apache-2.0
// What lanes of a warp do together: shuffles, votes, matches, reductions.
#include <algorithm>

#include "instructions/lanes.h"
#include "machine/grid.h"

namespace strobe::emulator {
namespace {

enum class Shuffle : std::uint8_t { up, down, butterfly, index };

/// Arguments: value, lane or distance, clamp. Results: value, and whether the lane that it is from is in range.
template <Shuffle mode>
Step shuffle(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto* const from = warp.in<std::uint32_t>(instruction.argument(0));
  const auto* const distance = warp.in<std::uint32_t>(instruction.argument(1));
  const auto* const clamps = warp.in<std::uint32_t>(instruction.argument(2));
  std::uint32_t values[kLanes] = {};
  LaneMask in_range = 0;
  for_lanes(lanes, [&](int lane) {
    const auto own = static_cast<std::uint32_t>(lane);
    const std::uint32_t b = distance[lane] & 0x1f;
    const std::uint32_t clamp = clamps[lane] & 0x1f;
    const std::uint32_t segment = clamps[lane] >> 8 & 0x1f;
    const std::uint32_t last = (own & segment) | (clamp & ~segment);
    const std::uint32_t first = own & segment;
    std::uint32_t source = 0;
    bool is_inside = false;
    switch (mode) {
      case Shuffle::up:
        source = own - b;
        is_inside = static_cast<std::int32_t>(source) >= static_cast<std::int32_t>(last);
        break;
      case Shuffle::down:
        source = own + b;
        is_inside = source <= last;
        break;
      case Shuffle::butterfly:
        source = own ^ b;
        is_inside = source <= last;
        break;
      case Shuffle::index:
        source = first | (b & ~segment);
        is_inside = source <= last;
        break;
    }
    if (!is_inside) source = own;
    if ((lanes >> source & 1) == 0) throw Fault("a shuffle from a lane that does not take part");
    values[lane] = from[source];
    in_range |= static_cast<LaneMask>(is_inside ? 1 : 0) << lane;
  });
  warp.store(instruction.result(0), values, lanes);
  if (instruction.results > 1) warp.set_predicate(instruction.result(1), in_range, lanes);
  return Step::next;
}

void gather_named(Decoder& decoder, Instruction& instruction, Place members) {
  static_cast<void>(decoder);
  instruction.gather = Gather::named;
  instruction.members = members;
}

void decode_shuffle(Decoder& decoder, const Statement& statement) {
  const auto& operands = statement.operands;
  if (statement.opcode[1] != "sync") decoder.unsupported("shfl without sync");
  std::vector<Place> results;
  if (operands[0].kind == SourceOperand::Kind::pair) {
    results = {decoder.out(operands[0].parts[0], 32), decoder.out(operands[0].parts[1], 1)};
  } else {
    results = {decoder.out(operands[0], 32)};
  }
  const std::vector<Place> arguments = {decoder.in(operands[1], 32), decoder.in(operands[2], 32),
                                        decoder.in(operands[3], 32)};
  const Place members = decoder.in(operands[4], 32);
  const Handler handler = statement.has("up")     ? shuffle<Shuffle::up>
                          : statement.has("down") ? shuffle<Shuffle::down>
                          : statement.has("bfly") ? shuffle<Shuffle::butterfly>
                                                  : shuffle<Shuffle::index>;
  gather_named(decoder, decoder.emit(handler, results, arguments), members);
}

enum class Vote : std::uint8_t { all, any, uniform, ballot };

template <Vote mode>
Step vote(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const LaneMask holds = warp.predicate(instruction.argument(0)) & lanes;
  if constexpr (mode == Vote::ballot) {
    std::uint32_t values[kLanes];
    for (std::uint32_t& value : values) value = holds;
    warp.store(instruction.result(0), values, lanes);
  } else {
    const bool result = mode == Vote::all   ? holds == lanes
                        : mode == Vote::any ? holds != 0
                                            : holds == 0 || holds == lanes;
    warp.set_predicate(instruction.result(0), result ? kAllLanes : 0, lanes);
  }
  return Step::next;
}

void decode_vote(Decoder& decoder, const Statement& statement) {
  const bool is_ballot = statement.has("ballot");
  const Handler handler = is_ballot              ? vote<Vote::ballot>
                          : statement.has("all") ? vote<Vote::all>
                          : statement.has("any") ? vote<Vote::any>
                                                 : vote<Vote::uniform>;
  const Place value = decoder.in(statement.operands[1], 1);
  const Place members = decoder.in(statement.operands[2], 32);
  gather_named(decoder, decoder.emit(handler, {decoder.out(statement.operands[0], is_ballot ? 32 : 1)}, {value}),
               members);
}

template <typename T, bool all>
Step match(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const T* const values = warp.in<T>(instruction.argument(0));
  std::uint32_t masks[kLanes] = {};
  LaneMask same_everywhere = 0;
  for_lanes(lanes, [&](int lane) {
    LaneMask same = 0;
    for_lanes(lanes, [&](int other) { same |= values[other] == values[lane] ? 1U << other : 0; });
    masks[lane] = all && same != lanes ? 0 : same;
    same_everywhere |= same == lanes ? 1U << lane : 0;
  });
  warp.store(instruction.result(0), masks, lanes);
  if (all && instruction.results > 1) warp.set_predicate(instruction.result(1), same_everywhere, lanes);
  return Step::next;
}

void decode_match(Decoder& decoder, const Statement& statement) {
  const auto& operands = statement.operands;
  const int bits = type_bits(statement.opcode.back());
  const bool all = statement.has("all");
  std::vector<Place> results;
  if (operands[0].kind == SourceOperand::Kind::pair) {
    results = {decoder.out(operands[0].parts[0], 32), decoder.out(operands[0].parts[1], 1)};
  } else {
    results = {decoder.out(operands[0], 32)};
  }
  const Handler handler = bits == 64 ? (all ? match<std::uint64_t, true> : match<std::uint64_t, false>)
                                     : (all ? match<std::uint32_t, true> : match<std::uint32_t, false>);
  const Place value = decoder.in(operands[1], bits);
  const Place members = decoder.in(operands[2], 32);
  gather_named(decoder, decoder.emit(handler, results, {value}), members);
}

struct Add {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};
struct Least {
  template <typename T>
  static T of(T a, T b) {
    return std::min(a, b);
  }
};
struct Largest {
  template <typename T>
  static T of(T a, T b) {
    return std::max(a, b);
  }
};
struct And {
  template <typename T>
  static T of(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <typename T>
  static T of(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <typename T>
  static T of(T a, T b) {
    return a ^ b;
  }
};

template <typename Op, typename T>
Step reduce(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const T* const values = warp.in<T>(instruction.argument(0));
  T all = values[__builtin_ctz(lanes)];
  for_lanes(lanes & (lanes - 1), [&](int lane) { all = Op::of(all, values[lane]); });
  T results[kLanes];
  for (T& result : results) result = all;
  warp.store(instruction.result(0), results, lanes);
  return Step::next;
}

template <typename T>
Handler reduce_handler(const Statement& statement) {
  if (statement.has("add")) return reduce<Add, T>;
  if (statement.has("min")) return reduce<Least, T>;
  if (statement.has("max")) return reduce<Largest, T>;
  if (statement.has("and")) return reduce<And, T>;
  if (statement.has("or")) return reduce<Or, T>;
  return statement.has("xor") ? reduce<Xor, T> : nullptr;
}

void decode_reduce(Decoder& decoder, const Statement& statement) {
  const std::string_view type = statement.opcode.back();
  if (type.starts_with('f')) decoder.unsupported("redux of floats");
  const Handler handler =
      is_signed(type) ? reduce_handler<std::int32_t>(statement) : reduce_handler<std::uint32_t>(statement);
  if (handler == nullptr) decoder.unsupported("an unknown operation");
  const Place value = decoder.in(statement.operands[1], 32);
  const Place members = decoder.in(statement.operands[2], 32);
  gather_named(decoder, decoder.emit(handler, {decoder.out(statement.operands[0], 32)}, {value}), members);
}

Step active_mask(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  std::uint32_t values[kLanes];
  for (std::uint32_t& value : values) value = lanes;
  warp.store(instruction.result(0), values, lanes);
  return Step::next;
}

/// The lowest lane of those named.
Step elect(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto elected = static_cast<std::uint32_t>(__builtin_ctz(lanes));
  std::uint32_t values[kLanes];
  for (std::uint32_t& value : values) value = elected;
  warp.store(instruction.result(0), values, lanes);
  warp.set_predicate(instruction.result(1), 1U << elected, lanes);
  return Step::next;
}

void decode_elect(Decoder& decoder, const Statement& statement) {
  const SourceOperand& result = statement.operands[0];
  if (result.kind != SourceOperand::Kind::pair) decoder.unsupported("elect without a pair of results");
  const Place members = decoder.in(statement.operands[1], 32);
  gather_named(decoder, decoder.emit(elect, {decoder.out(result.parts[0], 32), decoder.out(result.parts[1], 1)}, {}),
               members);
}

}  // namespace

void add_warp(DecodeTable& table) {
  table["shfl"] = decode_shuffle;
  table["vote"] = decode_vote;
  table["match"] = decode_match;
  table["redux"] = decode_reduce;
  table["elect"] = decode_elect;
  table["activemask"] = [](Decoder& decoder, const Statement& statement) {
    decoder.emit(active_mask, {decoder.out(statement.operands[0], 32)}, {});
  };
}

}  // namespace strobe::emulator
