// SPDX-License-Identifier: Apache-2.0
// Forward on 8-bit operands: what differs from 16- and 32-bit ones. The arithmetic is that of the tensor cores:
// products of elements, which float32 sums exactly where they are integers (at most 127 * 127 * 576 and 255 * 127 * 128
// are below 2^24); probabilities rounded to 8 bits relative to their row's largest of the block; float32 sums over
// blocks.
#if defined(STROBE_CPU_EIGHT_BIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_EIGHT_BIT_INL_H_
#undef STROBE_CPU_EIGHT_BIT_INL_H_
#else
#define STROBE_CPU_EIGHT_BIT_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "call/eight_bit.h"
#include "cpu/kernels/pack-inl.h"
#include "cpu/kernels/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// Base-2 exponents that even the largest scale of V does not bring within a row's reach.
inline constexpr float kFarAboveLog2 = 4096.0F;

/// Keys [key_begin, key_begin + count) of V, whose `rows` are its columns, into tiles as pack_tiles() does.
template <class T>
HWY_INLINE void pack_values_of(const ConstRows& rows, std::int64_t key_begin, std::int64_t count, std::int64_t columns,
                               std::int64_t padded_keys, PackedLayout layout, float* HWY_RESTRICT to) {
  for (std::int64_t c = 0; c < round_up(columns, kStrip); ++c) {
    const T* from = static_cast<const T*>(rows.data) + rows.offset(c);
    float* HWY_RESTRICT out = to + c / kStrip * layout.strip_stride + c % kStrip;
    for (std::int64_t key = 0; key < padded_keys; ++key) {
      const bool exists = c < columns && key < count;
      out[key / kStrip * layout.group_stride + key % kStrip * kStrip] =
          exists ? to_float(from[value_position(key_begin + key)]) : 0.0F;
    }
  }
}

/// The scales of keys [key_begin, key_begin + count), 1 for those of the padding, and what of V's the rows' references
/// hold: each key's, or the block's largest where they are close. A V scale that is not a number becomes K's, which
/// hidden keys do not show.
HWY_INLINE void load_key_scales(const EightBitOperands& operands, std::int64_t key_begin, std::int64_t count,
                                std::int64_t padded_keys, const ForwardScratch& scratch) {
  float largest = 0.0F;
  float least = kInfinity;
  bool numbers = true;
  for (std::int64_t key = 0; key < padded_keys; ++key) {
    const bool exists = key < count;
    const float value_scale = exists ? std::max(operands.v.at(key_begin + key), kSmallestScale) : 1.0F;
    const float key_scale = exists ? operands.k.at(key_begin + key) : 1.0F;
    const bool is_number = !std::isnan(key_scale) && !(exists && std::isnan(operands.v.at(key_begin + key)));
    scratch.key_scales[key] = is_number ? key_scale : std::numeric_limits<float>::quiet_NaN();
    scratch.value_scales[key] = is_number ? value_scale : 1.0F;
    numbers = numbers && is_number;
    if (!exists) continue;
    largest = std::max(largest, value_scale);
    least = std::min(least, value_scale);
  }
  const bool close = numbers && largest <= kCloseScales * least;
  for (std::int64_t key = 0; key < padded_keys; ++key) {
    scratch.reference_scales_log2[key] = std::log2(close ? largest : scratch.value_scales[key]);
  }
}

/// The scale, and the shift times `factor`, of rows [row, row + rows) for `lanes` lanes; the last repeats.
HWY_INLINE void load_query_scales(const EightBitOperands& operands, std::int64_t group, std::int64_t row,
                                  std::int64_t rows, std::int64_t lanes, float factor, float* scales, float* shifts) {
  for (std::int64_t i = 0; i < lanes; ++i) {
    const std::int64_t at = row + std::min(i, rows - 1);
    const auto [position, head] = row_place(at, group);
    scales[i] = operands.q.at(position, head);
    shifts[i] = operands.q_shift.data == nullptr ? 0.0F : factor * operands.q_shift.at(position, head);
  }
}

/// Products of elements -> products of what they stand for, over rows [first, last) of `vectors` vectors of the panel
/// at `lane`; with `shifted` those of the centred keys -> of the keys as they were.
HWY_INLINE void scale_scores(const ForwardScratch& scratch, std::int64_t lane, int vectors, std::int64_t first,
                             std::int64_t last, bool shifted) {
  const Floats d;
  for (int n = 0; n < vectors; ++n) {
    const Vec scale = hn::Load(d, scratch.query_scales + lane + n * kLanes);
    const Vec shift = shifted ? hn::Load(d, scratch.query_shifts + lane + n * kLanes) : hn::Zero(d);
    float* HWY_RESTRICT scores = scratch.scores + n * kLanes;
    for (std::int64_t key = first; key < last; ++key) {
      const Vec both = hn::Mul(scale, hn::Set(d, scratch.key_scales[key]));
      hn::Store(hn::MulAdd(hn::Load(d, scores + key * kPanel), both, shift), d, scores + key * kPanel);
    }
  }
}

