// SPDX-License-Identifier: Apache-2.0
// Handlers of instructions that compute in each lane by itself: loops over 32 lanes, which the compiler vectorises.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "machine/warp.h"
#include "ptx/decoder.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace strobe::emulator {

/// result = Op(arguments...) of lanes; an Op is a struct with a static function.
template <typename Op, typename Result, typename... Arguments>
struct Lanewise {
  static Step run(Warp& warp, const Instruction& instruction, LaneMask lanes) {
    return read(warp, instruction, lanes, std::index_sequence_for<Arguments...>());
  }

 private:
  template <std::size_t... i>
  static Step read(Warp& warp, const Instruction& instruction, LaneMask lanes, std::index_sequence<i...>) {
    return compute(warp, instruction.result(0), lanes,
                   warp.in<Arguments>(instruction.argument(static_cast<int>(i)))...);
  }
  static Step compute(Warp& warp, Place result, LaneMask lanes, const Arguments* __restrict... arguments) {
    alignas(64) Result values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) values[lane] = Op::of(arguments[lane]...);
    warp.store(result, values, lanes);
    return Step::next;
  }
};

template <typename Op, typename T>
inline constexpr Handler kUnary = &Lanewise<Op, T, T>::run;
template <typename Op, typename T>
inline constexpr Handler kBinary = &Lanewise<Op, T, T, T>::run;
template <typename Op, typename T>
inline constexpr Handler kTernary = &Lanewise<Op, T, T, T, T>::run;

/// Bit l: whether conditions[l] is not zero; all its bits are alike.
inline LaneMask mask_of(const std::int32_t (&conditions)[kLanes]) {
#ifdef __AVX2__
  LaneMask mask = 0;
  for (int i = 0; i < kLanes; i += 8) {
    const __m256i eight = _mm256_load_si256(reinterpret_cast<const __m256i*>(conditions + i));
    mask |= static_cast<LaneMask>(_mm256_movemask_ps(_mm256_castsi256_ps(eight))) << i;
  }
  return mask;
#else
  LaneMask mask = 0;
  for (int lane = 0; lane < kLanes; ++lane) mask |= static_cast<LaneMask>(conditions[lane] & 1) << lane;
  return mask;
#endif
}

/// Calls visit.template operator()<T>() with the integer type that a PTX type names; false where it names none.
template <typename Visit>
bool with_integer(std::string_view type, const Visit& visit) {
  if (type == "u16" || type == "b16") return visit.template operator()<std::uint16_t>(), true;
  if (type == "s16") return visit.template operator()<std::int16_t>(), true;
  if (type == "u32" || type == "b32") return visit.template operator()<std::uint32_t>(), true;
  if (type == "s32") return visit.template operator()<std::int32_t>(), true;
  if (type == "u64" || type == "b64") return visit.template operator()<std::uint64_t>(), true;
  if (type == "s64") return visit.template operator()<std::int64_t>(), true;
  return false;
}

/// Decodes an instruction of one result and `count` arguments that all have so many bits.
inline void emit_lanewise(Decoder& decoder, const Statement& statement, Handler handler, int bits, int count) {
  std::vector<Place> arguments;
  if (statement.operands.size() != static_cast<std::size_t>(count) + 1) decoder.unsupported("other operands expected");
  for (int i = 1; i <= count; ++i) {
    arguments.push_back(decoder.in(statement.operands[static_cast<std::size_t>(i)], bits));
  }
  decoder.emit(handler, {decoder.out(statement.operands[0], bits)}, arguments);
}

}  // namespace strobe::emulator
