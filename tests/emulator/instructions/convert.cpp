// SPDX-License-Identifier: Apache-2.0
// cvt: any type to any other by way of 64-bit numbers; what kernels convert most has loops of its own.
#include <cfenv>
#include <cmath>
#include <limits>

#include "instructions/lanes.h"
#include "instructions/numbers.h"

namespace strobe::emulator {
namespace {

enum class Type : std::uint8_t { u8, s8, u16, s16, u32, s32, u64, s64, f16, bf16, tf32, f32, f64, none };
enum class Round : std::uint8_t { none, nearest, zero, down, up, nearest_away };

struct Conversion {  // as an instruction's detail
  std::uint32_t to : 4;
  std::uint32_t from : 4;
  std::uint32_t round : 4;
  std::uint32_t to_integer : 1;  // a float rounded to a whole number
  std::uint32_t saturates : 1;
  std::uint32_t flushes : 1;
  std::uint32_t result_bits : 8;
  std::uint32_t argument_bits : 8;
};

Type type_named(std::string_view name) {
  constexpr std::pair<std::string_view, Type> kTypes[] = {
      {"u8", Type::u8},   {"s8", Type::s8},   {"b8", Type::u8},   {"u16", Type::u16},   {"s16", Type::s16},
      {"b16", Type::u16}, {"u32", Type::u32}, {"s32", Type::s32}, {"b32", Type::u32},   {"u64", Type::u64},
      {"s64", Type::s64}, {"b64", Type::u64}, {"f16", Type::f16}, {"bf16", Type::bf16}, {"tf32", Type::tf32},
      {"f32", Type::f32}, {"f64", Type::f64}};
  for (const auto& [text, type] : kTypes) {
    if (text == name) return type;
  }
  return Type::none;
}

bool is_integer(Type type) { return type <= Type::s64; }
bool is_signed_type(Type type) { return is_integer(type) && static_cast<int>(type) % 2 == 1; }
int bits_of_type(Type type) {
  constexpr int kBits[] = {8, 8, 16, 16, 32, 32, 64, 64, 16, 16, 32, 32, 64};
  return kBits[static_cast<int>(type)];
}

double whole(double x, Round round) {
  switch (round) {
    case Round::zero: return std::trunc(x);
    case Round::down: return std::floor(x);
    case Round::up: return std::ceil(x);
    case Round::nearest_away: return std::round(x);
    default: return std::nearbyint(x);
  }
}

double real_of(std::uint64_t raw, Type type) {
  switch (type) {
    case Type::f16: return from_float16(static_cast<std::uint16_t>(raw));
    case Type::bf16: return from_bfloat16(static_cast<std::uint16_t>(raw));
    case Type::f64: return std::bit_cast<double>(raw);
    default: return float_of(static_cast<std::uint32_t>(raw));
  }
}

std::int64_t extended(std::uint64_t raw, Type type) {
  const int unused = 64 - bits_of_type(type);
  if (is_signed_type(type)) return static_cast<std::int64_t>(raw << unused) >> unused;
  return static_cast<std::int64_t>(raw << unused >> unused);
}

/// A float32 in the direction asked for, which cuts bits off below `kept` of its mantissa's 23.
std::uint32_t cut(double x, Round round, int kept) {
  float nearest = static_cast<float>(x);
  if (round == Round::zero && std::fabs(static_cast<double>(nearest)) > std::fabs(x))
    nearest = std::nextafterf(nearest, 0.0F);
  if (round == Round::down && static_cast<double>(nearest) > x) nearest = std::nextafterf(nearest, -INFINITY);
  if (round == Round::up && static_cast<double>(nearest) < x) nearest = std::nextafterf(nearest, INFINITY);
  std::uint32_t bits = bits_of(nearest);
  if (kept == 23 || !std::isfinite(nearest)) return bits;
  const std::uint32_t unit = 1U << (23 - kept);
  if (round == Round::nearest_away)
    bits += unit / 2;
  else if (round != Round::zero)
    bits += unit / 2 - 1 + (bits >> (23 - kept) & 1);
  return bits & ~(unit - 1);
}

std::uint64_t of_real(double x, Conversion how) {
  const auto to = static_cast<Type>(how.to);
  const auto round = static_cast<Round>(how.round);
  if (is_integer(to)) {
    if (std::isnan(x)) return to == Type::u64 || to == Type::s64 ? std::uint64_t{1} << 63 : 0;
    const double value = whole(x, round);
    const int bits = bits_of_type(to);
    const double most = std::ldexp(1.0, is_signed_type(to) ? bits - 1 : bits);
    const double least = is_signed_type(to) ? -most : 0.0;
    if (value >= most)
      return is_signed_type(to) ? (std::uint64_t{1} << (bits - 1)) - 1 : ~std::uint64_t{0} >> (64 - bits);
    if (value < least) return is_signed_type(to) ? ~std::uint64_t{0} << (bits - 1) : 0;
    return value < 0 ? static_cast<std::uint64_t>(static_cast<std::int64_t>(value)) : static_cast<std::uint64_t>(value);
  }
  if (how.to_integer != 0) x = whole(x, round);
  if (how.saturates != 0) x = x > 0.0 ? std::fmin(x, 1.0) : 0.0;
  if (to == Type::f64) return std::bit_cast<std::uint64_t>(x);
  if (std::isnan(x)) return to == Type::f16 || to == Type::bf16 ? 0x7fff : kNan32;
  const Round narrow = how.to_integer != 0 ? Round::nearest : round;
  switch (to) {
    case Type::f16:
      if (narrow == Round::zero) {
        const std::uint16_t half = to_float16(static_cast<float>(x));
        return std::fabs(static_cast<double>(from_float16(half))) > std::fabs(x) ? half - 1U : half;
      }
      return to_float16(static_cast<float>(x));
    case Type::bf16: return narrow == Round::zero ? cut(x, Round::zero, 7) >> 16 : to_bfloat16(static_cast<float>(x));
    case Type::tf32: return cut(x, narrow, 10);
    default: {
      const std::uint32_t bits = cut(x, narrow, 23);
      return how.flushes != 0 ? bits_of(flushed(float_of(bits))) : bits;
    }
  }
}

std::uint64_t of_integer(std::int64_t value, Conversion how) {
  const auto to = static_cast<Type>(how.to);
  const auto from = static_cast<Type>(how.from);
  if (is_integer(to)) {
    if (how.saturates == 0) return static_cast<std::uint64_t>(extended(static_cast<std::uint64_t>(value), to));
    const int bits = bits_of_type(to);
    const bool is_large = from == Type::u64 && value < 0;
    if (is_signed_type(to)) {
      const std::int64_t most = bits == 64 ? INT64_MAX : (std::int64_t{1} << (bits - 1)) - 1;
      return static_cast<std::uint64_t>(is_large ? most : std::max(std::min(value, most), -most - 1));
    }
    const std::uint64_t most = ~std::uint64_t{0} >> (64 - bits);
    if (!is_large && value < 0) return 0;
    return std::min(static_cast<std::uint64_t>(value), most);
  }
  const bool is_unsigned = from == Type::u64;
  const auto round = static_cast<Round>(how.round);
  if (to == Type::f64) {
    return std::bit_cast<std::uint64_t>(is_unsigned ? static_cast<double>(static_cast<std::uint64_t>(value))
                                                    : static_cast<double>(value));
  }
  if (to == Type::f32 && round == Round::nearest) {
    return bits_of(is_unsigned ? static_cast<float>(static_cast<std::uint64_t>(value)) : static_cast<float>(value));
  }
  return of_real(is_unsigned ? static_cast<double>(static_cast<std::uint64_t>(value)) : static_cast<double>(value),
                 how);
}

std::uint64_t read(const Warp& warp, Place place, int bits, int lane) {
  switch (bits) {
    case 16: return warp.in<std::uint16_t>(place)[lane];
    case 32: return warp.in<std::uint32_t>(place)[lane];
    default: return warp.in<std::uint64_t>(place)[lane];
  }
}

Step convert(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto how = std::bit_cast<Conversion>(instruction.detail);
  const auto from = static_cast<Type>(how.from);
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t raw = read(warp, instruction.argument(0), static_cast<int>(how.argument_bits), lane);
    std::uint64_t value = 0;
    if (is_integer(from)) {
      value = of_integer(extended(raw, from), how);
    } else {
      double x = real_of(raw, from);
      if (how.flushes != 0 && from == Type::f32) x = flushed(static_cast<float>(x));
      value = of_real(x, how);
    }
    switch (how.result_bits) {
      case 16: warp.out<std::uint16_t>(instruction.result(0))[lane] = static_cast<std::uint16_t>(value); break;
      case 32: warp.out<std::uint32_t>(instruction.result(0))[lane] = static_cast<std::uint32_t>(value); break;
      default: warp.out<std::uint64_t>(instruction.result(0))[lane] = value;
    }
  });
  return Step::next;
}

