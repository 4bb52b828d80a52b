// SPDX-License-Identifier: Apache-2.0
// What multiplies bfloat16 on this processor.
#pragma once

namespace strobe::cpu::bf16 {

enum class Unit {
  none,          // bfloat16 is computed as float32
  dot_products,  // AVX512-BF16: VDPBF16PS on vector registers
  tiles,         // AMX: matrix tiles
};

/// The faster of those that the processor has and this process may use: AMX, for which the operating system must save
/// tiles and Linux is asked for the permission, which then holds for the whole process; or AVX512-BF16, whose registers
/// are saved wherever the vector kernels use AVX-512. `none` elsewhere.
Unit processor_unit();

}  // namespace strobe::cpu::bf16
