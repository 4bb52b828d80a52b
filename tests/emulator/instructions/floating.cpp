// SPDX-License-Identifier: Apache-2.0
// Arithmetic of floating-point numbers whose results IEEE 754 defines.
#include <cfenv>
#include <cmath>
#include <limits>

#include "instructions/integer_decode.h"
#include "instructions/lanes.h"
#include "instructions/numbers.h"

namespace strobe::emulator {
namespace {

struct Add {
  template <typename T>
  static T of(T a, T b) {
    return a + b;
  }
};
struct Subtract {
  template <typename T>
  static T of(T a, T b) {
    return a - b;
  }
};
struct Multiply {
  template <typename T>
  static T of(T a, T b) {
    return a * b;
  }
};
struct Divide {
  template <typename T>
  static T of(T a, T b) {
    return a / b;
  }
};
struct FusedMultiplyAdd {
  static float of(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
  static double of(double a, double b, double c) { return __builtin_fma(a, b, c); }
};
struct Least {
  template <typename T>
  static T of(T a, T b) {
    if (std::isnan(a)) return b;
    if (a == b) return std::signbit(a) ? a : b;
    return b < a ? b : a;
  }
};
struct Largest {
  template <typename T>
  static T of(T a, T b) {
    if (std::isnan(a)) return b;
    if (a == b) return std::signbit(a) ? b : a;
    return a < b ? b : a;
  }
};
template <typename Op>
struct OrNan {
  template <typename T>
  static T of(T a, T b) {
    return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : Op::of(a, b);
  }
};
struct Absolute {
  template <typename T>
  static T of(T a) {
    return std::fabs(a);
  }
};
struct Negative {
  template <typename T>
  static T of(T a) {
    return -a;
  }
};
struct SquareRoot {
  template <typename T>
  static T of(T a) {
    return std::sqrt(a);
  }
};
struct Reciprocal {
  template <typename T>
  static T of(T a) {
    return T{1} / a;
  }
};
struct CopySign {
  template <typename T>
  static T of(T sign, T magnitude) {
    return std::copysign(magnitude, sign);
  }
};

template <typename Op>
struct Flushed {
  template <typename... Arguments>
  static float of(Arguments... arguments) {
    return flushed(Op::of(flushed(arguments)...));
  }
};
template <typename Op>
struct Saturated {
  template <typename... Arguments>
  static float of(Arguments... arguments) {
    const float x = Op::of(arguments...);
    return x > 0.0F ? std::fmin(x, 1.0F) : 0.0F;
  }
};

// In 16 bits: in float32, which is wide enough for one rounding; sums of products in float64.
template <typename Op, float (*from)(std::uint16_t), std::uint16_t (*to)(float)>
struct InFloats {
  static std::uint16_t of(std::uint16_t a) { return to(Op::of(from(a))); }
  static std::uint16_t of(std::uint16_t a, std::uint16_t b) { return to(Op::of(from(a), from(b))); }
  static std::uint16_t of(std::uint16_t a, std::uint16_t b, std::uint16_t c) {
    return to(static_cast<float>(Op::of(double{from(a)}, double{from(b)}, double{from(c)})));
  }
};
template <typename Op>
using OfFloat16 = InFloats<Op, from_float16, to_float16>;
template <typename Op>
using OfBfloat16 = InFloats<Op, from_bfloat16, to_bfloat16>;
template <typename Op>
struct OfPairs {
  template <typename... Arguments>
  static std::uint32_t of(Arguments... arguments) {
    const std::uint16_t low = Op::of(static_cast<std::uint16_t>(arguments)...);
    const std::uint16_t high = Op::of(static_cast<std::uint16_t>(arguments >> 16)...);
    return low | static_cast<std::uint32_t>(high) << 16;
  }
};

template <typename Op, int arguments, typename T>
constexpr Handler handler_of() {
  if constexpr (arguments == 1)
    return kUnary<Op, T>;
  else if constexpr (arguments == 2)
    return kBinary<Op, T>;
  else
    return kTernary<Op, T>;
}

/// The same with results rounded in another direction. The handler is behind a call, so that nothing of it is moved.
template <int direction>
Step rounded(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  std::fesetround(direction);
  const auto inner = reinterpret_cast<Handler>(instruction.immediate);
  const Step step = inner(warp, instruction, lanes);
  std::fesetround(FE_TONEAREST);
  return step;
}

template <typename Op, int arguments>
Handler float_handler(Decoder& decoder, const Statement& statement, std::string_view type) {
  if (type == "f32") {
    const bool flushes = statement.has("ftz");
    if (statement.has("sat")) {
      return flushes ? handler_of<Saturated<Flushed<Op>>, arguments, float>()
                     : handler_of<Saturated<Op>, arguments, float>();
    }
    return flushes ? handler_of<Flushed<Op>, arguments, float>() : handler_of<Op, arguments, float>();
  }
  if (type == "f64") return handler_of<Op, arguments, double>();
  if (statement.has("sat") || statement.has("relu")) decoder.unsupported("a modifier");
  if (type == "f16") return handler_of<OfFloat16<Op>, arguments, std::uint16_t>();
  if (type == "bf16") return handler_of<OfBfloat16<Op>, arguments, std::uint16_t>();
  if (type == "f16x2") return handler_of<OfPairs<OfFloat16<Op>>, arguments, std::uint32_t>();
  if (type == "bf16x2") return handler_of<OfPairs<OfBfloat16<Op>>, arguments, std::uint32_t>();
  decoder.unsupported("an unknown type");
}

template <typename Op, int arguments>
void decode_float(Decoder& decoder, const Statement& statement) {
  const std::string_view type = statement.opcode.back();
  Handler handler = float_handler<Op, arguments>(decoder, statement, type);
  Handler direction = nullptr;
  if (statement.has("rz")) direction = rounded<FE_TOWARDZERO>;
  if (statement.has("rm")) direction = rounded<FE_DOWNWARD>;
  if (statement.has("rp")) direction = rounded<FE_UPWARD>;
  const int bits = type_bits(type);
  std::vector<Place> places;
  for (std::size_t i = 1; i <= arguments; ++i) places.push_back(decoder.in(statement.operands.at(i), bits));
  decoder.emit(direction == nullptr ? handler : direction, {decoder.out(statement.operands[0], bits)}, places,
               reinterpret_cast<std::int64_t>(handler));
}

bool is_float(const Statement& statement) {
  const std::string_view type = statement.opcode.back();
  return type.starts_with('f') || type.starts_with("bf");
}

template <DecodeFunction of_integers, typename Op, int arguments>
void decode_either(Decoder& decoder, const Statement& statement) {
  if (is_float(statement)) return decode_float<Op, arguments>(decoder, statement);
  of_integers(decoder, statement);
}

/// min and max of three numbers are those of two pairs.
template <DecodeFunction of_integers, typename Op>
void decode_extreme(Decoder& decoder, const Statement& statement) {
  if (!is_float(statement)) return of_integers(decoder, statement);
  if (statement.has("xorsign") || statement.operands.size() != 3) decoder.unsupported("a form of min or max");
  if (statement.has("NaN")) return decode_float<OrNan<Op>, 2>(decoder, statement);
  decode_float<Op, 2>(decoder, statement);
}

void decode_divide(Decoder& decoder, const Statement& statement) {
  if (!is_float(statement)) return decode_integer_divide(decoder, statement);
  decode_float<Divide, 2>(decoder, statement);  // also for .approx and .full, which are less exact
}

}  // namespace

void add_floating(DecodeTable& table) {
  table["add"] = decode_either<decode_integer_add, Add, 2>;
  table["sub"] = decode_either<decode_integer_subtract, Subtract, 2>;
  table["mul"] = decode_either<decode_integer_multiply, Multiply, 2>;
  table["fma"] = decode_float<FusedMultiplyAdd, 3>;
  table["div"] = decode_divide;
  table["min"] = decode_extreme<decode_integer_min, Least>;
  table["max"] = decode_extreme<decode_integer_max, Largest>;
  table["neg"] = decode_either<decode_integer_negate, Negative, 1>;
  table["abs"] = decode_either<decode_integer_absolute, Absolute, 1>;
  table["sqrt"] = decode_float<SquareRoot, 1>;
  table["rcp"] = decode_float<Reciprocal, 1>;
  table["copysign"] = decode_float<CopySign, 2>;
}

}  // namespace strobe::emulator
