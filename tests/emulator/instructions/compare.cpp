// SPDX-License-Identifier: Apache-2.0
// Comparisons and choices.
#include <cmath>

#include "instructions/lanes.h"
#include "instructions/numbers.h"

namespace strobe::emulator {
namespace {

enum class Join : std::uint8_t { none, with_and, with_or, with_xor };

struct Equal {
  template <typename T>
  static bool of(T a, T b) {
    return a == b;
  }
};
struct NotEqual {  // for floats: and neither is NaN
  template <typename T>
  static bool of(T a, T b) {
    return a < b || a > b;
  }
};
struct Less {
  template <typename T>
  static bool of(T a, T b) {
    return a < b;
  }
};
struct LessOrEqual {
  template <typename T>
  static bool of(T a, T b) {
    return a <= b;
  }
};
template <typename Op>
struct Swapped {
  template <typename T>
  static bool of(T a, T b) {
    return Op::of(b, a);
  }
};
template <typename Op>
struct Not {
  template <typename T>
  static bool of(T a, T b) {
    return !Op::of(a, b);
  }
};
struct Ordered {
  template <typename T>
  static bool of(T a, T b) {
    return !std::isnan(a) && !std::isnan(b);
  }
};

template <typename Op, typename T>
LaneMask compared(Warp& warp, const Instruction& instruction) {
  const T* const a = warp.in<T>(instruction.argument(0));
  const T* const b = warp.in<T>(instruction.argument(1));
  alignas(64) std::int32_t holds[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) holds[lane] = Op::of(a[lane], b[lane]) ? -1 : 0;
  return mask_of(holds);
}

/// Halves are compared as float32.
struct Float16 {};
struct Bfloat16 {};
template <typename Op, typename Half>
LaneMask compared_halves(Warp& warp, const Instruction& instruction) {
  const auto* const a = warp.in<std::uint16_t>(instruction.argument(0));
  const auto* const b = warp.in<std::uint16_t>(instruction.argument(1));
  LaneMask mask = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    constexpr auto kWide = std::is_same_v<Half, Float16> ? from_float16 : from_bfloat16;
    mask |= static_cast<LaneMask>(Op::of(kWide(a[lane]), kWide(b[lane])) ? 1 : 0) << lane;
  }
  return mask;
}

LaneMask joined(Join join, LaneMask a, LaneMask b) {
  switch (join) {
    case Join::with_and: return a & b;
    case Join::with_or: return a | b;
    case Join::with_xor: return a ^ b;
    default: return a;
  }
}

/// Results: the comparison and its contrary, each joined with the third argument.
template <typename Op, typename T>
Step set_predicates(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  LaneMask mask = 0;
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>) {
    mask = compared_halves<Op, T>(warp, instruction);
  } else {
    mask = compared<Op, T>(warp, instruction);
  }
  const auto join = static_cast<Join>(instruction.detail);
  const LaneMask other = join == Join::none ? 0 : warp.predicate(instruction.argument(2));
  warp.set_predicate(instruction.result(0), joined(join, mask, other), lanes);
  if (instruction.results > 1) warp.set_predicate(instruction.result(1), joined(join, ~mask, other), lanes);
  return Step::next;
}

template <typename T>
Handler handler_for(std::string_view comparison) {
  if (comparison == "eq") return set_predicates<Equal, T>;
  if (comparison == "ne") return set_predicates<NotEqual, T>;
  if (comparison == "lt" || comparison == "lo") return set_predicates<Less, T>;
  if (comparison == "le" || comparison == "ls") return set_predicates<LessOrEqual, T>;
  if (comparison == "gt" || comparison == "hi") return set_predicates<Swapped<Less>, T>;
  if (comparison == "ge" || comparison == "hs") return set_predicates<Swapped<LessOrEqual>, T>;
  if (comparison == "equ") return set_predicates<Not<NotEqual>, T>;
  if (comparison == "neu") return set_predicates<Not<Equal>, T>;
  if (comparison == "ltu") return set_predicates<Not<Swapped<LessOrEqual>>, T>;
  if (comparison == "leu") return set_predicates<Not<Swapped<Less>>, T>;
  if (comparison == "gtu") return set_predicates<Not<LessOrEqual>, T>;
  if (comparison == "geu") return set_predicates<Not<Less>, T>;
  if (comparison == "num") return set_predicates<Ordered, T>;
  if (comparison == "nan") return set_predicates<Not<Ordered>, T>;
  return nullptr;
}

