// SPDX-License-Identifier: Apache-2.0
#include "rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/rows.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace strobe::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

/// Access to a whole vector of a row.
struct WholeVector {
  HWY_INLINE V load(const float* from) const { return hn::LoadU(D(), from); }
  HWY_INLINE void store(V v, float* to) const { hn::StoreU(v, D(), to); }
  HWY_INLINE V or_else(V v, V) const { return v; }
};

/// Access to the vector that the row's end cuts; the lanes beyond load zero and are not stored.
struct CutVector {
  hn::Mask<D> mask;
  HWY_INLINE V load(const float* from) const { return hn::MaskedLoad(mask, D(), from); }
  HWY_INLINE void store(V v, float* to) const { hn::BlendedStore(v, mask, D(), to); }
  HWY_INLINE V or_else(V v, V beyond) const { return hn::IfThenElse(mask, v, beyond); }
};

/// Calls op(index, access) for every vector of [0, length).
template <class Op>
HWY_INLINE void for_each_vector(std::int64_t length, Op op) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
  std::int64_t i = 0;
  for (; i + lanes <= length; i += lanes) op(i, WholeVector());
  if (i < length) op(i, CutVector{hn::FirstN(D(), static_cast<std::size_t>(length - i))});
}

V round_to_bfloat16(V v) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto carried = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF)));
  const V rounded = hn::BitCast(d, hn::And(carried, hn::Set(du, 0xFFFF0000)));
  return hn::IfThenElse(hn::IsNaN(v), v, rounded);
}

V round_to_float16(V v) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(D(), hn::DemoteTo(d16, v));
}

void round_row(DType dtype, float* row, std::int64_t length) {
  const auto apply = [&](auto round) HWY_ATTR {
    for_each_vector(length,
                    [&](std::int64_t i, auto access) HWY_ATTR { access.store(round(access.load(row + i)), row + i); });
  };
  if (dtype == DType::bfloat16) apply([](V v) HWY_ATTR { return round_to_bfloat16(v); });
  if (dtype == DType::float16) apply([](V v) HWY_ATTR { return round_to_float16(v); });
}

void softcap_row(float softcap, float* row, std::int64_t length) {
  const D d;
  const V cap = hn::Set(d, softcap);
  for_each_vector(length, [&](std::int64_t i, auto access) HWY_ATTR {
    const V ratio = hn::Div(access.load(row + i), cap);
    access.store(hn::Mul(cap, hn::Tanh(d, ratio)), row + i);
  });
}

float softmax_row(const float* s, KeyRange visible, float* p, std::int64_t length) {
  const D d;
  std::fill(p, p + visible.begin, 0.0F);
  std::fill(p + visible.end, p + length, 0.0F);
  const std::int64_t keys = visible.end - visible.begin;
  if (keys == 0) return -std::numeric_limits<float>::infinity();
  const float* const scores = s + visible.begin;
  float* const result = p + visible.begin;

  const V lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  V max = lowest;
  for_each_vector(keys, [&](std::int64_t i, auto access)
                            HWY_ATTR { max = hn::Max(max, access.or_else(access.load(scores + i), lowest)); });
  const float row_max = hn::GetLane(hn::MaxOfLanes(d, max));

  V sum = hn::Zero(d);
  for_each_vector(keys, [&](std::int64_t i, auto access) HWY_ATTR {
    const V e = hn::Exp(d, hn::Sub(access.load(scores + i), hn::Set(d, row_max)));
    sum = hn::Add(sum, access.or_else(e, hn::Zero(d)));
    access.store(e, result + i);
  });
  const float row_sum = hn::GetLane(hn::SumOfLanes(d, sum));

  const V inverse = hn::Set(d, 1.0F / row_sum);
  for_each_vector(keys, [&](std::int64_t i, auto access)
                            HWY_ATTR { access.store(hn::Mul(access.load(result + i), inverse), result + i); });
  return row_max + std::log(row_sum);
}

void probability_row(const float* s, float lse, KeyRange visible, float* p, std::int64_t length) {
  const D d;
  std::fill(p, p + visible.begin, 0.0F);
  std::fill(p + visible.end, p + length, 0.0F);
  for_each_vector(visible.end - visible.begin, [&](std::int64_t i, auto access) HWY_ATTR {
    const V score = access.load(s + visible.begin + i);
    access.store(hn::Exp(d, hn::Sub(score, hn::Set(d, lse))), p + visible.begin + i);
  });
}

void softmax_gradient_row(const float* p, const float* dp, float delta, float* ds, std::int64_t length) {
  const D d;
  for_each_vector(length, [&](std::int64_t i, auto access) HWY_ATTR {
    const V difference = hn::Sub(access.load(dp + i), hn::Set(d, delta));
    access.store(hn::Mul(access.load(p + i), difference), ds + i);
  });
}

void softcap_gradient_row(float softcap, const float* s, float* ds, std::int64_t length) {
  const D d;
  const V cap = hn::Set(d, softcap);
  for_each_vector(length, [&](std::int64_t i, auto access) HWY_ATTR {
    const V ratio = hn::Div(access.load(s + i), cap);
    const V slope = hn::NegMulAdd(ratio, ratio, hn::Set(d, 1.0F));
    access.store(hn::Mul(access.load(ds + i), slope), ds + i);
  });
}

}  // namespace strobe::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strobe::bench {

HWY_EXPORT(round_row);
HWY_EXPORT(softcap_row);
HWY_EXPORT(softmax_row);
HWY_EXPORT(probability_row);
HWY_EXPORT(softmax_gradient_row);
HWY_EXPORT(softcap_gradient_row);

void round_row(DType dtype, float* row, std::int64_t length) { HWY_DYNAMIC_DISPATCH(round_row)(dtype, row, length); }

void softcap_row(float softcap, float* row, std::int64_t length) {
  HWY_DYNAMIC_DISPATCH(softcap_row)(softcap, row, length);
}

float softmax_row(const float* s, KeyRange visible, float* p, std::int64_t length) {
  return HWY_DYNAMIC_DISPATCH(softmax_row)(s, visible, p, length);
}

void probability_row(const float* s, float lse, KeyRange visible, float* p, std::int64_t length) {
  HWY_DYNAMIC_DISPATCH(probability_row)(s, lse, visible, p, length);
}

void softmax_gradient_row(const float* p, const float* dp, float delta, float* ds, std::int64_t length) {
  HWY_DYNAMIC_DISPATCH(softmax_gradient_row)(p, dp, delta, ds, length);
}

void softcap_gradient_row(float softcap, const float* s, float* ds, std::int64_t length) {
  HWY_DYNAMIC_DISPATCH(softcap_gradient_row)(softcap, s, ds, length);
}

}  // namespace strobe::bench
#endif  // HWY_ONCE
