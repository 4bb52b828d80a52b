// SPDX-License-Identifier: Apache-2.0
// Logic, shifts and what else is done to bits.
#include <algorithm>
#include <bit>

#include "instructions/lanes.h"
#include "instructions/predicates.h"

namespace strobe::emulator {
namespace {

struct And {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <typename T>
  static T of(T a) {
    return static_cast<T>(~a);
  }
};
struct ShiftLeft {
  template <typename T>
  static T of(T a, std::uint32_t by) {
    return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(a << by);
  }
};
struct ShiftRight {
  template <typename T>
  static T of(T a, std::uint32_t by) {
    return static_cast<T>(a >> std::min<std::uint32_t>(by, 8 * sizeof(T) - 1)) *
           static_cast<T>(std::is_signed_v<T> || by < 8 * sizeof(T) ? 1 : 0);
  }
};
struct FunnelLeft {
  static std::uint32_t of(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const std::uint64_t both = std::uint64_t{b} << 32 | a;
    return static_cast<std::uint32_t>((both << (c & 31)) >> 32);
  }
};
struct FunnelRight {
  static std::uint32_t of(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const std::uint64_t both = std::uint64_t{b} << 32 | a;
    return static_cast<std::uint32_t>(both >> (c & 31));
  }
};
template <typename Funnel>
struct Clamped {
  static std::uint32_t of(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    if (c >= 32) return std::is_same_v<Funnel, FunnelLeft> ? a : b;
    return Funnel::of(a, b, c);
  }
};
struct ExtractBits {
  template <typename T>
  static T of(T a, std::uint32_t from, std::uint32_t count) {
    using U = std::make_unsigned_t<T>;
    constexpr std::uint32_t kBits = 8 * sizeof(T);
    from &= 0xff;
    count &= 0xff;
    if (count == 0) return 0;
    const bool is_negative =
        std::is_signed_v<T> && (static_cast<U>(a) >> std::min(from + count - 1, kBits - 1) & 1) != 0;
    U value = from >= kBits ? U{0} : static_cast<U>(static_cast<U>(a) >> from);
    const std::uint32_t there = from >= kBits ? 0 : std::min(count, kBits - from);
    const U mask = there >= kBits ? ~U{0} : static_cast<U>((U{1} << there) - 1);
    value &= mask;
    return static_cast<T>(is_negative ? value | static_cast<U>(~mask) : value);
  }
};
struct InsertBits {
  template <typename T>
  static T of(T a, T b, std::uint32_t at, std::uint32_t count) {
    constexpr std::uint32_t kBits = 8 * sizeof(T);
    at &= 0xff;
    count &= 0xff;
    if (at >= kBits || count == 0) return b;
    const T ones = count >= kBits ? ~T{0} : static_cast<T>((T{1} << count) - 1);
    const T mask = static_cast<T>(ones << at);
    return static_cast<T>((b & ~mask) | ((a << at) & mask));
  }
};
struct Reverse {
  template <typename T>
  static T of(T a) {
    T reversed = 0;
    for (std::uint32_t i = 0; i < 8 * sizeof(T); ++i) reversed = static_cast<T>(reversed << 1 | (a >> i & 1));
    return reversed;
  }
};
struct LeadingZeros {
  template <typename T>
  static std::uint32_t of(T a) {
    return static_cast<std::uint32_t>(std::countl_zero(a));
  }
};
struct Ones {
  template <typename T>
  static std::uint32_t of(T a) {
    return static_cast<std::uint32_t>(std::popcount(a));
  }
};
struct HighestBit {  // of a signed number: the highest that differs from its sign
  template <typename T>
  static std::uint32_t of(T a) {
    using U = std::make_unsigned_t<T>;
    const U bits = static_cast<U>(std::is_signed_v<T> && a < 0 ? ~a : a);
    return bits == 0 ? 0xffffffffU : static_cast<std::uint32_t>(8 * sizeof(T) - 1) - LeadingZeros::of(bits);
  }
};
struct HighestBitAsShift {
  template <typename T>
  static std::uint32_t of(T a) {
    const std::uint32_t bit = HighestBit::of(a);
    return bit == 0xffffffffU ? bit : static_cast<std::uint32_t>(8 * sizeof(T) - 1) - bit;
  }
};
struct PermuteBytes {
  static std::uint32_t of(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
    const std::uint64_t both = std::uint64_t{b} << 32 | a;
    std::uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t choice = selector >> (4 * i) & 0xf;
      std::uint32_t byte = static_cast<std::uint32_t>(both >> (8 * (choice & 7))) & 0xff;
      if ((choice & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
      result |= byte << (8 * i);
    }
    return result;
  }
};

Step logic3(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto* const a = warp.in<std::uint32_t>(instruction.argument(0));
  const auto* const b = warp.in<std::uint32_t>(instruction.argument(1));
  const auto* const c = warp.in<std::uint32_t>(instruction.argument(2));
  const std::uint32_t table = instruction.detail;
  alignas(64) std::uint32_t values[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    std::uint32_t value = 0;
    for (std::uint32_t row = 0; row < 8; ++row) {
      const std::uint32_t wanted = 0U - (table >> row & 1);
      value |= wanted & ((row & 4) != 0 ? a[lane] : ~a[lane]) & ((row & 2) != 0 ? b[lane] : ~b[lane]) &
               ((row & 1) != 0 ? c[lane] : ~c[lane]);
    }
    values[lane] = value;
  }
  warp.store(instruction.result(0), values, lanes);
  return Step::next;
}

template <typename Op>
Step of_predicates(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const LaneMask value = Op::of(warp.predicate(instruction.argument(0)), warp.predicate(instruction.argument(1)));
  warp.set_predicate(instruction.result(0), value, lanes);
  return Step::next;
}

template <typename Op>
void decode_logic(Decoder& decoder, const Statement& statement) {
  const std::string_view type = statement.opcode.back();
  if (type == "pred") {
    const Place a = decoder.in(statement.operands[1], 1);
    const Place b = decoder.in(statement.operands[2], 1);
    decoder.emit(of_predicates<Op>, {decoder.out(statement.operands[0], 1)}, {a, b});
    return;
  }
  Handler handler = nullptr;
  if (!with_integer(type, [&]<typename T>() { handler = kBinary<Op, T>; })) decoder.unsupported("an unknown type");
  emit_lanewise(decoder, statement, handler, type_bits(type), 2);
}

void decode_not(Decoder& decoder, const Statement& statement) {
  const std::string_view type = statement.opcode.back();
  if (type == "pred") {
    const Place a = decoder.in(statement.operands[1], 1);
    decoder.emit(not_predicate, {decoder.out(statement.operands[0], 1)}, {a});
    return;
  }
  Handler handler = nullptr;
  if (!with_integer(type, [&]<typename T>() { handler = kUnary<Not, T>; })) decoder.unsupported("an unknown type");
  emit_lanewise(decoder, statement, handler, type_bits(type), 1);
}

/// Of arguments that are 32-bit counts or positions from the `wide`-th on.
template <typename Choose>
void decode_counts(Decoder& decoder, const Statement& statement, std::size_t wide, int result_bits,
                   const Choose& choose) {
  const std::string_view type = statement.opcode.back();
  Handler handler = nullptr;
  if (!with_integer(type, [&]<typename T>() { handler = choose.template operator()<T>(); }) || handler == nullptr) {
    decoder.unsupported("an unknown type");
  }
  std::vector<Place> arguments;
  for (std::size_t i = 1; i < statement.operands.size(); ++i) {
    arguments.push_back(decoder.in(statement.operands[i], i <= wide ? type_bits(type) : 32));
  }
  decoder.emit(handler, {decoder.out(statement.operands[0], result_bits == 0 ? type_bits(type) : result_bits)},
               arguments);
}

void decode_funnel(Decoder& decoder, const Statement& statement) {
  const bool wraps = statement.has("wrap");
  const Handler left = wraps ? kTernary<FunnelLeft, std::uint32_t> : kTernary<Clamped<FunnelLeft>, std::uint32_t>;
  const Handler right = wraps ? kTernary<FunnelRight, std::uint32_t> : kTernary<Clamped<FunnelRight>, std::uint32_t>;
  emit_lanewise(decoder, statement, statement.has("l") ? left : right, 32, 3);
}

void decode_logic3(Decoder& decoder, const Statement& statement) {
  std::vector<Place> arguments;
  for (std::size_t i = 1; i <= 3; ++i) arguments.push_back(decoder.in(statement.operands[i], 32));
  decoder.emit(logic3, {decoder.out(statement.operands[0], 32)}, arguments, 0,
               static_cast<std::uint32_t>(statement.operands[4].integer));
}

void add_counts(DecodeTable& table) {
  table["clz"] = [](Decoder& d, const Statement& s) {
    decode_counts(d, s, 1, 32, []<typename T>() -> Handler {
      return &Lanewise<LeadingZeros, std::uint32_t, std::make_unsigned_t<T>>::run;
    });
  };
  table["popc"] = [](Decoder& d, const Statement& s) {
    decode_counts(d, s, 1, 32,
                  []<typename T>() -> Handler { return &Lanewise<Ones, std::uint32_t, std::make_unsigned_t<T>>::run; });
  };
  table["bfind"] = [](Decoder& d, const Statement& s) {
    const bool is_shift = s.has("shiftamt");
    decode_counts(d, s, 1, 32, [=]<typename T>() -> Handler {
      return is_shift ? &Lanewise<HighestBitAsShift, std::uint32_t, T>::run
                      : &Lanewise<HighestBit, std::uint32_t, T>::run;
    });
  };
}

}  // namespace

Step not_predicate(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  warp.set_predicate(instruction.result(0), ~warp.predicate(instruction.argument(0)), lanes);
  return Step::next;
}

void add_bits(DecodeTable& table) {
  table["and"] = decode_logic<And>;
  table["or"] = decode_logic<Or>;
  table["xor"] = decode_logic<Xor>;
  table["not"] = decode_not;
  table["shl"] = [](Decoder& d, const Statement& s) {
    decode_counts(d, s, 1, 0, []<typename T>() -> Handler { return &Lanewise<ShiftLeft, T, T, std::uint32_t>::run; });
  };
  table["shr"] = [](Decoder& d, const Statement& s) {
    decode_counts(d, s, 1, 0, []<typename T>() -> Handler { return &Lanewise<ShiftRight, T, T, std::uint32_t>::run; });
  };
  table["shf"] = decode_funnel;
  table["bfe"] = [](Decoder& d, const Statement& s) {
    decode_counts(d, s, 1, 0, []<typename T>() -> Handler {
      return &Lanewise<ExtractBits, T, T, std::uint32_t, std::uint32_t>::run;
    });
  };
  table["bfi"] = [](Decoder& d, const Statement& s) {
    decode_counts(d, s, 2, 0, []<typename T>() -> Handler {
      using U = std::make_unsigned_t<T>;
      return &Lanewise<InsertBits, U, U, U, std::uint32_t, std::uint32_t>::run;
    });
  };
  table["brev"] = [](Decoder& d, const Statement& s) {
    decode_counts(d, s, 1, 0, []<typename T>() -> Handler { return kUnary<Reverse, std::make_unsigned_t<T>>; });
  };
  table["prmt"] = [](Decoder& d, const Statement& s) {
    if (s.opcode.size() > 2) d.unsupported("a mode of prmt");
    emit_lanewise(d, s, kTernary<PermuteBytes, std::uint32_t>, 32, 3);
  };
  table["lop3"] = decode_logic3;
  add_counts(table);
}

}  // namespace strobe::emulator