Handler handler_for(std::string_view comparison, std::string_view type) {
  if (type == "f32") return handler_for<float>(comparison);
  if (type == "f64") return handler_for<double>(comparison);
  if (type == "f16") return handler_for<Float16>(comparison);
  if (type == "bf16") return handler_for<Bfloat16>(comparison);
  Handler handler = nullptr;
  with_integer(type, [&]<typename T>() { handler = handler_for<T>(comparison); });
  return handler;
}

Join join_of(const Statement& statement) {
  if (statement.has("and")) return Join::with_and;
  if (statement.has("or")) return Join::with_or;
  return statement.has("xor") ? Join::with_xor : Join::none;
}

void decode_setp(Decoder& decoder, const Statement& statement) {
  const std::string_view type = statement.opcode.back();
  const Handler handler = handler_for(statement.opcode[1], type);
  if (handler == nullptr) decoder.unsupported("an unknown comparison");
  const int bits = type_bits(type);
  std::vector<Place> arguments = {decoder.in(statement.operands[1], bits), decoder.in(statement.operands[2], bits)};
  const Join join = join_of(statement);
  if (join != Join::none) arguments.push_back(decoder.in(statement.operands[3], 1));
  std::vector<Place> results;
  const SourceOperand& result = statement.operands[0];
  if (result.kind == SourceOperand::Kind::pair) {
    for (const SourceOperand& part : result.parts) results.push_back(decoder.out(part, 1));
  } else {
    results.push_back(decoder.out(result, 1));
  }
  decoder.emit(handler, results, arguments, 0, static_cast<std::uint32_t>(join));
}

/// Ones or zeros, or 1.0 or 0.0, by a predicate.
template <typename T, bool is_float>
Step spread(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const LaneMask mask = warp.predicate(instruction.argument(0));
  const T holds = is_float ? static_cast<T>(0x3f800000U) : static_cast<T>(-1);
  T values[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) values[lane] = (mask >> lane & 1) != 0 ? holds : T{0};
  warp.store(instruction.result(0), values, lanes);
  return Step::next;
}

template <typename Op>
struct SetHalves {
  static std::uint32_t of(std::uint32_t a, std::uint32_t b) {
    const bool low = Op::of(from_float16(static_cast<std::uint16_t>(a)), from_float16(static_cast<std::uint16_t>(b)));
    const bool high =
        Op::of(from_float16(static_cast<std::uint16_t>(a >> 16)), from_float16(static_cast<std::uint16_t>(b >> 16)));
    return (low ? 0xffffU : 0) | (high ? 0xffff0000U : 0);
  }
};

void decode_set(Decoder& decoder, const Statement& statement) {
  const std::string_view type = statement.opcode.back();
  const std::string_view result_type = statement.opcode[statement.opcode.size() - 2];
  const std::string_view comparison = statement.opcode[1];
  if (type == "f16x2") {
    Handler handler = nullptr;
    if (comparison == "lt") handler = kBinary<SetHalves<Less>, std::uint32_t>;
    if (comparison == "le") handler = kBinary<SetHalves<LessOrEqual>, std::uint32_t>;
    if (comparison == "gt") handler = kBinary<SetHalves<Swapped<Less>>, std::uint32_t>;
    if (comparison == "ge") handler = kBinary<SetHalves<Swapped<LessOrEqual>>, std::uint32_t>;
    if (comparison == "eq") handler = kBinary<SetHalves<Equal>, std::uint32_t>;
    if (handler == nullptr || result_type != "u32") decoder.unsupported("an unknown comparison");
    return emit_lanewise(decoder, statement, handler, 32, 2);
  }
  const Handler handler = handler_for(comparison, type);
  if (handler == nullptr || join_of(statement) != Join::none || type_bits(result_type) != 32) {
    decoder.unsupported("an unknown comparison");
  }
  const int bits = type_bits(type);
  const Place holds = decoder.temporary(1);
  decoder.emit(handler, {holds}, {decoder.in(statement.operands[1], bits), decoder.in(statement.operands[2], bits)});
  decoder.emit(result_type == "f32" ? spread<std::uint32_t, true> : spread<std::uint32_t, false>,
               {decoder.out(statement.operands[0], 32)}, {holds});
}

