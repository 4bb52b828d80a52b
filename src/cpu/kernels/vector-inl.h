// SPDX-License-Identifier: Apache-2.0
// Vector types, conversion to and from float32, and the two transcendental functions of the engine.
// Compiled once per instruction set (Highway's foreach_target): hence the toggled include guard.
#if defined(STROBE_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_VECTOR_INL_H_
#undef STROBE_CPU_VECTOR_INL_H_
#else
#define STROBE_CPU_VECTOR_INL_H_
#endif

#include <cstdint>

#include "call/arithmetic.h"
#include "cpu/kernels/task.h"
#include "hwy/highway.h"
#include "strobe/float16.h"
#include "strobe/float8.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Ints = hn::RebindToSigned<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
using Vec = hn::Vec<Floats>;
using WordVec = hn::Vec<Words>;

// Lengths are known at compile time: micro-kernels hold arrays of vectors.
inline constexpr std::int64_t kLanes = HWY_LANES(float);

// Vec and WordVec as elements of arrays and as members, which the types of SVE can only be with their length.
#if HWY_TARGET == HWY_SVE_256
typedef Vec FixedVec __attribute__((arm_sve_vector_bits(256)));          // NOLINT(modernize-use-using)
typedef WordVec FixedWordVec __attribute__((arm_sve_vector_bits(256)));  // NOLINT(modernize-use-using)
#else
using FixedVec = Vec;
using FixedWordVec = WordVec;
#endif

// Any vectors of 64-bit ARM: Highway has several names for NEON.
inline constexpr bool kArm64 = HWY_ARCH_ARM_A64 != 0 && HWY_TARGET < HWY_EMU128;

// The register tile of a micro-kernel is kTileRows x kTileVecs accumulators; the rest of the register file holds the
// right operand's vectors and one broadcast. 4 x 3 of 16 registers, 8 x 3 of 32.
inline constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || kArm64;
inline constexpr int kTileRows = kManyRegisters ? 8 : 4;
inline constexpr int kTileVecs = 3;
// dQ has its columns across the lanes: two vectors divide head_dim 64 and 128 without padding where three do not.
inline constexpr int kWideRows = kManyRegisters ? 12 : 6;
inline constexpr int kWideVecs = 2;

inline constexpr int kStrip = kTileRows;                    // columns interleaved in a packed left operand
inline constexpr std::int64_t kPanel = kTileVecs * kLanes;  // rows of a packed right operand
inline constexpr std::int64_t kWidePanel = kWideVecs * kLanes;

/// Vectors of a panel that hold any of `rows` rows from its first on.
constexpr int panel_vectors(std::int64_t rows) {
  return static_cast<int>(rows >= kPanel ? kTileVecs : ceil_div(rows, kLanes));
}

/// Calls visit(lane, position, head) for the kLanes rows from `row` on, row = position * group + head.
template <class Visit>
HWY_INLINE void for_each_lane(std::int64_t row, std::int64_t group, const Visit& visit) {
  auto [position, head] = row_place(row, group);
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    visit(lane, position, head);
    if (++head == group) {
      head = 0;
      ++position;
    }
  }
}

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
/// 2^x with relative error below 2^-22. x = n + f with n = floor(x); 2^f on [0, 1] by a minimax polynomial of degree 5;
/// AVX-512 splits x and scales by 2^n in one instruction each, infinities and NaN included.
HWY_INLINE Vec exp2(Vec x) {
  const Floats d;
  constexpr int kToFloor = 0x09;  // round down, without exceptions
  const Vec f{_mm512_reduce_ps(x.raw, kToFloor)};
  Vec p = hn::Set(d, 0x1.e974fap-10F);
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.277856p-7F));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c91ce6p-5F));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebdb56p-3F));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e4bap-1F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  return Vec{_mm512_scalef_ps(p.raw, x.raw)};
}
#else
/// 2^x for x <= 127.5 or NaN, with relative error below 2^-22; 0 below 2^-126.
/// x = n + f with n = round(x); 2^f on [-1/2, 1/2] by a minimax polynomial of degree 5; 2^n into the exponent bits.
HWY_INLINE Vec exp2(Vec x) {
  const Floats d;
  // Adding 1.5 * 2^23 rounds to an integer; the 127 on top leaves the biased exponent in the low bits.
  const Vec magic = hn::Set(d, 0x1.8p23F + 127.0F);
  // A comparison and not Max: what Max makes of NaN differs between instruction sets, and NaN must pass.
  x = hn::IfThenElse(hn::Lt(x, hn::Set(d, -127.0F)), hn::Set(d, -127.0F), x);
  const Vec biased = hn::Add(x, magic);
  const Vec f = hn::Sub(x, hn::Sub(biased, magic));
  Vec p = hn::Set(d, 0x1.5bba14p-10F);
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.3cea88p-7F));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b752p-5F));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf9bcp-3F));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e42ap-1F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  const Vec two_to_n = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(Ints(), biased)));
  return hn::Mul(p, two_to_n);
}
#endif

