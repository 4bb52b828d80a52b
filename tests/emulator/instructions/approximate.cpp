// SPDX-License-Identifier: Apache-2.0
// Functions that a GPU approximates. Here they are as exact as float32 allows, within the errors that PTX documents.
#include <array>
#include <cmath>
#include <limits>

#include "instructions/lanes.h"
#include "instructions/numbers.h"

namespace strobe::emulator {
namespace {

struct Exp2 {
  /// 2^n 2^f with |f| <= 1/2: n by adding a number whose last place is worth 1, 2^f by its series.
  static float of(float x) {
    constexpr double kRound = 0x1.8p52;
    constexpr std::array<double, 8> kSeries = {1.0,
                                               0.693147180559945309,
                                               0.240226506959100712,
                                               0.0555041086648215800,
                                               0.00961812910762847716,
                                               0.00133335581464284434,
                                               0.000154035303933816100,
                                               0.0000152527338040598402};
    const double wide = x < -200.0F ? -200.0 : (x > 200.0F ? 200.0 : static_cast<double>(x));
    const double shifted = wide + kRound;
    const double f = wide - (shifted - kRound);
    double series = kSeries[7];
    for (int i = 6; i >= 0; --i) series = series * f + kSeries[static_cast<std::size_t>(i)];
    const std::uint64_t power = std::bit_cast<std::uint64_t>(series) + (std::bit_cast<std::uint64_t>(shifted) << 52);
    return x != x ? x : static_cast<float>(std::bit_cast<double>(power));
  }
};
struct Log2 {
  static float of(float x) { return std::log2(x); }
};
struct ReciprocalSquareRoot {
  template <typename T>
  static T of(T x) {
    return T{1} / std::sqrt(x);
  }
};
struct Sine {
  static float of(float x) { return std::sin(x); }
};
struct Cosine {
  static float of(float x) { return std::cos(x); }
};
struct HyperbolicTangent {
  static float of(float x) { return std::tanh(x); }
};

template <typename Op>
struct Flushed {
  static float of(float x) { return flushed(Op::of(flushed(x))); }
};
template <typename Op>
struct OfFloat16 {
  static std::uint16_t of(std::uint16_t x) { return to_float16(Op::of(from_float16(x))); }
};
template <typename Op>
struct OfBfloat16 {
  static std::uint16_t of(std::uint16_t x) { return to_bfloat16(Op::of(from_bfloat16(x))); }
};
template <typename Op>
struct OfPairs {
  static std::uint32_t of(std::uint32_t x) {
    return Op::of(static_cast<std::uint16_t>(x)) |
           static_cast<std::uint32_t>(Op::of(static_cast<std::uint16_t>(x >> 16))) << 16;
  }
};

template <typename Op>
void decode_function(Decoder& decoder, const Statement& statement) {
  const std::string_view type = statement.opcode.back();
  Handler handler = nullptr;
  if (type == "f32") handler = statement.has("ftz") ? kUnary<Flushed<Op>, float> : kUnary<Op, float>;
  if (type == "f16") handler = kUnary<OfFloat16<Op>, std::uint16_t>;
  if (type == "bf16") handler = kUnary<OfBfloat16<Op>, std::uint16_t>;
  if (type == "f16x2") handler = kUnary<OfPairs<OfFloat16<Op>>, std::uint32_t>;
  if (type == "bf16x2") handler = kUnary<OfPairs<OfBfloat16<Op>>, std::uint32_t>;
  if constexpr (requires { Op::of(0.0); } && !requires { Op::of(0.0F, 0.0F); }) {
    if (type == "f64" && std::is_same_v<Op, ReciprocalSquareRoot>) handler = kUnary<ReciprocalSquareRoot, double>;
  }
  if (handler == nullptr) decoder.unsupported("an unknown type");
  emit_lanewise(decoder, statement, handler, type_bits(type), 1);
}

}  // namespace

void add_approximate(DecodeTable& table) {
  table["ex2"] = decode_function<Exp2>;
  table["lg2"] = decode_function<Log2>;
  table["rsqrt"] = decode_function<ReciprocalSquareRoot>;
  table["sin"] = decode_function<Sine>;
  table["cos"] = decode_function<Cosine>;
  table["tanh"] = decode_function<HyperbolicTangent>;
}

}  // namespace strobe::emulator
