// SPDX-License-Identifier: Apache-2.0
// Products of packed bfloat16 operands on matrix tiles.
//
// `Registers` are the tile registers: amx_registers-inl.h, or the tests' emulation. Registers 0 to 3 hold a 2 x 2 block
// of sums, 4 and 5 the left operand, 6 and 7 the right one.
#if defined(STROBE_CPU_BFLOAT16_TILE_UNIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BFLOAT16_TILE_UNIT_INL_H_
#undef STROBE_CPU_BFLOAT16_TILE_UNIT_INL_H_
#else
#define STROBE_CPU_BFLOAT16_TILE_UNIT_INL_H_
#endif

#include "cpu/bfloat16/attributes-inl.h"
#include "cpu/bfloat16/operands.h"

STROBE_BEFORE_BFLOAT16_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

template <class Registers>
struct TileUnit : Registers {
  /// Products leave the vector units free for what between() does.
  static constexpr bool kOverlaps = true;

  /// sums = left * right.
  template <class Between>
  static HWY_INLINE void multiply(TileOperand left, TileOperand right, std::int64_t steps, TileSums sums,
                                  const Between& between) {
    Registers::template zero<0>();
    Registers::template zero<1>();
    Registers::template zero<2>();
    Registers::template zero<3>();
    add_product(left, right, steps, between);
    store_sums(sums);
  }

  /// sums += left * right.
  template <class Between>
  static HWY_INLINE void multiply_add(TileOperand left, TileOperand right, std::int64_t steps, TileSums sums,
                                      const Between& between) {
    load_sums(sums);
    add_product(left, right, steps, between);
    store_sums(sums);
  }

 private:
  static HWY_INLINE void load_sums(TileSums sums) {
    const std::size_t bytes = static_cast<std::size_t>(sums.stride) * sizeof(float);
    float* below = sums.data + bf16::kTileRows * sums.stride;
    Registers::template load<0>(sums.data, bytes);
    Registers::template load<1>(sums.data + bf16::kTileRows, bytes);
    Registers::template load<2>(below, bytes);
    Registers::template load<3>(below + bf16::kTileRows, bytes);
  }

  static HWY_INLINE void store_sums(TileSums sums) {
    const std::size_t bytes = static_cast<std::size_t>(sums.stride) * sizeof(float);
    float* below = sums.data + bf16::kTileRows * sums.stride;
    Registers::template store<0>(sums.data, bytes);
    Registers::template store<1>(sums.data + bf16::kTileRows, bytes);
    Registers::template store<2>(below, bytes);
    Registers::template store<3>(below + bf16::kTileRows, bytes);
  }

  /// The sums in registers += left * right over `steps` steps of kTileDepth. After each step's instructions, which keep
  /// the matrix unit busy for 64 cycles, between() can give the vector units something to do.
  template <class Between>
  static HWY_INLINE void add_product(TileOperand left, TileOperand right, std::int64_t steps, const Between& between) {
    constexpr std::size_t kRowBytes = 64;
    const bfloat16* HWY_RESTRICT a = left.data;
    const bfloat16* HWY_RESTRICT b = right.data;
    for (std::int64_t step = 0; step < steps; ++step, a += bf16::kTileElements, b += bf16::kTileElements) {
      Registers::template load<4>(a, kRowBytes);
      Registers::template load<6>(b, kRowBytes);
      Registers::template multiply<0, 4, 6>();
      Registers::template load<7>(b + right.group_stride, kRowBytes);
      Registers::template multiply<1, 4, 7>();
      Registers::template load<5>(a + left.group_stride, kRowBytes);
      Registers::template multiply<2, 5, 6>();
      Registers::template multiply<3, 5, 7>();
      between();
    }
  }
};

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_BFLOAT16_NAMESPACE();

#endif  // STROBE_CPU_BFLOAT16_TILE_UNIT_INL_H_