template <typename To>
struct Cast {
  template <typename From>
  static To of(From x) {
    return static_cast<To>(x);
  }
};
struct Float16Of {
  static std::uint16_t of(float x) { return to_float16(x); }
};
struct Bfloat16Of {
  static std::uint16_t of(float x) { return to_bfloat16(x); }
};
struct OfFloat16 {
  static float of(std::uint16_t x) { return from_float16(x); }
};
struct OfBfloat16 {
  static float of(std::uint16_t x) { return from_bfloat16(x); }
};
template <typename Narrow, bool relu>
struct PairOf {  // the first argument is in the high half
  static std::uint32_t of(float high, float low) {
    if (relu) {
      high = high > 0.0F || high != high ? high : 0.0F;
      low = low > 0.0F || low != low ? low : 0.0F;
    }
    return Narrow::of(low) | static_cast<std::uint32_t>(Narrow::of(high)) << 16;
  }
};
template <std::uint8_t (*narrow)(float)>
struct BytesOf {
  static std::uint16_t of(float high, float low) { return static_cast<std::uint16_t>(narrow(low) | narrow(high) << 8); }
};
template <std::uint8_t (*narrow)(float)>
struct BytesOfHalves {
  static std::uint16_t of(std::uint32_t both) {
    return BytesOf<narrow>::of(from_float16(static_cast<std::uint16_t>(both >> 16)),
                               from_float16(static_cast<std::uint16_t>(both)));
  }
};
template <float (*wide)(std::uint8_t)>
struct HalvesOfBytes {
  static std::uint32_t of(std::uint16_t both) {
    return to_float16(wide(static_cast<std::uint8_t>(both))) |
           static_cast<std::uint32_t>(to_float16(wide(static_cast<std::uint8_t>(both >> 8)))) << 16;
  }
};

