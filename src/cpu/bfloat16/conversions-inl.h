// SPDX-License-Identifier: Apache-2.0
// Rounding to bfloat16 and a transposition in registers, by AVX-512 and AVX512-BF16.
#if defined(STROBE_CPU_BFLOAT16_CONVERSIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BFLOAT16_CONVERSIONS_INL_H_
#undef STROBE_CPU_BFLOAT16_CONVERSIONS_INL_H_
#else
#define STROBE_CPU_BFLOAT16_CONVERSIONS_INL_H_
#endif

#include "cpu/bfloat16/attributes-inl.h"
#include "cpu/bfloat16/scratch.h"
#include "cpu/kernels/vector-inl.h"

#if STROBE_HAS_BFLOAT16
#include <immintrin.h>

STROBE_BEFORE_BFLOAT16_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

struct Avx512Conversions {
  /// kLanes float32 to as many bfloat16.
  static HWY_INLINE void narrow(Vec value, bfloat16* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(value.raw));
  }

  /// Pairs (even[i], odd[i]) of bfloat16, halves rounded away from zero. A NaN's lower half must be 0: it could
  /// overflow otherwise. Integers, since conversion instructions compete with AMX's matrix unit for a port, and beside
  /// dot products are no faster.
  static HWY_INLINE void narrow_pairs(Vec even, Vec odd, bfloat16* to) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even.raw), half), 16);
    const __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd.raw), half);
    constexpr __mmask32 kLowHalves = 0x55555555;
    _mm512_storeu_si512(to, _mm512_mask_mov_epi16(high, kLowHalves, low));
  }

  /// 16 x 16 elements of 32 bits (float32 or pairs), contiguous, transposed in place.
  static HWY_INLINE void transpose(void* tile) {
    char* rows = static_cast<char*>(tile);
    __m512i row[16];
    __m512i next[16];
    HWY_UNROLL(16) for (int i = 0; i < 16; ++i) row[i] = _mm512_load_si512(rows + i * 64);
    HWY_UNROLL(8) for (int i = 0; i < 16; i += 2) {
      next[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
      next[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
    }
    // Four rows at a time: 128-bit lane l of row[4 g + j] is now column 4 l + j of rows 4 g to 4 g + 3.
    HWY_UNROLL(4) for (int i = 0; i < 16; i += 4) {
      row[i] = _mm512_unpacklo_epi64(next[i], next[i + 2]);
      row[i + 1] = _mm512_unpackhi_epi64(next[i], next[i + 2]);
      row[i + 2] = _mm512_unpacklo_epi64(next[i + 1], next[i + 3]);
      row[i + 3] = _mm512_unpackhi_epi64(next[i + 1], next[i + 3]);
    }
    // Then a transposition of 4 x 4 lanes for each j.
    HWY_UNROLL(4) for (int j = 0; j < 4; ++j) {
      const __m512i low01 = _mm512_shuffle_i32x4(row[j], row[4 + j], 0x44);
      const __m512i high01 = _mm512_shuffle_i32x4(row[j], row[4 + j], 0xEE);
      const __m512i low23 = _mm512_shuffle_i32x4(row[8 + j], row[12 + j], 0x44);
      const __m512i high23 = _mm512_shuffle_i32x4(row[8 + j], row[12 + j], 0xEE);
      _mm512_store_si512(rows + j * 64, _mm512_shuffle_i32x4(low01, low23, 0x88));
      _mm512_store_si512(rows + (4 + j) * 64, _mm512_shuffle_i32x4(low01, low23, 0xDD));
      _mm512_store_si512(rows + (8 + j) * 64, _mm512_shuffle_i32x4(high01, high23, 0x88));
      _mm512_store_si512(rows + (12 + j) * 64, _mm512_shuffle_i32x4(high01, high23, 0xDD));
    }
  }
};

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_BFLOAT16_NAMESPACE();
#endif  // STROBE_HAS_BFLOAT16

#endif  // STROBE_CPU_BFLOAT16_CONVERSIONS_INL_H_
