// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic.
#include <bit>
#include <limits>
#include <type_traits>

#include "instructions/integer_decode.h"
#include "instructions/lanes.h"

namespace strobe::emulator {
namespace {

template <typename T>
using Unsigned = std::make_unsigned_t<T>;

template <typename T>
struct Wider;
template <>
struct Wider<std::uint16_t> {
  using type = std::uint32_t;
};
template <>
struct Wider<std::int16_t> {
  using type = std::int32_t;
};
template <>
struct Wider<std::uint32_t> {
  using type = std::uint64_t;
};
template <>
struct Wider<std::int32_t> {
  using type = std::int64_t;
};
template <>
struct Wider<std::uint64_t> {
  using type = unsigned __int128;
};
template <>
struct Wider<std::int64_t> {
  using type = __int128;
};

struct Add {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
  }
};
struct Subtract {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
  }
};
struct MultiplyLow {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (sizeof(T) == 2)
      return static_cast<T>(static_cast<std::uint32_t>(a) * static_cast<std::uint32_t>(b));
    else
      return static_cast<T>(static_cast<Unsigned<T>>(a) * static_cast<Unsigned<T>>(b));
  }
};
struct MultiplyHigh {
  template <typename T>
  static T of(T a, T b) {
    using Wide = typename Wider<T>::type;
    return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> (8 * sizeof(T)));
  }
};
struct MultiplyWide {
  template <typename T>
  static typename Wider<T>::type of(T a, T b) {
    using Wide = typename Wider<T>::type;
    return static_cast<Wide>(static_cast<Wide>(a) * static_cast<Wide>(b));
  }
};
template <typename Product>
struct ThenAdd {
  template <typename T, typename U>
  static U of(T a, T b, U c) {
    return Add::of(static_cast<U>(Product::of(a, b)), c);
  }
};
struct Divide {  // by zero all bits are ones
  template <typename T>
  static T of(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Subtract::of(T{0}, a);
    return static_cast<T>(a / b);
  }
};
struct Remainder {
  template <typename T>
  static T of(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Least {
  template <typename T>
  static T of(T a, T b) {
    return b < a ? b : a;
  }
};
struct Largest {
  template <typename T>
  static T of(T a, T b) {
    return a < b ? b : a;
  }
};
struct Negative {
  template <typename T>
  static T of(T a) {
    return Subtract::of(T{0}, a);
  }
};
struct Absolute {
  template <typename T>
  static T of(T a) {
    return a < 0 ? Subtract::of(T{0}, a) : a;
  }
};
struct AbsoluteDifference {
  template <typename T>
  static T of(T a, T b, T c) {
    return Add::of(a < b ? Subtract::of(b, a) : Subtract::of(a, b), c);
  }
};
struct AddSaturated {
  static std::int32_t of(std::int32_t a, std::int32_t b) {
    const std::int64_t sum = std::int64_t{a} + b;
    return static_cast<std::int32_t>(std::min<std::int64_t>(std::max<std::int64_t>(sum, INT32_MIN), INT32_MAX));
  }
};

/// Both halves of a register by themselves.
template <typename Op, typename Half>
struct Halves {
  static std::uint32_t of(std::uint32_t a, std::uint32_t b) {
    const auto low = static_cast<std::uint16_t>(Op::of(static_cast<Half>(a), static_cast<Half>(b)));
    const auto high = static_cast<std::uint16_t>(Op::of(static_cast<Half>(a >> 16), static_cast<Half>(b >> 16)));
    return low | static_cast<std::uint32_t>(high) << 16;
  }
};

/// a op b with a carry in and out: results and arguments end with the flag.
template <typename T, bool subtracts, bool reads, bool writes>
Step with_carry(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  alignas(64) T sums[kLanes];
  const T* const a = warp.in<T>(instruction.argument(0));
  const T* const b = warp.in<T>(instruction.argument(1));
  const LaneMask flag = warp.predicate(instruction.argument(2));
  LaneMask carries = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const T in = reads ? static_cast<T>(flag >> lane & 1) : T{0};
    const unsigned __int128 wide = subtracts ? static_cast<unsigned __int128>(a[lane]) - b[lane] - in
                                             : static_cast<unsigned __int128>(a[lane]) + b[lane] + in;
    sums[lane] = static_cast<T>(wide);
    carries |= static_cast<LaneMask>(wide >> (8 * sizeof(T)) & 1) << lane;
  }
  warp.store(instruction.result(0), sums, lanes);
  if (writes) warp.set_predicate(instruction.result(1), carries, lanes);
  return Step::next;
}

template <bool subtracts>
void decode_carry(Decoder& decoder, const Statement& statement, bool reads) {
  const bool writes = statement.has("cc");
  const std::string_view type = statement.opcode.back();
  const int bits = type_bits(type);
  const Place carry = decoder.carry();
  const auto choose = [&]<typename T>() -> Handler {
    if (reads) return writes ? with_carry<T, subtracts, true, true> : with_carry<T, subtracts, true, false>;
    return with_carry<T, subtracts, false, true>;
  };
  const Handler handler =
      bits == 64 ? choose.template operator()<std::uint64_t>() : choose.template operator()<std::uint32_t>();
  const Place a = decoder.in(statement.operands[1], bits);
  const Place b = decoder.in(statement.operands[2], bits);
  decoder.emit(handler, {decoder.out(statement.operands[0], bits), writes ? carry : decoder.temporary(1)},
               {a, b, carry});
}

template <typename Op>
void decode_binary(Decoder& decoder, const Statement& statement) {
  Handler handler = nullptr;
  const std::string_view type = statement.opcode.back();
  if (type == "u16x2" || type == "s16x2") {
    handler = is_signed(type) ? kBinary<Halves<Op, std::int16_t>, std::uint32_t>
                              : kBinary<Halves<Op, std::uint16_t>, std::uint32_t>;
    return emit_lanewise(decoder, statement, handler, 32, 2);
  }
  if (!with_integer(type, [&]<typename T>() { handler = kBinary<Op, T>; })) decoder.unsupported("an unknown type");
  emit_lanewise(decoder, statement, handler, type_bits(type), 2);
}

template <typename Op>
void decode_unary(Decoder& decoder, const Statement& statement) {
  Handler handler = nullptr;
  const std::string_view type = statement.opcode.back();
  if (!with_integer(type, [&]<typename T>() { handler = kUnary<Op, T>; })) decoder.unsupported("an unknown type");
  emit_lanewise(decoder, statement, handler, type_bits(type), 1);
}

void decode_multiply(Decoder& decoder, const Statement& statement, bool adds) {
  const std::string_view type = statement.opcode.back();
  const int bits = type_bits(type);
  const bool is_wide = statement.has("wide");
  const bool is_high = statement.has("hi");
  Handler handler = nullptr;
  if (statement.has("cc")) decoder.unsupported("carries of products");
  const bool known = with_integer(type, [&]<typename T>() {
    if (is_wide) {
      if constexpr (sizeof(T) < 8) {
        using Wide = typename Wider<T>::type;
        handler =
            adds ? &Lanewise<ThenAdd<MultiplyWide>, Wide, T, T, Wide>::run : &Lanewise<MultiplyWide, Wide, T, T>::run;
      }
    } else if (is_high) {
      handler = adds ? kTernary<ThenAdd<MultiplyHigh>, T> : kBinary<MultiplyHigh, T>;
    } else {
      handler = adds ? kTernary<ThenAdd<MultiplyLow>, T> : kBinary<MultiplyLow, T>;
    }
  });
  if (!known || handler == nullptr) decoder.unsupported("an unknown type");
  const int result_bits = is_wide ? 2 * bits : bits;
  std::vector<Place> arguments = {decoder.in(statement.operands[1], bits), decoder.in(statement.operands[2], bits)};
  if (adds) arguments.push_back(decoder.in(statement.operands[3], result_bits));
  decoder.emit(handler, {decoder.out(statement.operands[0], result_bits)}, arguments);
}

}  // namespace