/// Two numbers in one register; false where it is another conversion.
bool decode_packed(Decoder& decoder, const Statement& statement, std::string_view to, std::string_view from) {
  const auto emit = [&](Handler handler, int result, int argument, std::size_t count) {
    std::vector<Place> arguments;
    for (std::size_t i = 1; i <= count; ++i) arguments.push_back(decoder.in(statement.operands[i], argument));
    decoder.emit(handler, {decoder.out(statement.operands[0], result)}, arguments);
    return true;
  };
  const bool relu = statement.has("relu");
  const bool is_pair = from == "f32" && statement.operands.size() == 3;
  if ((to == "f16x2" || to == "bf16x2") && is_pair && !statement.has("rn")) decoder.unsupported("a rounding");
  if (to == "f16x2" && is_pair) {
    return emit(relu ? &Lanewise<PairOf<Float16Of, true>, std::uint32_t, float, float>::run
                     : &Lanewise<PairOf<Float16Of, false>, std::uint32_t, float, float>::run,
                32, 32, 2);
  }
  if (to == "bf16x2" && is_pair) {
    return emit(relu ? &Lanewise<PairOf<Bfloat16Of, true>, std::uint32_t, float, float>::run
                     : &Lanewise<PairOf<Bfloat16Of, false>, std::uint32_t, float, float>::run,
                32, 32, 2);
  }
  if (relu && (to.ends_with("x2"))) decoder.unsupported("relu");
  if (to == "e4m3x2" && is_pair) return emit(&Lanewise<BytesOf<to_e4m3>, std::uint16_t, float, float>::run, 16, 32, 2);
  if (to == "e5m2x2" && is_pair) return emit(&Lanewise<BytesOf<to_e5m2>, std::uint16_t, float, float>::run, 16, 32, 2);
  if (to == "e4m3x2") return emit(&Lanewise<BytesOfHalves<to_e4m3>, std::uint16_t, std::uint32_t>::run, 16, 32, 1);
  if (to == "e5m2x2") return emit(&Lanewise<BytesOfHalves<to_e5m2>, std::uint16_t, std::uint32_t>::run, 16, 32, 1);
  if (from == "e4m3x2") return emit(&Lanewise<HalvesOfBytes<from_e4m3>, std::uint32_t, std::uint16_t>::run, 32, 16, 1);
  if (from == "e5m2x2") return emit(&Lanewise<HalvesOfBytes<from_e5m2>, std::uint32_t, std::uint16_t>::run, 32, 16, 1);
  return false;
}

