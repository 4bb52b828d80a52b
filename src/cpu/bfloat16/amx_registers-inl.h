// SPDX-License-Identifier: Apache-2.0
// AMX's matrix unit: its tile registers, for TileUnit.
#if defined(STROBE_CPU_BFLOAT16_AMX_REGISTERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BFLOAT16_AMX_REGISTERS_INL_H_
#undef STROBE_CPU_BFLOAT16_AMX_REGISTERS_INL_H_
#else
#define STROBE_CPU_BFLOAT16_AMX_REGISTERS_INL_H_
#endif

#include "cpu/bfloat16/attributes-inl.h"
#include "cpu/bfloat16/conversions-inl.h"

#if STROBE_HAS_BFLOAT16
#include <immintrin.h>

STROBE_BEFORE_BFLOAT16_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

// Written as instructions, since the compilers' intrinsics take tile numbers as literal text only.
struct AmxRegisters : Avx512Conversions {
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
};

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_BFLOAT16_NAMESPACE();
#endif  // STROBE_HAS_BFLOAT16

#endif  // STROBE_CPU_BFLOAT16_AMX_REGISTERS_INL_H_