template <typename T>
Step choose(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const T* const a = warp.in<T>(instruction.argument(0));
  const T* const b = warp.in<T>(instruction.argument(1));
  const LaneMask mask = warp.predicate(instruction.argument(2));
  alignas(64) T values[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const T chosen = static_cast<T>(0) - static_cast<T>(mask >> lane & 1);
    values[lane] = static_cast<T>((a[lane] & chosen) | (b[lane] & ~chosen));
  }
  warp.store(instruction.result(0), values, lanes);
  return Step::next;
}

void decode_selp(Decoder& decoder, const Statement& statement) {
  const int bits = type_bits(statement.opcode.back());
  const Handler handler = bits == 64   ? choose<std::uint64_t>
                          : bits == 32 ? choose<std::uint32_t>
                                       : choose<std::uint16_t>;
  const Place a = decoder.in(statement.operands[1], bits);
  const Place b = decoder.in(statement.operands[2], bits);
  const Place by = decoder.in(statement.operands[3], 1);
  decoder.emit(handler, {decoder.out(statement.operands[0], bits)}, {a, b, by});
}

struct ChooseBySign {
  static std::uint32_t of(std::uint32_t a, std::uint32_t b, std::int32_t by) { return by >= 0 ? a : b; }
};
struct ChooseByFloat {
  static std::uint32_t of(std::uint32_t a, std::uint32_t b, float by) { return by >= 0.0F ? a : b; }
};

void decode_slct(Decoder& decoder, const Statement& statement) {
  if (type_bits(statement.opcode[statement.opcode.size() - 2]) != 32) decoder.unsupported("an unknown type");
  const Handler handler = statement.opcode.back() == "f32"
                              ? &Lanewise<ChooseByFloat, std::uint32_t, std::uint32_t, std::uint32_t, float>::run
                              : &Lanewise<ChooseBySign, std::uint32_t, std::uint32_t, std::uint32_t, std::int32_t>::run;
  emit_lanewise(decoder, statement, handler, 32, 3);
}

enum class Class : std::uint32_t { finite, infinite, number, not_a_number, normal, subnormal };

Step test_float(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto* const x = warp.in<float>(instruction.argument(0));
  LaneMask mask = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    bool holds = false;
    switch (static_cast<Class>(instruction.detail)) {
      case Class::finite: holds = std::isfinite(x[lane]); break;
      case Class::infinite: holds = std::isinf(x[lane]); break;
      case Class::number: holds = !std::isnan(x[lane]); break;
      case Class::not_a_number: holds = std::isnan(x[lane]); break;
      case Class::normal: holds = std::isnormal(x[lane]); break;
      case Class::subnormal: holds = std::fpclassify(x[lane]) == FP_SUBNORMAL; break;
    }
    mask |= static_cast<LaneMask>(holds ? 1 : 0) << lane;
  }
  warp.set_predicate(instruction.result(0), mask, lanes);
  return Step::next;
}

void decode_testp(Decoder& decoder, const Statement& statement) {
  constexpr std::string_view kNames[] = {"finite", "infinite", "number", "notanumber", "normal", "subnormal"};
  for (std::uint32_t i = 0; i < 6; ++i) {
    if (statement.opcode[1] != kNames[i] || statement.opcode.back() != "f32") continue;
    const Place x = decoder.in(statement.operands[1], 32);
    decoder.emit(test_float, {decoder.out(statement.operands[0], 1)}, {x}, 0, i);
    return;
  }
  decoder.unsupported("an unknown test");
}

}  // namespace

void add_compare(DecodeTable& table) {
  table["setp"] = decode_setp;
  table["set"] = decode_set;
  table["selp"] = decode_selp;
  table["slct"] = decode_slct;
  table["testp"] = decode_testp;
}

}  // namespace strobe::emulator
