// SPDX-License-Identifier: Apache-2.0
// Numbers that results of 8-bit operands depend on. Plain constexpr C++ without std headers: every engine, the
// reference and the kernels include it.
#pragma once

namespace strobe {

// The largest magnitude of an int8 element, so that its negative is one, too. Of e4m3: strobe/float8.h.
inline constexpr float kLargestInt8 = 127.0F;

// Rows that share a scale; the last number is also that of keys of V that are permuted among themselves.
inline constexpr int kBlockRows = 128;
inline constexpr int kGroupRows = 32;
inline constexpr int kValueKeys = 32;

/// Where a key's column lies in V: see strobe/quantize.h.
template <class Int>
constexpr Int value_position(Int key) {
  return (key & ~Int{15}) | (key & 6) << 1 | (key & 8) >> 2 | (key & 1);
}

/// The first column of a packed V that belongs to a sequence whose first key is `first_key`: see strobe/quantize.h. Of
/// the batch's end and its number of sequences it is where the columns end that belong to any.
template <class Key, class Sequence>
constexpr long long packed_value_start(Key first_key, Sequence sequence) {
  return static_cast<long long>(first_key / kValueKeys + sequence) * kValueKeys;
}

// The order of the sums of a quantisation, which every engine follows, so that all give the same bits: sums of rows,
// and of blocks of them, are kept in as many phases, of every kMeanPhases-th term, and the phases added in order.
inline constexpr int kMeanRows = 128;  // of K that are summed before the result joins the others
inline constexpr int kMeanPhases = 8;
// A product of a query and the mean: as many columns in four interleaved sums, which are added two by two.
inline constexpr int kShiftColumns = 64;
inline constexpr int kShiftPhases = 4;

/// 1 / sqrt(size), rounded as float32 arithmetic rounds it; size is a power of two.
constexpr float hadamard_factor(int size) {
  constexpr float kRootOfTwo = 0x1.6a09e6p+0F;
  float root = 1.0F;
  for (; size >= 4; size /= 4) root *= 2.0F;
  return 1.0F / (size == 2 ? root * kRootOfTwo : root);
}

// What a probability of 1 is rounded as: 8 unsigned bits, or 16 in e4m3, so that it may grow to 448 before the row's
// reference is raised. And their logarithms.
inline constexpr float kInt8Levels = 255.0F;
inline constexpr float kInt8LevelsLog2 = 7.99435343685886F;
inline constexpr float kFloat8Levels = 16.0F;
inline constexpr float kFloat8LevelsLog2 = 4.0F;

// Keys whose probabilities are rounded to integers relative to their largest, and summed before the result joins O:
// every engine's tiles have as many. And those whose P V in e4m3 the tensor cores sum before it does.
inline constexpr int kProbabilityKeys = 128;
inline constexpr int kFloat8SumKeys = 2048;

// Integers must not be rounded above the levels: by this much of its reference an exponent is less than it should be,
// since it is off by its own rounding, and the reference by two.
inline constexpr float kReferenceRounding = 0x1p-21F;

// log2 of how much larger than its reference a probability in e4m3 may become: 448 / 16, less than that.
inline constexpr float kProbabilityRoomLog2 = 4.8F;

// V's scales of such keys that are no further apart than this factor have one reference, the largest: it may be two
// bits too high, and needs the scores' maximum alone.
inline constexpr float kCloseScales = 4.0F;

// Below it a scale is not worth telling from zero, and its inverse times any probability is still finite.
inline constexpr float kSmallestScale = 0x1p-80F;

}  // namespace strobe
