// SPDX-License-Identifier: Apache-2.0
// What the code of a text calls for one pair of a query and a key: a function for each operation, with a value for all
// operands (src/expression/graph.h has the rules), and reads of captures that never leave the tensor.
#pragma once

#include "kernels/expression/captures.h"
#include "kernels/expression/range.h"
#include "kernels/math/constants.h"
#include "kernels/math/element.h"
#include "kernels/ptx/arithmetic.h"

namespace strobe::expression {

/// A query and a key: positions in their sequence, the query head and the key head that it reads, the sequence, and how
/// many queries and keys that has. `distance`: k - q as a real, which functions with kept values read: it goes from
/// pair to pair by one addition, exact below 2^24.
struct Position {
  int q, k, head, head_kv, batch, q_len, k_len;
  float distance = 0.0F;
};

/// What the indices of a read depend on (src/expression/formula.h).
enum class Pattern : unsigned char { none, head, query, key, diagonal, pair, scattered };

/// A block of queries and a block of keys.
struct TileRanges {
  Range q, k, head, head_kv, batch, q_len, k_len;
};

__device__ __forceinline__ int wrapped(unsigned x) { return static_cast<int>(x); }

__device__ __forceinline__ int to_integer(float x) { return __float2int_rz(x); }  // saturates; of NaN 0
__device__ __forceinline__ int to_integer(bool x) { return x ? 1 : 0; }
__device__ __forceinline__ float to_real(int x) { return static_cast<float>(x); }
__device__ __forceinline__ float to_real(bool x) { return x ? 1.0F : 0.0F; }

__device__ __forceinline__ int negate(int x) { return wrapped(0U - static_cast<unsigned>(x)); }
__device__ __forceinline__ float negate(float x) { return -x; }
__device__ __forceinline__ int add(int x, int y) {
  return wrapped(static_cast<unsigned>(x) + static_cast<unsigned>(y));
}
__device__ __forceinline__ float add(float x, float y) { return x + y; }
__device__ __forceinline__ int multiply(int x, int y) {
  return wrapped(static_cast<unsigned>(x) * static_cast<unsigned>(y));
}
__device__ __forceinline__ float multiply(float x, float y) { return x * y; }
__device__ __forceinline__ float divide(float x, float y) { return x / y; }

__device__ __forceinline__ int floor_divide(int x, int y) {
  if (y == 0 || y == -1) {  // the least integer has no negative
    return y == 0 ? 0 : negate(x);
  }
  const int quotient = x / y;
  return x - quotient * y != 0 && (x < 0) != (y < 0) ? quotient - 1 : quotient;
}
__device__ __forceinline__ int remainder(int x, int y) {
  if (y == 0 || y == -1) {
    return 0;
  }
  const int rest = x % y;  // of the sign of x
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

__device__ __forceinline__ int minimum(int x, int y) { return y < x ? y : x; }
__device__ __forceinline__ float minimum(float x, float y) { return y < x ? y : x; }
__device__ __forceinline__ int maximum(int x, int y) { return x < y ? y : x; }
__device__ __forceinline__ float maximum(float x, float y) { return x < y ? y : x; }
__device__ __forceinline__ int absolute(int x) { return x < 0 ? negate(x) : x; }
__device__ __forceinline__ float absolute(float x) { return fabsf(x); }

__device__ __forceinline__ float exp_of(float x) { return expf(x); }
__device__ __forceinline__ float exp2_of(float x) { return exp2f(x); }
__device__ __forceinline__ float log_of(float x) { return logf(x); }
__device__ __forceinline__ float tanh_of(float x) { return tanhf(x); }
/// 1 / (1 + exp(-x)) within 4 units in the last place: exp(-x) as a power of two whose exponent is in two parts.
__device__ __forceinline__ float sigmoid_of(float x) {
  constexpr float kLog2ELow = 1.92596299e-8F;  // log2(e) less kLog2E
  constexpr float kMost = 126.0F * kLn2;       // of less than its negative it is below normal numbers, of more 1
  x = ptx::min_nan(ptx::max_nan(x, -kMost), kMost);
  const float exponent = __fmul_rn(x, -kLog2E);
  const float rest = __fmaf_rn(x, -kLog2ELow, __fmaf_rn(x, -kLog2E, -exponent));
  const float power = ptx::ex2_approx(exponent);
  return ptx::rcp_approx(1.0F + __fmaf_rn(power, rest * kLn2, power));
}
__device__ __forceinline__ float sqrt_of(float x) { return sqrtf(x); }
__device__ __forceinline__ float rsqrt_of(float x) { return rsqrtf(x); }
__device__ __forceinline__ float sin_of(float x) { return sinf(x); }
__device__ __forceinline__ float cos_of(float x) { return cosf(x); }
__device__ __forceinline__ float floor_of(float x) { return floorf(x); }

template <typename T>
__device__ __forceinline__ bool less(T x, T y) {
  return x < y;
}
template <typename T>
__device__ __forceinline__ bool less_equal(T x, T y) {
  return x <= y;
}
template <typename T>
__device__ __forceinline__ bool equal(T x, T y) {
  return x == y;
}
__device__ __forceinline__ bool logical_and(bool x, bool y) { return x && y; }
__device__ __forceinline__ bool logical_or(bool x, bool y) { return x || y; }
__device__ __forceinline__ bool logical_not(bool x) { return !x; }
template <typename T>
__device__ __forceinline__ T select(bool condition, T yes, T no) {
  return condition ? yes : no;
}

// Values that kernels keep are words.
__device__ __forceinline__ unsigned word_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ unsigned word_of(int x) { return static_cast<unsigned>(x); }
__device__ __forceinline__ unsigned word_of(bool x) { return x ? 1U : 0U; }
__device__ __forceinline__ float real_of(unsigned word) { return __uint_as_float(word); }
__device__ __forceinline__ int integer_of(unsigned word) { return wrapped(word); }
__device__ __forceinline__ bool boolean_of(unsigned word) { return word != 0; }

/// An element of a capture: whether there is one at the indices, and where, in elements.
struct Place {
  bool inside;
  long long index;
};

template <typename... Indices>
__device__ __forceinline__ Place place_of(const Captures& captures, int capture, Indices... indices) {
  const CaptureView& view = captures.of[capture];
  Place place{true, 0};
  int axis = 0;
  const auto add_one = [&](int i) {
    place.inside = place.inside && static_cast<unsigned>(i) < static_cast<unsigned>(view.shape[axis]);
    place.index += i * view.strides[axis];
    ++axis;
  };
  (add_one(indices), ...);
  return place;
}

/// The bits of an element; 0 outside.
template <typename T, typename... Indices>
__device__ __forceinline__ T bits_at(const Captures& captures, int capture, Indices... indices) {
  const Place place = place_of(captures, capture, indices...);
  return place.inside ? __ldg(static_cast<const T*>(captures.of[capture].data) + place.index) : T(0);
}

template <Stored stored, typename... Indices>
__device__ __forceinline__ float load_float(const Captures& captures, int capture, Indices... indices) {
  if constexpr (stored == Stored::float32) {
    return bits_at<float>(captures, capture, indices...);
  } else {
    constexpr Element kElement = stored == Stored::float16 ? Element::fp16 : Element::bf16;
    return to_float<kElement>(bits_at<unsigned short>(captures, capture, indices...));
  }
}

/// Of 64 bits the nearest that 32 hold.
template <Stored stored, typename... Indices>
__device__ __forceinline__ int load_int(const Captures& captures, int capture, Indices... indices) {
  if constexpr (stored == Stored::int32) {
    return bits_at<int>(captures, capture, indices...);
  } else {
    const long long wide = bits_at<long long>(captures, capture, indices...);
    return static_cast<int>(most(least(wide, any_integer().high), any_integer().low));
  }
}

template <Stored stored, typename... Indices>
__device__ __forceinline__ bool load_bool(const Captures& captures, int capture, Indices... indices) {
  return bits_at<unsigned char>(captures, capture, indices...) != 0;
}

/// At most so many elements of a capture are looked at for one tile.
constexpr long long kMostLookedAt = 128 * 128;

/// The least and the largest of what `load(indices...)` gives where each index is in its range, by a whole warp;
/// `unknown` where these are too many.
template <typename Load, typename... Ranges>
__device__ __forceinline__ Range range_of_loads(Range unknown, const Load& load, const Ranges&... ranges) {
  long long count = 1;
  const auto times = [&](const Range& range) {
    const long long width = range.high - range.low + 1;
    count = width > kMostLookedAt || count * width > kMostLookedAt ? kMostLookedAt + 1 : count * width;
  };
  (times(ranges), ...);
  if (count > kMostLookedAt) {
    return unknown;
  }
  int low = 0x7fffffff;
  int high = -low - 1;
  for (int i = threadIdx.x % 32; i < count; i += 32) {
    int rest = i;
    const auto index_in = [&](const Range& range) {
      const int width = static_cast<int>(range.high - range.low + 1);
      const int index = static_cast<int>(range.low) + rest % width;
      rest /= width;
      return index;
    };
    const int value = load(index_in(ranges)...);
    low = min(low, value);
    high = max(high, value);
  }
  constexpr unsigned kAll = 0xffffffffU;
  return {__reduce_min_sync(kAll, low), __reduce_max_sync(kAll, high)};
}

/// What a capture may hold over a tile: asked by whole warps.
template <Stored stored, typename... Ranges>
__device__ __forceinline__ Range range_of_int(const Captures& captures, int capture, const Ranges&... ranges) {
  const auto load = [&](auto... indices) { return load_int<stored>(captures, capture, indices...); };
  return range_of_loads(any_integer(), load, ranges...);
}
template <Stored stored, typename... Ranges>
__device__ __forceinline__ Range range_of_bool(const Captures& captures, int capture, const Ranges&... ranges) {
  const auto load = [&](auto... indices) { return load_bool<stored>(captures, capture, indices...) ? 1 : 0; };
  return range_of_loads(any_boolean(), load, ranges...);
}

}  // namespace strobe::expression