/// tanh(x) with relative error below 2^-21; NaN passes.
/// x P(x^2) / Q(x^2), a minimax quotient of two polynomials of degree 4 for the relative error on [0, 9.01] (2.1e-8 in
/// exact arithmetic); from there on float32 rounds tanh to 1, and what is capped there has slope 0. All coefficients
/// are positive: nothing cancels.
HWY_INLINE Vec tanh(Vec x) {
  const Floats d;
  const auto saturated = hn::Gt(hn::Abs(x), hn::Set(d, 9.01F));
  const Vec t = hn::Mul(x, x);
  Vec p = hn::Set(d, 1.33365507e-8F);
  p = hn::MulAdd(p, t, hn::Set(d, 2.05960534e-5F));
  p = hn::MulAdd(p, t, hn::Set(d, 3.49479757e-3F));
  p = hn::MulAdd(p, t, hn::Set(d, 1.33803603e-1F));
  p = hn::MulAdd(p, t, hn::Set(d, 9.99999979e-1F));
  Vec q = hn::Set(d, 7.76915926e-7F);
  q = hn::MulAdd(q, t, hn::Set(d, 3.28434119e-4F));
  q = hn::MulAdd(q, t, hn::Set(d, 2.58739755e-2F));
  q = hn::MulAdd(q, t, hn::Set(d, 4.67136757e-1F));
  q = hn::MulAdd(q, t, hn::Set(d, 1.0F));
  return hn::IfThenElse(saturated, hn::CopySign(hn::Set(d, 1.0F), x), hn::Div(hn::Mul(x, p), q));
}

/// Loads `Lanes(d)` elements as float32.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* from) {
  return hn::LoadU(d, from);
}

// Where Highway emulates float16 conversion it does not know infinities and NaN.
inline constexpr bool kNativeFloat16 = HWY_TARGET <= HWY_AVX2 || kArm64;

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float16* from) {
  if constexpr (kNativeFloat16) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), reinterpret_cast<const hwy::float16_t*>(from)));
  } else {
    HWY_ALIGN float widened[kLanes];  // D has no more lanes than Floats
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) widened[i] = to_float(from[i]);
    return hn::Load(d, widened);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const bfloat16* from) {
  const hn::Rebind<std::uint32_t, D> wide;
  const auto bits = hn::LoadU(hn::Rebind<std::uint16_t, D>(), reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, bits)));
}

inline float to_float(std::int8_t value) { return static_cast<float>(value); }
using strobe::to_float;

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const std::int8_t* from) {
  return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<D>(), hn::LoadU(hn::Rebind<std::int8_t, D>(), from)));
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float8_e4m3* from) {
  HWY_ALIGN float widened[kLanes];  // D has no more lanes than Floats
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) widened[i] = to_float(from[i]);
  return hn::Load(d, widened);
}

template <class T>
HWY_INLINE T narrow(float value) {
  if constexpr (std::is_same_v<T, float16>) return to_float16(value);
  if constexpr (std::is_same_v<T, bfloat16>) return to_bfloat16(value);
  if constexpr (std::is_same_v<T, float>) return value;
}

HWY_INLINE void store(Vec value, float* to) { hn::StoreU(value, Floats(), to); }

HWY_INLINE void store(Vec value, float16* to) {
  if constexpr (kNativeFloat16) {
    const hn::Rebind<hwy::float16_t, Floats> half;
    hn::StoreU(hn::DemoteTo(half, value), half, reinterpret_cast<hwy::float16_t*>(to));
  } else {
    HWY_ALIGN float wide[kLanes];
    hn::Store(value, Floats(), wide);
    for (std::int64_t i = 0; i < kLanes; ++i) to[i] = to_float16(wide[i]);
  }
}

/// Round to nearest even on the bits, with NaN kept quiet.
HWY_INLINE void store(Vec value, bfloat16* to) {
  const hn::RebindToUnsigned<Floats> wide;
  const hn::Rebind<std::uint16_t, Floats> half;
  const auto bits = hn::BitCast(wide, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(wide, 1U));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(wide, 0x7FFFU)), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(wide, 0x40U));
  const auto chosen = hn::IfThenElse(hn::RebindMask(wide, hn::IsNaN(value)), quiet, rounded);
  hn::StoreU(hn::TruncateTo(half, chosen), half, reinterpret_cast<std::uint16_t*>(to));
}

/// Converts `count` contiguous float32, times `factor`, to T.
template <class T>
HWY_INLINE void store_row(const float* from, float factor, T* to, std::int64_t count) {
  const Vec factors = hn::Set(Floats(), factor);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(hn::Mul(hn::LoadU(Floats(), from + i), factors), to + i);
  for (; i < count; ++i) to[i] = narrow<T>(from[i] * factor);
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_VECTOR_INL_H_
