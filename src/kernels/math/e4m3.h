// SPDX-License-Identifier: Apache-2.0
// e4m3 without an instruction for it, which GPUs have from compute capability 8.9 on.
#pragma once

namespace strobe {

#ifdef __CUDACC_RTC__

/// Rounded to nearest even and limited to +-448, NaN staying NaN, as to_float8_e4m3() of strobe/float8.h.
__device__ __forceinline__ unsigned to_e4m3(float x) {
  const unsigned bits = __float_as_uint(x);
  const unsigned sign = (bits >> 24) & 0x80U;
  const unsigned magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return sign | 0x7fU;
  if (magnitude >= 0x43e00000U) return sign | 0x7eU;  // 448 and more
  if (magnitude < 0x3c800000U) {  // below 2^-6: 2^14 more leaves multiples of 2^-9 in the low bits, rounded
    return sign | (__float_as_uint(__fadd_rn(__uint_as_float(magnitude), 0x1p14F)) - __float_as_uint(0x1p14F));
  }
  const unsigned rebiased = magnitude - ((127U - 7U) << 23);
  return sign | (rebiased + 0x7ffffU + ((rebiased >> 20) & 1U)) >> 20;
}

#endif

}  // namespace strobe
