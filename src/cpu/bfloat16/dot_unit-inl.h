// SPDX-License-Identifier: Apache-2.0
// Products of packed bfloat16 operands by AVX512-BF16's dot products: VDPBF16PS adds the products of 16 pairs to 16
// float32 sums, twice the multiplications of a fused multiply-add of float32.
#if defined(STROBE_CPU_BFLOAT16_DOT_UNIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BFLOAT16_DOT_UNIT_INL_H_
#undef STROBE_CPU_BFLOAT16_DOT_UNIT_INL_H_
#else
#define STROBE_CPU_BFLOAT16_DOT_UNIT_INL_H_
#endif

#include "cpu/bfloat16/attributes-inl.h"
#include "cpu/bfloat16/conversions-inl.h"
#include "cpu/bfloat16/operands.h"

#if STROBE_HAS_BFLOAT16
#include <immintrin.h>

#include <cstring>

STROBE_BEFORE_BFLOAT16_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

struct DotUnit : Avx512Conversions {
  /// Products occupy the vector units, so that nothing is to be done between them.
  static constexpr bool kOverlaps = false;
  struct Session {};

  /// sums = left * right.
  template <class Between>
  static HWY_INLINE void multiply(TileOperand left, TileOperand right, std::int64_t steps, TileSums sums,
                                  const Between&) {
    product<false>(left, right, steps, sums);
  }

  /// sums += left * right.
  template <class Between>
  static HWY_INLINE void multiply_add(TileOperand left, TileOperand right, std::int64_t steps, TileSums sums,
                                      const Between&) {
    product<true>(left, right, steps, sums);
  }

 private:
  // 8 rows by 2 vectors of sums, two vectors of the right operand and one broadcast pair of the left one.
  static constexpr int kRows = 8;

  template <bool kAdd>
  static HWY_NOINLINE void product(TileOperand left, TileOperand right, std::int64_t steps, TileSums sums) {
    for (std::int64_t row = 0; row < bf16::kBlock; row += kRows) {
      const bfloat16* rows =
          left.data + row / bf16::kTileRows * left.group_stride + row % bf16::kTileRows * bf16::kTileDepth;
      some_rows<kAdd>(rows, right, steps, sums.data + row * sums.stride, sums.stride);
    }
  }

  template <bool kAdd>
  static HWY_INLINE void some_rows(const bfloat16* HWY_RESTRICT a, TileOperand right, std::int64_t steps,
                                   float* HWY_RESTRICT sums, std::int64_t stride) {
    const bfloat16* HWY_RESTRICT b = right.data;
    const bfloat16* HWY_RESTRICT b_next = right.data + right.group_stride;
    __m512 sum[kRows][2];
    HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
      sum[r][0] = kAdd ? _mm512_load_ps(sums + r * stride) : _mm512_setzero_ps();
      sum[r][1] = kAdd ? _mm512_load_ps(sums + r * stride + bf16::kTileRows) : _mm512_setzero_ps();
    }
    constexpr std::int64_t kSkipped = bf16::kTileElements - bf16::kTileDepth;  // of the left operand, after 16 pairs
    for (std::int64_t step = 0; step < steps; ++step, a += kSkipped) {
      for (std::int64_t pair = 0; pair < bf16::kTileRows; ++pair, a += 2) {
        const auto b0 = (__m512bh)_mm512_load_si512(b);
        const auto b1 = (__m512bh)_mm512_load_si512(b_next);
        b += bf16::kTileDepth;
        b_next += bf16::kTileDepth;
        HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
          const auto broadcast = broadcast_pair(a + r * bf16::kTileDepth);
          sum[r][0] = _mm512_dpbf16_ps(sum[r][0], b0, broadcast);
          sum[r][1] = _mm512_dpbf16_ps(sum[r][1], b1, broadcast);
        }
      }
    }
    HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
      _mm512_store_ps(sums + r * stride, sum[r][0]);
      _mm512_store_ps(sums + r * stride + bf16::kTileRows, sum[r][1]);
    }
  }

  /// One load for two products: as a memory operand of each it would be two.
  static HWY_INLINE __m512bh broadcast_pair(const bfloat16* from) {
    std::int32_t pair = 0;
    std::memcpy(&pair, from, sizeof(pair));
    __m512i all = _mm512_set1_epi32(pair);
    asm("" : "+v"(all));
    return (__m512bh)all;
  }
};

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_BFLOAT16_NAMESPACE();
#endif  // STROBE_HAS_BFLOAT16

#endif  // STROBE_CPU_BFLOAT16_DOT_UNIT_INL_H_