Round round_of(const Statement& statement, bool& to_integer) {
  constexpr std::pair<std::string_view, Round> kWhole[] = {
      {"rni", Round::nearest}, {"rzi", Round::zero}, {"rmi", Round::down}, {"rpi", Round::up}};
  constexpr std::pair<std::string_view, Round> kNarrow[] = {{"rn", Round::nearest},
                                                            {"rz", Round::zero},
                                                            {"rm", Round::down},
                                                            {"rp", Round::up},
                                                            {"rna", Round::nearest_away}};
  for (const auto& [name, round] : kWhole) {
    if (statement.has(name)) return to_integer = true, round;
  }
  for (const auto& [name, round] : kNarrow) {
    if (statement.has(name)) return round;
  }
  return Round::none;
}

/// A loop of its own for conversions whose registers have their types' sizes.
Handler fast_handler(Type to, Type from, Round round, bool to_integer) {
  if (to == Type::u64 && from == Type::u32) return &Lanewise<Cast<std::uint64_t>, std::uint64_t, std::uint32_t>::run;
  if (to == Type::s64 && from == Type::s32) return &Lanewise<Cast<std::int64_t>, std::int64_t, std::int32_t>::run;
  if (is_integer(to) && bits_of_type(to) == 32 && is_integer(from) && bits_of_type(from) == 64) {
    return &Lanewise<Cast<std::uint32_t>, std::uint32_t, std::uint64_t>::run;
  }
  if (to == Type::u32 && from == Type::u16) return &Lanewise<Cast<std::uint32_t>, std::uint32_t, std::uint16_t>::run;
  if (to == Type::f32 && from == Type::f16) return &Lanewise<OfFloat16, float, std::uint16_t>::run;
  if (to == Type::f32 && from == Type::bf16) return &Lanewise<OfBfloat16, float, std::uint16_t>::run;
  if (to_integer || round != Round::nearest) return nullptr;
  if (to == Type::f32 && from == Type::s32) return &Lanewise<Cast<float>, float, std::int32_t>::run;
  if (to == Type::f32 && from == Type::u32) return &Lanewise<Cast<float>, float, std::uint32_t>::run;
  if (to == Type::f16 && from == Type::f32) return &Lanewise<Float16Of, std::uint16_t, float>::run;
  if (to == Type::bf16 && from == Type::f32) return &Lanewise<Bfloat16Of, std::uint16_t, float>::run;
  return nullptr;
}

void decode_convert(Decoder& decoder, const Statement& statement) {
  const std::string_view from_name = statement.opcode.back();
  const std::string_view to_name = statement.opcode[statement.opcode.size() - 2];
  if (statement.opcode[1] == "pack") decoder.unsupported("cvt.pack");
  if (decode_packed(decoder, statement, to_name, from_name)) return;
  const Type to = type_named(to_name);
  const Type from = type_named(from_name);
  if (to == Type::none || from == Type::none || statement.has("relu")) decoder.unsupported("an unknown conversion");
  bool to_integer = false;
  const Round round = round_of(statement, to_integer);
  const bool saturates = statement.has("sat") || statement.has("satfinite");
  const bool flushes = statement.has("ftz");
  const int result_bits = std::max(decoder.bits_of(statement.operands[0]), std::max(16, bits_of_type(to)));
  const int argument_bits = std::max(decoder.bits_of(statement.operands[1]), std::max(16, bits_of_type(from)));
  const Place argument = decoder.in(statement.operands[1], argument_bits);
  const Place result = decoder.out(statement.operands[0], result_bits);
  Handler handler = nullptr;
  if (!saturates && !flushes && result_bits == bits_of_type(to) && argument_bits == bits_of_type(from)) {
    handler = fast_handler(to, from, round, to_integer);
  }
  const Conversion how{.to = static_cast<std::uint32_t>(to),
                       .from = static_cast<std::uint32_t>(from),
                       .round = static_cast<std::uint32_t>(round),
                       .to_integer = to_integer ? 1U : 0U,
                       .saturates = saturates ? 1U : 0U,
                       .flushes = flushes ? 1U : 0U,
                       .result_bits = static_cast<std::uint32_t>(result_bits),
                       .argument_bits = static_cast<std::uint32_t>(argument_bits)};
  decoder.emit(handler != nullptr ? handler : &convert, {result}, {argument}, 0, std::bit_cast<std::uint32_t>(how));
}

}  // namespace

void add_convert(DecodeTable& table) { table["cvt"] = decode_convert; }

}  // namespace strobe::emulator
