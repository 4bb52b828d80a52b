// SPDX-License-Identifier: Apache-2.0
// Products of packed bfloat16 operands on matrix tiles.
//
// `Unit` is what multiplies: hardware_unit-inl.h, or the tests' emulation. Tile registers 0 to 3 hold a 2 x 2 block of
// sums, 4 and 5 the left operand, 6 and 7 the right one.
#if defined(STROBE_CPU_AMX_TILE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_AMX_TILE_PRODUCT_INL_H_
#undef STROBE_CPU_AMX_TILE_PRODUCT_INL_H_
#else
#define STROBE_CPU_AMX_TILE_PRODUCT_INL_H_
#endif

#include "cpu/amx/attributes-inl.h"
#include "cpu/amx/scratch.h"

STROBE_BEFORE_AMX_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// Tiles of one operand along the sum: tile `step` of row group (or column group) `group` begins at
/// data + group * group_stride + step * kTileElements.
struct TileOperand {
  const bfloat16* data;
  std::int64_t group_stride;
};

/// A 2 x 2 block of float32 sums, kBlock rows of `stride` elements.
struct TileSums {
  float* data;
  std::int64_t stride;
};

template <class Unit>
HWY_INLINE void load_sums(TileSums sums) {
  const std::size_t bytes = static_cast<std::size_t>(sums.stride) * sizeof(float);
  float* below = sums.data + amx::kTileRows * sums.stride;
  Unit::template load<0>(sums.data, bytes);
  Unit::template load<1>(sums.data + amx::kTileRows, bytes);
  Unit::template load<2>(below, bytes);
  Unit::template load<3>(below + amx::kTileRows, bytes);
}

template <class Unit>
HWY_INLINE void store_sums(TileSums sums) {
  const std::size_t bytes = static_cast<std::size_t>(sums.stride) * sizeof(float);
  float* below = sums.data + amx::kTileRows * sums.stride;
  Unit::template store<0>(sums.data, bytes);
  Unit::template store<1>(sums.data + amx::kTileRows, bytes);
  Unit::template store<2>(below, bytes);
  Unit::template store<3>(below + amx::kTileRows, bytes);
}

/// The sums in registers += left * right over `steps` steps of kTileDepth. After each step's instructions, which keep
/// the matrix unit busy for 64 cycles, between() can give the vector units something to do.
template <class Unit, class Between>
HWY_INLINE void add_product(TileOperand left, TileOperand right, std::int64_t steps, const Between& between) {
  constexpr std::size_t kRowBytes = 64;
  const bfloat16* HWY_RESTRICT a = left.data;
  const bfloat16* HWY_RESTRICT b = right.data;
  for (std::int64_t step = 0; step < steps; ++step, a += amx::kTileElements, b += amx::kTileElements) {
    Unit::template load<4>(a, kRowBytes);
    Unit::template load<6>(b, kRowBytes);
    Unit::template multiply<0, 4, 6>();
    Unit::template load<7>(b + right.group_stride, kRowBytes);
    Unit::template multiply<1, 4, 7>();
    Unit::template load<5>(a + left.group_stride, kRowBytes);
    Unit::template multiply<2, 5, 6>();
    Unit::template multiply<3, 5, 7>();
    between();
  }
}

/// sums = left * right.
template <class Unit, class Between>
HWY_INLINE void multiply_tiles(TileOperand left, TileOperand right, std::int64_t steps, TileSums sums,
                               const Between& between) {
  Unit::template zero<0>();
  Unit::template zero<1>();
  Unit::template zero<2>();
  Unit::template zero<3>();
  add_product<Unit>(left, right, steps, between);
  store_sums<Unit>(sums);
}

/// sums += left * right.
template <class Unit, class Between>
HWY_INLINE void multiply_add_tiles(TileOperand left, TileOperand right, std::int64_t steps, TileSums sums,
                                   const Between& between) {
  load_sums<Unit>(sums);
  add_product<Unit>(left, right, steps, between);
  store_sums<Unit>(sums);
}

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_AMX_NAMESPACE();

#endif  // STROBE_CPU_AMX_TILE_PRODUCT_INL_H_