// Shared opcodes of integers and floats go to floating.cpp where their type is one of its own.
void decode_integer_add(Decoder& decoder, const Statement& statement) {
  if (statement.has("cc")) return decode_carry<false>(decoder, statement, false);
  if (statement.has("sat")) {
    return emit_lanewise(decoder, statement, kBinary<AddSaturated, std::int32_t>, 32, 2);
  }
  decode_binary<Add>(decoder, statement);
}
void decode_integer_subtract(Decoder& decoder, const Statement& statement) {
  if (statement.has("cc")) return decode_carry<true>(decoder, statement, false);
  if (statement.has("sat")) decoder.unsupported("saturation");
  decode_binary<Subtract>(decoder, statement);
}
void decode_integer_multiply(Decoder& decoder, const Statement& statement) {
  decode_multiply(decoder, statement, false);
}
void decode_integer_divide(Decoder& decoder, const Statement& statement) { decode_binary<Divide>(decoder, statement); }
void decode_integer_min(Decoder& decoder, const Statement& statement) { decode_binary<Least>(decoder, statement); }
void decode_integer_max(Decoder& decoder, const Statement& statement) { decode_binary<Largest>(decoder, statement); }
void decode_integer_negate(Decoder& decoder, const Statement& statement) { decode_unary<Negative>(decoder, statement); }
void decode_integer_absolute(Decoder& decoder, const Statement& statement) {
  decode_unary<Absolute>(decoder, statement);
}

void add_integer(DecodeTable& table) {
  table["rem"] = decode_binary<Remainder>;
  table["mad"] = [](Decoder& decoder, const Statement& statement) { decode_multiply(decoder, statement, true); };
  table["addc"] = [](Decoder& decoder, const Statement& statement) { decode_carry<false>(decoder, statement, true); };
  table["subc"] = [](Decoder& decoder, const Statement& statement) { decode_carry<true>(decoder, statement, true); };
  table["sad"] = [](Decoder& decoder, const Statement& statement) {
    Handler handler = nullptr;
    const std::string_view type = statement.opcode.back();
    with_integer(type, [&]<typename T>() { handler = kTernary<AbsoluteDifference, T>; });
    emit_lanewise(decoder, statement, handler, type_bits(type), 3);
  };
}

}  // namespace strobe::emulator
