// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/append.cpp"  // compiled once per instruction set
#include "hwy/foreach_target.h"                      // must come before highway.h

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "call/eight_bit.h"
#include "cpu/kernels/append.h"
#include "cpu/kernels/vector-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

template <class T>
HWY_INLINE void widen(const T* HWY_RESTRICT from, std::int64_t count, float* HWY_RESTRICT to) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(load(Floats(), from + i), to + i);
  for (; i < count; ++i) to[i] = to_float(from[i]);
}

/// (a, b) -> (a cos - b sin, a sin + b cos). Whole vectors, so that what lies behind the rotated columns is written,
/// too: those that are not rotated follow.
HWY_INLINE void rotate(const Angles& angles, std::int64_t columns, const float* HWY_RESTRICT from,
                       float* HWY_RESTRICT to) {
  const Floats d;
  const std::int64_t pairs = angles.pairs;
  for (std::int64_t i = 0; i < pairs; i += kLanes) {
    const Vec cos = hn::LoadU(d, angles.cos.data() + i);
    const Vec sin = hn::LoadU(d, angles.sin.data() + i);
    Vec a;
    Vec b;
    if (angles.interleaved) {
      hn::LoadInterleaved2(d, from + 2 * i, a, b);
    } else {
      a = hn::LoadU(d, from + i);
      b = hn::LoadU(d, from + pairs + i);
    }
    const Vec turned_a = hn::Sub(hn::Mul(a, cos), hn::Mul(b, sin));
    const Vec turned_b = hn::Add(hn::Mul(a, sin), hn::Mul(b, cos));
    if (angles.interleaved) {
      hn::StoreInterleaved2(turned_a, turned_b, d, to + 2 * i);
    } else {
      hn::StoreU(turned_a, d, to + i);
      hn::StoreU(turned_b, d, to + kPaddedColumns + i);
    }
  }
  if (!angles.interleaved) std::copy_n(to + kPaddedColumns, pairs, to + pairs);
  std::copy_n(from + 2 * pairs, columns - 2 * pairs, to + 2 * pairs);
}

/// Quotients rounded to nearest even, in the low byte of each lane.
HWY_INLINE hn::Vec<Ints> to_int8(Vec quotient) {
  const Floats d;
  const Vec limited = hn::Min(hn::Max(quotient, hn::Set(d, -kLargestInt8)), hn::Set(d, kLargestInt8));
  return hn::NearestInt(hn::IfThenZeroElse(hn::IsNaN(quotient), limited));
}

/// to_float8_e4m3 of every lane.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<Floats>> to_float8(Vec quotient) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> wide;
  const auto bits = hn::BitCast(wide, quotient);
  const auto magnitude = hn::And(bits, hn::Set(wide, 0x7FFFFFFFU));
  const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(wide, 0x80U));
  const Vec shift = hn::Set(d, 0x1p14F);
  const auto subnormal =
      hn::Sub(hn::BitCast(wide, hn::Add(hn::BitCast(d, magnitude), shift)), hn::BitCast(wide, shift));
  const auto rebiased = hn::Sub(magnitude, hn::Set(wide, (127U - 7U) << 23U));
  const auto odd = hn::And(hn::ShiftRight<20>(rebiased), hn::Set(wide, 1U));
  const auto normal = hn::ShiftRight<20>(hn::Add(hn::Add(rebiased, hn::Set(wide, 0x7FFFFU)), odd));
  auto rounded = hn::IfThenElse(hn::Lt(magnitude, hn::Set(wide, 0x3C800000U)), subnormal, normal);
  rounded = hn::IfThenElse(hn::Gt(magnitude, hn::Set(wide, 0x43DFFFFFU)), hn::Set(wide, 0x7EU), rounded);
  rounded = hn::IfThenElse(hn::RebindMask(wide, hn::IsNaN(quotient)), hn::Set(wide, 0x7FU), rounded);
  return hn::Or(rounded, sign);
}

/// The largest magnitude; infinity or NaN where the row holds one. `from` is padded.
/// As integers magnitudes have the order of the numbers, and NaNs are the largest.
HWY_INLINE float largest_magnitude(const float* HWY_RESTRICT from, std::int64_t count) {
  const Floats d;
  const Ints bits;
  auto largest = hn::Zero(bits);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const auto exists = hn::FirstN(d, static_cast<std::size_t>(std::min(kLanes, count - i)));
    const Vec magnitude = hn::IfThenElseZero(exists, hn::Abs(hn::LoadU(d, from + i)));
    largest = hn::Max(largest, hn::BitCast(bits, magnitude));
  }
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(bits, largest)));
}

/// The scale that a row of T has of its own: NaN where it holds numbers that are not finite, which T cannot represent.
template <class T>
HWY_INLINE float row_scale(const float* HWY_RESTRICT from, std::int64_t count) {
  const float largest = largest_magnitude(from, count);
  if (!std::isfinite(largest)) return std::numeric_limits<float>::quiet_NaN();
  constexpr bool kInt8 = std::is_same_v<T, std::int8_t>;
  return std::max(largest / largest_element(kInt8 ? DType::int8 : DType::float8_e4m3), kSmallestScale);
}

