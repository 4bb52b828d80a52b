// SPDX-License-Identifier: Apache-2.0
// What 8-bit inputs look like to every engine: units of scales, the order of V's keys, and the rotation.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "call/arithmetic.h"
#include "kernels/math/eight_bit.h"
#include "strobe/quantize.h"

namespace strobe {

constexpr bool is_eight_bit(DType dtype) { return dtype == DType::int8 || dtype == DType::float8_e4m3; }

/// The largest magnitude of a quantised element.
constexpr float largest_element(DType dtype) { return dtype == DType::int8 ? kLargestInt8 : kLargestFloat8; }

/// What a probability of 1 is rounded as, and its logarithm.
constexpr float probability_levels(DType dtype) { return dtype == DType::int8 ? kInt8Levels : kFloat8Levels; }
constexpr float probability_levels_log2(DType dtype) {
  return dtype == DType::int8 ? kInt8LevelsLog2 : kFloat8LevelsLog2;
}

/// Rows that share a scale, of `seqlen`; at least 1.
constexpr std::int64_t rows_per_scale(ScaleUnit unit, std::int64_t seqlen) {
  switch (unit) {
    case ScaleUnit::tensor:
    case ScaleUnit::head: return seqlen > 1 ? seqlen : 1;
    case ScaleUnit::block: return kBlockRows;
    case ScaleUnit::group: return kGroupRows;
    case ScaleUnit::row: return 1;
  }
  return 1;
}

/// One side of a quantisation, queries or keys: a batched tensor [batch, seqlen, heads, columns], or a packed one
/// [total, heads, columns].
struct QuantizedSide {
  QuantizedSide(const ConstTensorView& rows, const ConstTensorView& cu_seqlens, std::int64_t max_seqlen)
      : packed(cu_seqlens.given()),
        batch(packed ? cu_seqlens.shape[0] - 1 : rows.shape[0]),
        total(packed ? rows.shape[0] : batch * rows.shape[1]),
        seqlen(!packed                                ? rows.shape[1]
               : max_seqlen < 0 || max_seqlen > total ? total
                                                      : max_seqlen),
        heads(rows.shape[packed ? 1 : 2]),
        columns(rows.shape[packed ? 2 : 3]) {}

  bool packed;
  std::int64_t batch;
  std::int64_t total;   // rows
  std::int64_t seqlen;  // of every sequence; packed: the bound on the longest
  std::int64_t heads;
  std::int64_t columns;

  /// Columns of a V of these keys: of one batch entry, or of all sequences.
  std::int64_t value_columns() const {
    return packed ? packed_value_start(total, batch) : round_up(seqlen, kValueKeys);
  }
};

inline QuantizedSide queries_of(const QuantizeArguments& a) {
  return {a.q, a.sequences.cu_seqlens_q, a.sequences.max_seqlen_q};
}
inline QuantizedSide keys_of(const QuantizeArguments& a) {
  return {a.k, a.sequences.cu_seqlens_k, a.sequences.max_seqlen_k};
}

/// 64 columns' signs, a bit each: 1 is negative. SplitMix64 of the seed and the columns' number.
/// Source: Steele et al., "Fast splittable pseudorandom number generators" (2014).
constexpr std::uint64_t rotation_signs(std::uint64_t seed, std::int64_t first_column) {
  std::uint64_t z = seed + 0x9E3779B97F4A7C15U * (static_cast<std::uint64_t>(first_column / 64) + 1);
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

/// 1 / sqrt(size) of a power of two.
template <class T>
T hadamard_factor_of(std::int64_t size) {
  if constexpr (std::is_same_v<T, float>) return hadamard_factor(static_cast<int>(size));
  return T(1) / std::sqrt(static_cast<T>(size));
}

/// x times the orthonormal Hadamard matrices of the powers of two that `count` is the sum of, the largest first. The
/// transform is its own inverse.
template <class T>
void hadamard_transform(T* x, std::int64_t count) {
  while (count > 0) {
    const auto size = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(count)));
    for (std::int64_t half = 1; half < size; half *= 2) {
      for (std::int64_t i = 0; i < size; i += 2 * half) {
        for (std::int64_t j = i; j < i + half; ++j) {
          const T sum = x[j] + x[j + half];
          x[j + half] = x[j] - x[j + half];
          x[j] = sum;
        }
      }
    }
    const T factor = hadamard_factor_of<T>(size);
    for (std::int64_t i = 0; i < size; ++i) x[i] *= factor;
    x += size;
    count -= size;
  }
}

template <class T>
void flip_signs(std::uint64_t seed, T* x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if ((rotation_signs(seed, i) >> (i % 64) & 1U) != 0) x[i] = -x[i];
  }
}

template <class T>
void rotate(std::uint64_t seed, T* row, std::int64_t count) {
  flip_signs(seed, row, count);
  hadamard_transform(row, count);
}

template <class T>
void rotate_back(std::uint64_t seed, T* row, std::int64_t count) {
  hadamard_transform(row, count);
  flip_signs(seed, row, count);
}

}  // namespace strobe
