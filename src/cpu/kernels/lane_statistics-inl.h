// SPDX-License-Identifier: Apache-2.0
// An online softmax without values.
#if defined(STROBE_CPU_LANE_STATISTICS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_LANE_STATISTICS_INL_H_
#undef STROBE_CPU_LANE_STATISTICS_INL_H_
#else
#define STROBE_CPU_LANE_STATISTICS_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "cpu/kernels/row_statistics.h"
#include "cpu/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// Maximum and sum of exponentials of a stream of scores, each lane for itself.
class LaneStatistics {
 public:
  LaneStatistics() : top_(hn::Set(Floats(), -kInfinity)), sum_(hn::Zero(Floats())) {}

  HWY_INLINE void add(Vec score) {
    const Floats d;
    const Vec hidden = hn::Set(d, -kInfinity);
    const Vec top = hn::Max(top_, score);
    const Vec shift = hn::IfThenElse(hn::Eq(top, hidden), hn::Zero(d), top);
    const Vec log2_e = hn::Set(d, kLog2E);
    const Vec rescale = exp2(hn::Mul(hn::Sub(top_, shift), log2_e));
    sum_ = hn::MulAdd(sum_, rescale, exp2(hn::Mul(hn::Sub(score, shift), log2_e)));
    top_ = top;
  }

  RowStatistics lane(std::int64_t index) const {
    HWY_ALIGN float top[kLanes];
    HWY_ALIGN float sum[kLanes];
    hn::Store(top_, Floats(), top);
    hn::Store(sum_, Floats(), sum);
    return {top[index], sum[index]};
  }

  /// Of all lanes.
  RowStatistics row() const {
    RowStatistics all;
    for (std::int64_t i = 0; i < kLanes; ++i) all.max = std::max(all.max, lane(i).max);
    double sum = 0.0;
    for (std::int64_t i = 0; i < kLanes; ++i) {
      const RowStatistics own = lane(i);
      if (own.max != -kInfinity) sum += own.sum * std::exp(own.max - all.max);
    }
    all.sum = static_cast<float>(sum);
    return all;
  }

 private:
  FixedVec top_;
  FixedVec sum_;
};

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_LANE_STATISTICS_INL_H_
