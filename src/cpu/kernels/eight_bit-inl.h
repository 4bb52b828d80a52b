// SPDX-License-Identifier: Apache-2.0
// Forward on 8-bit operands: what differs from 16- and 32-bit ones. The arithmetic is that of the tensor cores:
// products of elements, which float32 sums exactly where they are integers (at most 127 * 127 * 512 and 255 * 127 * 128
// are below 2^24); probabilities rounded to 8 bits relative to their row's largest of the block; float32 sums over
// blocks.
#if defined(STROBE_CPU_EIGHT_BIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_EIGHT_BIT_INL_H_
#undef STROBE_CPU_EIGHT_BIT_INL_H_
#else
#define STROBE_CPU_EIGHT_BIT_INL_H_
#endif

#include <cmath>

#include "call/eight_bit.h"
#include "cpu/kernels/pack-inl.h"
#include "cpu/kernels/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

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

/// The scales of keys [key_begin, key_begin + count), 1 for those of the padding. A V scale that is not a number spoils
/// its probability, so its inverse need not: hidden keys must leave no trace.
HWY_INLINE void load_key_scales(const EightBitOperands& operands, std::int64_t key_begin, std::int64_t count,
                                std::int64_t padded_keys, const ForwardScratch& scratch) {
  for (std::int64_t key = 0; key < padded_keys; ++key) {
    const bool exists = key < count;
    const float value_scale = exists ? operands.v.at(key_begin + key) : 1.0F;
    scratch.key_scales[key] = exists ? operands.k.at(key_begin + key) : 1.0F;
    scratch.value_scales_log2[key] = std::log2(value_scale);
    scratch.value_scale_inverses[key] = std::isnan(value_scale) ? 1.0F : 1.0F / value_scale;
  }
}

/// The scale, and the shift times `factor`, of rows [row, row + rows) for `lanes` lanes; the last repeats.
HWY_INLINE void load_query_scales(const EightBitOperands& operands, std::int64_t group, std::int64_t row,
                                  std::int64_t rows, std::int64_t lanes, float factor, float* scales, float* shifts) {
  for (std::int64_t i = 0; i < lanes; ++i) {
    const std::int64_t at = row + std::min(i, rows - 1);
    scales[i] = operands.q.at(at / group, at % group);
    shifts[i] = operands.q_shift.data == nullptr ? 0.0F : factor * operands.q_shift.at(at / group, at % group);
  }
}

/// Products of elements -> products of what they stand for, over rows [first, last) of a panel at `lane`; with
/// `shifted` those of the centred keys -> of the keys as they were.
HWY_INLINE void scale_scores(const ForwardScratch& scratch, std::int64_t lane, std::int64_t first, std::int64_t last,
                             bool shifted) {
  const Floats d;
  for (int n = 0; n < kTileVecs; ++n) {
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

/// P in place of one vector of scores, at `lane` of the panel that begins at `panel`, rounded to 8 bits: 2^(scale s +
/// log2 of the key's V scale), relative to the row's largest of these rows. Updates statistics; what has been summed
/// before is to be multiplied by scratch.rescale, this block's P V by scratch.block_factor.
HWY_INLINE void exponentiate_to_8_bits(const ForwardScratch& scratch, DType element, std::int64_t panel,
                                       std::int64_t lane, std::int64_t first, std::int64_t last, Vec scale) {
  const Floats d;
  const Vec hidden = hn::Set(d, -kInfinity);
  float* HWY_RESTRICT scores = scratch.scores + lane;
  Vec own = hidden;
  for (std::int64_t key = first; key < last; ++key) {
    const Vec s = hn::Load(d, scores + key * kPanel);
    const Vec exponent = hn::MulAdd(s, scale, hn::Set(d, scratch.value_scales_log2[key]));
    const Vec kept = hn::IfThenElse(hn::Eq(s, hidden), hidden, exponent);
    own = hn::Max(own, kept);
    hn::Store(kept, d, scores + key * kPanel);
  }
  const float levels = probability_levels(element);
  const Vec shift = hn::IfThenElse(hn::Eq(own, hidden), hn::Zero(d), own);
  const Vec raised = hn::Sub(hn::Set(d, std::log2(levels)), shift);
  Vec sum = hn::Zero(d);
  for (std::int64_t key = first; key < last; ++key) {
    const Vec p = exp2(hn::Add(hn::Load(d, scores + key * kPanel), raised));
    sum = hn::MulAdd(p, hn::Set(d, scratch.value_scale_inverses[key]), sum);
    hn::Store(round_probability(p, element == DType::int8), d, scores + key * kPanel);
  }
  float* HWY_RESTRICT row_max = scratch.row_max + panel + lane;
  float* HWY_RESTRICT row_sum = scratch.row_sum + panel + lane;
  const Vec old_max = hn::Load(d, row_max);
  const Vec new_max = hn::Max(old_max, own);
  const Vec reference = hn::IfThenElse(hn::Eq(new_max, hidden), hn::Zero(d), new_max);
  const Vec rescale = exp2(hn::Sub(old_max, reference));
  const Vec factor = hn::Mul(exp2(hn::Sub(own, reference)), hn::Set(d, 1.0F / levels));
  hn::Store(rescale, d, scratch.rescale + lane);
  hn::Store(factor, d, scratch.block_factor + lane);
  hn::Store(new_max, d, row_max);
  hn::Store(hn::MulAdd(hn::Load(d, row_sum), rescale, hn::Mul(sum, factor)), d, row_sum);
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_EIGHT_BIT_INL_H_
