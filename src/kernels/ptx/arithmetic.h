// SPDX-License-Identifier: Apache-2.0
// Arithmetic instructions of every GPU since sm_80 that cuda::ptx lacks, one per function, under their PTX names.
#pragma once

#include <cuda/std/cstdint>

namespace strobe::ptx {

using cuda::std::uint32_t;

__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float lg2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// The smaller of two numbers; NaN where one of them is.
__device__ __forceinline__ float min_nan(float x, float y) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;\n" : "=f"(least) : "f"(x), "f"(y));
  return least;
}

/// The larger of two numbers; NaN where one of them is.
__device__ __forceinline__ float max_nan(float x, float y) {
  float largest;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(largest) : "f"(x), "f"(y));
  return largest;
}

__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ uint32_t add_f16x2(uint32_t a, uint32_t b) {
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;\n" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}

/// Rounds two floats to bfloat16, to nearest even; `low` is in the low half.
__device__ __forceinline__ uint32_t cvt_bf16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// Rounds two floats to float16, to nearest even; `low` is in the low half.
__device__ __forceinline__ uint32_t cvt_f16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// Rounds four floats to e4m3, to nearest even and saturated; `a` is in the lowest byte.
__device__ __forceinline__ uint32_t cvt_e4m3x4(float a, float b, float c, float d) {
  uint32_t packed;
  asm("{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3; "
      "mov.b32 %0, {low, high}; }\n"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

/// Loads a float from memory that nothing writes while the kernel runs, where the call stands: the compiler would
/// rather load it after the waits that its latency is to pass under.
__device__ __forceinline__ float ld_global_nc(const float* from) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];\n" : "=f"(value) : "l"(from));
  return value;
}

/// Two e4m3 numbers, the first in the lowest byte, as float16, which holds them exactly.
__device__ __forceinline__ uint32_t cvt_f16x2_from_e4m3x2(uint32_t packed) {
  uint32_t both;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low; }\n" : "=r"(both) : "r"(packed));
  return both;
}

/// The same of the two in the high half.
__device__ __forceinline__ uint32_t cvt_f16x2_from_high_e4m3x2(uint32_t packed) {
  uint32_t both;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high; }\n" : "=r"(both) : "r"(packed));
  return both;
}

/// Ones in each half where a is less than b.
__device__ __forceinline__ uint32_t set_lt_f16x2(uint32_t a, uint32_t b) {
  uint32_t mask;
  asm("set.lt.u32.f16x2 %0, %1, %2;\n" : "=r"(mask) : "r"(a), "r"(b));
  return mask;
}

/// Sets bit i where the condition holds, by a guarded instruction: selected bits of several words that are made side by
/// side ptxas 12.9 and 13.0 pack from predicates (P2R), and take some of them from another of the words.
__device__ __forceinline__ void set_bit(uint32_t& bits, int i, bool condition) {
  asm("{ .reg .pred holds; setp.ne.u32 holds, %1, 0; @holds or.b32 %0, %0, %2; }\n"
      : "+r"(bits)
      : "r"(condition ? 1U : 0U), "r"(1U << i));
}

/// What the lane of that quad has that stands where this one stands in its own: lane 4 quad + lane % 4.
__device__ __forceinline__ float shfl_quad(float x, int quad) {
  float y;
  // The clamp's upper byte: bits of the lane that are its own.
  asm("shfl.sync.idx.b32 %0, %1, %2, 0x31f, 0xffffffff;\n" : "=f"(y) : "f"(x), "r"(4 * quad));
  return y;
}

/// The two float16 numbers in a register as floats, low first.
__device__ __forceinline__ float2 cvt_f32x2_from_f16x2(uint32_t packed) {
  float2 both;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(both.x), "=f"(both.y)
      : "r"(packed));
  return both;
}

}  // namespace strobe::ptx
