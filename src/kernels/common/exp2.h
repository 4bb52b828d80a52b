// 2^x without the special-function unit.
#pragma once

namespace strobe::hopper {

/// 2^x for x <= 127, relative error under 3e-6, on the FMA pipes; below -126 it stays at 2^-126.
/// The special-function unit makes 16 exponentials per clock and multiprocessor, which at head_dim 64 is as slow as the
/// tensor cores: the FMA pipes have time to spare for some of them.
__device__ __forceinline__ float exp2_polynomial(float x) {
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits
  x = fmaxf(x, -126.0F);
  const float rounded = x + kRounder;
  const float f = x - (rounded - kRounder);  // in [-1/2, 1/2]
  // Minimax polynomial of degree 4 for the relative error of 2^f.
  float p = 0.009570159F;
  p = __fmaf_rn(p, f, 0.05591783F);
  p = __fmaf_rn(p, f, 0.24024743F);
  p = __fmaf_rn(p, f, 0.6931218F);
  p = __fmaf_rn(p, f, 0.9999993F);
  return __int_as_float(__float_as_int(p) + (__float_as_int(rounded) << 23));
}

}  // namespace strobe::hopper
