// SPDX-License-Identifier: Apache-2.0
// The matrix unit of the processor: AMX tiles, AVX512_BF16 conversion and a transposition in registers.
#if defined(STROBE_CPU_AMX_HARDWARE_UNIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_AMX_HARDWARE_UNIT_INL_H_
#undef STROBE_CPU_AMX_HARDWARE_UNIT_INL_H_
#else
#define STROBE_CPU_AMX_HARDWARE_UNIT_INL_H_
#endif

#include "cpu/amx/attributes-inl.h"
#include "cpu/amx/scratch.h"
#include "cpu/kernels/vector-inl.h"

#if STROBE_HAS_AMX
#include <immintrin.h>

STROBE_BEFORE_AMX_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

// Written as instructions, since the compilers' intrinsics take tile numbers as literal text only.
struct HardwareUnit {
  /// Tiles exist from here to the end of the object's life: the operating system then has nothing to save of them.
  class Session {
   public:
    Session() {
      struct alignas(64) {
        std::uint8_t palette = 1;
        std::uint8_t start_row = 0;
        std::uint8_t reserved[14] = {};
        std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
      } shape;
      asm volatile("ldtilecfg %0" ::"m"(shape));
    }
    ~Session() { asm volatile("tilerelease"); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  template <int kTile>
  static HWY_INLINE void load(const void* from, std::size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static HWY_INLINE void store(void* to, std::size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static HWY_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kSum, int kLeft, int kRight>
  static HWY_INLINE void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  }

  /// kLanes float32 to as many bfloat16.
  static HWY_INLINE void narrow(Vec value, bfloat16* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(value.raw));
  }

  /// Pairs (even[i], odd[i]) of bfloat16, halves rounded away from zero. A NaN's lower half must be 0: it could
  /// overflow otherwise. Integers, since conversion instructions compete with the matrix unit for a port.
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
STROBE_AFTER_AMX_NAMESPACE();
#endif  // STROBE_HAS_AMX

#endif  // STROBE_CPU_AMX_HARDWARE_UNIT_INL_H_
