// SPDX-License-Identifier: Apache-2.0
// A row in any format to float32: element times scale, one product.
#if defined(STROBE_CPU_SPARSE_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_SPARSE_DECODE_INL_H_
#undef STROBE_CPU_SPARSE_DECODE_INL_H_
#else
#define STROBE_CPU_SPARSE_DECODE_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "call/row_format.h"
#include "cpu/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// A scale that is no more aligned than its row.
HWY_INLINE float read_scale(RowScale stored, const std::byte* at) {
  switch (stored) {
    case RowScale::none: return 1.0F;
    case RowScale::float8_e8m0: return e8m0_value(static_cast<std::uint8_t>(*at));
    case RowScale::float8_e4m3: return to_float(float8_e4m3{static_cast<std::uint8_t>(*at)});
    case RowScale::bfloat16: {
      bfloat16 value;
      std::memcpy(&value, at, sizeof(value));
      return to_float(value);
    }
    case RowScale::float32:
    case RowScale::float32_power_of_two: {
      float value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
  }
  return 1.0F;
}

/// to_float() of kLanes float8_e4m3.
HWY_INLINE Vec load_float8(const float8_e4m3* from) {
  const Floats d;
  const Words words;
  const auto bytes = hn::LoadU(hn::Rebind<std::uint8_t, Floats>(), reinterpret_cast<const std::uint8_t*>(from));
  const WordVec code = hn::PromoteTo(words, bytes);
  const WordVec magnitude = hn::And(code, hn::Set(words, 0x7FU));
  const WordVec normal = hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(words, (127U - 7U) << 23U));
  const Vec multiples = hn::ConvertTo(d, hn::BitCast(Ints(), magnitude));  // of 2^-9: zero and subnormal numbers
  const WordVec subnormal = hn::BitCast(words, hn::Mul(multiples, hn::Set(d, 0x1p-9F)));
  WordVec bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(words, 8U)), subnormal, normal);
  bits = hn::IfThenElse(hn::Eq(magnitude, hn::Set(words, 0x7FU)), hn::Set(words, 0x7FC00000U), bits);
  return hn::BitCast(d, hn::Or(bits, hn::ShiftLeft<24>(hn::And(code, hn::Set(words, 0x80U)))));
}

/// Elements of a dtype that load() knows. A scale of 1 changes no bit.
template <class T>
HWY_INLINE void decode_group(const std::byte* elements, std::int64_t first, std::int64_t last, float scale,
                             float* HWY_RESTRICT to) {
  const Floats d;
  const T* const from = reinterpret_cast<const T*>(elements);
  const Vec factor = hn::Set(d, scale);
  std::int64_t c = first;
  for (; c + kLanes <= last; c += kLanes) {
    Vec wide;
    if constexpr (std::is_same_v<T, float8_e4m3>) {
      wide = load_float8(from + c);
    } else {
      wide = load(d, from + c);
    }
    hn::StoreU(hn::Mul(wide, factor), d, to + c);
  }
  for (; c < last; ++c) to[c] = to_float(from[c]) * scale;
}

/// Two elements to a byte.
HWY_INLINE void decode_nibbles(const std::byte* elements, std::int64_t first, std::int64_t last, float scale,
                               bool integers, float* HWY_RESTRICT to) {
  for (std::int64_t c = first; c < last; ++c) {
    const unsigned code = std::to_integer<unsigned>(elements[c / 2]) >> (c % 2 * 4) & 15U;
    const float magnitude = kFloat4Magnitudes[code & 7U];
    const float value = integers   ? static_cast<float>(static_cast<int>(code ^ 8U) - 8)
                        : code < 8 ? magnitude
                                   : -magnitude;
    to[c] = value * scale;
  }
}

HWY_INLINE void decode_part(const RowPart& part, const RowFormat& format, const RowBytes<const std::byte>& from,
                            float* HWY_RESTRICT to) {
  const std::byte* const elements = byte_of(from, format, part.offset);
  const std::int64_t group = part.scale == RowScale::none ? part.columns : part.scale_columns;
  for (std::int64_t first = 0; first < part.columns; first += group) {
    const std::int64_t last = std::min<std::int64_t>(first + group, part.columns);
    float scale = 1.0F;
    if (part.scale != RowScale::none) {
      scale = read_scale(part.scale, byte_of(from, format, part.scale_offset + first / group * bytes_of(part.scale)));
    }
    switch (part.element) {
      case RowElement::float32: decode_group<float>(elements, first, last, scale, to); break;
      case RowElement::bfloat16: decode_group<bfloat16>(elements, first, last, scale, to); break;
      case RowElement::float16: decode_group<float16>(elements, first, last, scale, to); break;
      case RowElement::float8_e4m3: decode_group<float8_e4m3>(elements, first, last, scale, to); break;
      case RowElement::int8: decode_group<std::int8_t>(elements, first, last, scale, to); break;
      case RowElement::int4: decode_nibbles(elements, first, last, scale, true, to); break;
      case RowElement::float4_e2m1: decode_nibbles(elements, first, last, scale, false, to); break;
    }
  }
}

HWY_INLINE void decode(const RowFormat& format, const RowBytes<const std::byte>& from, float* HWY_RESTRICT to) {
  for (const RowPart& part : parts_of(format)) {
    decode_part(part, format, from, to);
    to += part.columns;
  }
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_SPARSE_DECODE_INL_H_