/// To the nearest of the numbers that a probability, times its levels, can have as an operand; ties to even.
HWY_INLINE Vec round_probability(Vec p, bool integers) {
  const Floats d;
  if (integers) return hn::Round(p);
  const auto bits = hn::BitCast(Ints(), p);
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(Ints(), 1));
  const auto up = hn::Add(hn::Add(bits, hn::Set(Ints(), 0x7FFFF)), odd);
  const Vec normal = hn::BitCast(d, hn::And(up, hn::Set(Ints(), ~0xFFFFF)));
  const Vec subnormal = hn::Mul(hn::Round(hn::Mul(p, hn::Set(d, 0x1p9F))), hn::Set(d, 0x1p-9F));
  return hn::IfThenElse(hn::Lt(p, hn::Set(d, 0x1p-6F)), subnormal, normal);
}

/// P in place of one vector of scores, at `lane` of the panel that begins at `panel`, times the key's V scale and
/// rounded to 8 bits relative to the row's reference of these keys. `top` is the largest score: exponents count from
/// it. Updates statistics; what has been summed before is to be multiplied by scratch.rescale, this block's P V by
/// scratch.block_factor.
HWY_INLINE void exponentiate_to_8_bits(const ForwardScratch& scratch, DType element, std::int64_t panel,
                                       std::int64_t lane, std::int64_t first, std::int64_t last, Vec top, Vec factor) {
  const Floats d;
  const Vec hidden = hn::Set(d, -kInfinity);
  const Vec origin = hn::IfThenElse(hn::Eq(top, hidden), hn::Zero(d), top);
  float* HWY_RESTRICT scores = scratch.scores + lane;
  Vec own = hidden;
  for (std::int64_t key = first; key < last; ++key) {
    const Vec exponent = hn::Mul(hn::Sub(hn::Load(d, scores + key * kPanel), origin), factor);
    own = hn::Max(own, hn::Add(exponent, hn::Set(d, scratch.reference_scales_log2[key])));
    hn::Store(exponent, d, scores + key * kPanel);
  }
  float* HWY_RESTRICT row_max = scratch.row_max + panel + lane;
  float* HWY_RESTRICT row_offset = scratch.row_offset + panel + lane;
  float* HWY_RESTRICT row_sum = scratch.row_sum + panel + lane;
  const Vec old_units = hn::Load(d, row_max);
  const Vec old_offset = hn::Load(d, row_offset);
  // A reference so far above these keys leaves nothing of them; its rounding must leave nothing, either.
  const Vec old_max = hn::Min(hn::MulAdd(hn::Sub(old_units, origin), factor, old_offset), hn::Set(d, kFarAboveLog2));
  Vec new_max = hn::Max(old_max, own);
  if (element != DType::int8) {
    // e4m3's precision is relative: its reference is the row's, raised only where there is no room for larger numbers.
    const auto has_room = hn::Le(own, hn::Add(old_max, hn::Set(d, kProbabilityRoomLog2)));
    new_max = hn::IfThenElse(has_room, old_max, new_max);
    own = new_max;
  }
  const Vec largest = hn::IfThenElse(hn::Eq(own, hidden), hn::Zero(d), own);
  const Vec shift = hn::NegMulAdd(hn::Abs(largest), hn::Set(d, kReferenceRounding),
                                  hn::Sub(hn::Set(d, probability_levels_log2(element)), largest));
  Vec sum = hn::Zero(d);
  for (std::int64_t key = first; key < last; ++key) {
    const Vec p = exp2(hn::Add(hn::Load(d, scores + key * kPanel), shift));
    sum = hn::Add(sum, p);
    const Vec weight = hn::Mul(p, hn::Set(d, scratch.value_scales[key]));
    hn::Store(round_probability(weight, element == DType::int8), d, scores + key * kPanel);
  }
  const Vec reference = hn::IfThenElse(hn::Eq(new_max, hidden), hn::Zero(d), new_max);
  const Vec rescale = exp2(hn::Sub(old_max, reference));
  const Vec block_factor = hn::IfThenElse(hn::Eq(own, hidden), hn::Zero(d), exp2(hn::Neg(hn::Add(shift, reference))));
  hn::Store(rescale, d, scratch.rescale + lane);
  hn::Store(block_factor, d, scratch.block_factor + lane);
  const auto kept = hn::Eq(new_max, old_max);
  hn::Store(hn::IfThenElse(kept, old_units, origin), d, row_max);
  hn::Store(hn::IfThenElse(kept, old_offset, new_max), d, row_offset);
  hn::Store(hn::MulAdd(hn::Load(d, row_sum), rescale, hn::Mul(sum, block_factor)), d, row_sum);
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_EIGHT_BIT_INL_H_