/// Rounds to T; `from` is padded.
template <class T>
HWY_INLINE void narrow_row(const float* HWY_RESTRICT from, std::int64_t count, float scale, T* HWY_RESTRICT to) {
  if constexpr (sizeof(T) > 1) {
    store_row(from, 1.0F, to, count);
  } else {
    const hn::RebindToUnsigned<Floats> wide;
    const hn::Rebind<std::uint8_t, Floats> narrow;
    const Vec divisor = hn::Set(Floats(), scale);
    HWY_ALIGN std::uint8_t last[kLanes];
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const Vec quotient = hn::Div(hn::LoadU(Floats(), from + i), divisor);
      hn::Vec<decltype(wide)> bytes;
      if constexpr (std::is_same_v<T, std::int8_t>) {
        bytes = hn::BitCast(wide, to_int8(quotient));
      } else {
        bytes = to_float8(quotient);
      }
      auto* const place = reinterpret_cast<std::uint8_t*>(to + i);
      if (i + kLanes <= count) {
        hn::StoreU(hn::TruncateTo(narrow, bytes), narrow, place);
      } else {
        hn::StoreU(hn::TruncateTo(narrow, bytes), narrow, last);
        std::copy_n(last, count - i, place);
      }
    }
  }
}

/// Halves of whole vectors, the common case, from memory to memory.
template <class From, class To>
HWY_INLINE void rotate_halves(const Angles& angles, std::int64_t columns, const From* HWY_RESTRICT from,
                              To* HWY_RESTRICT to) {
  const Floats d;
  const std::int64_t pairs = angles.pairs;
  for (std::int64_t i = 0; i < pairs; i += kLanes) {
    const Vec cos = hn::LoadU(d, angles.cos.data() + i);
    const Vec sin = hn::LoadU(d, angles.sin.data() + i);
    const Vec a = load(d, from + i);
    const Vec b = load(d, from + pairs + i);
    store(hn::Sub(hn::Mul(a, cos), hn::Mul(b, sin)), to + i);
    store(hn::Add(hn::Mul(a, sin), hn::Mul(b, cos)), to + pairs + i);
  }
  for (std::int64_t c = 2 * pairs; c < columns; ++c) to[c] = narrow<To>(to_float(from[c]));
}

template <class From, class To>
HWY_INLINE void convert_heads_as(const HeadRows& rows, const Angles& angles) {
  const auto* const from = static_cast<const From*>(rows.from);
  auto* const to = static_cast<To*>(rows.to);
  if constexpr (sizeof(To) > 1) {
    if (angles.pairs > 0 && angles.pairs % kLanes == 0 && !angles.interleaved) {
      for (std::int64_t head = 0; head < rows.heads; ++head) {
        rotate_halves(angles, rows.columns, from + head * rows.from_stride, to + head * rows.to_stride);
      }
      return;
    }
  }
  PaddedRow wide{};
  std::array<float, 2 * kPaddedColumns> turned;  // the second half: where rotate() puts the b of each pair
  for (std::int64_t head = 0; head < rows.heads; ++head) {
    widen(from + head * rows.from_stride, rows.columns, wide.data());
    const float* row = wide.data();
    if (angles.pairs > 0) {
      rotate(angles, rows.columns, wide.data(), turned.data());
      row = turned.data();
    }
    float scale = rows.scales == nullptr ? 1.0F : rows.scales[head * rows.scale_stride];
    if constexpr (sizeof(To) == 1) {
      if (rows.row_scales != nullptr) {
        scale = rows.row_scales[head * rows.scale_stride] = row_scale<To>(row, rows.columns);
        if (std::isnan(scale)) {
          std::fill_n(to + head * rows.to_stride, rows.columns, To{});
          continue;
        }
      }
    }
    narrow_row(row, rows.columns, scale, to + head * rows.to_stride);
  }
}

template <class From>
HWY_INLINE void convert_heads_from(const HeadRows& rows, const Angles& angles) {
  switch (rows.to_dtype) {
    case DType::float16: return convert_heads_as<From, float16>(rows, angles);
    case DType::bfloat16: return convert_heads_as<From, bfloat16>(rows, angles);
    case DType::int8: return convert_heads_as<From, std::int8_t>(rows, angles);
    case DType::float8_e4m3: return convert_heads_as<From, float8_e4m3>(rows, angles);
    default: return convert_heads_as<From, float>(rows, angles);
  }
}

void run_convert_heads(const HeadRows& rows, const Angles& angles) {
  switch (rows.from_dtype) {
    case DType::float16: return convert_heads_from<float16>(rows, angles);
    case DType::bfloat16: return convert_heads_from<bfloat16>(rows, angles);
    default: return convert_heads_from<float>(rows, angles);
  }
}

void run_widen_row(DType dtype, const void* from, std::int64_t count, float* to) {
  switch (dtype) {
    case DType::float16: return widen(static_cast<const float16*>(from), count, to);
    case DType::bfloat16: return widen(static_cast<const bfloat16*>(from), count, to);
    default: return widen(static_cast<const float*>(from), count, to);
  }
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strobe::cpu {

HWY_EXPORT(run_convert_heads);
HWY_EXPORT(run_widen_row);

void convert_heads(const HeadRows& rows, const Angles& angles) {
  HWY_DYNAMIC_DISPATCH(run_convert_heads)(rows, angles);
}

void widen_row(DType dtype, const void* from, std::int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(run_widen_row)(dtype, from, count, to);
}

}  // namespace strobe::cpu
#endif
