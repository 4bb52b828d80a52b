// SPDX-License-Identifier: Apache-2.0
// What happens to a panel of scores between the two products: softcap and masking. Keys along the rows, queries
// (forward) or keys (backward) across the lanes.
#if defined(STROBE_CPU_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_SCORES_INL_H_
#undef STROBE_CPU_SCORES_INL_H_
#else
#define STROBE_CPU_SCORES_INL_H_
#endif

#include <algorithm>

#include "call/score_rule.h"
#include "cpu/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// An interval of rows [begin, end) per lane.
class LaneInterval {
 public:
  /// Bounds are counted from `origin`.
  LaneInterval(const std::int64_t* begin, const std::int64_t* end, std::int64_t origin)
      : begin_(bounds(begin, origin)), end_(bounds(end, origin)) {}

  HWY_INLINE hn::Mask<Floats> contains(std::int64_t row) const {
    const Vec at = hn::Set(Floats(), static_cast<float>(row));
    const Vec begin = begin_;
    const Vec end = end_;
    return hn::And(hn::Ge(at, begin), hn::Lt(at, end));
  }

 private:
  /// Clamped to what float32 holds exactly: tiles are far smaller.
  static HWY_INLINE Vec bounds(const std::int64_t* rows, std::int64_t origin) {
    HWY_ALIGN float counted[kLanes];
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      counted[lane] = static_cast<float>(std::clamp<std::int64_t>(rows[lane] - origin, -1, 1 << 20));
    }
    return hn::Load(Floats(), counted);
  }

  FixedVec begin_;
  FixedVec end_;
};

/// s -> tanh(softcap_scale * s) over rows [first, last) of kWidth lanes; all of them, for what lanes without a row hold
/// is never read.
template <std::int64_t kWidth = kPanel>
HWY_INLINE void cap_scores(float* HWY_RESTRICT scores, std::int64_t first, std::int64_t last, float softcap_scale) {
  const Floats d;
  const Vec scale = hn::Set(d, softcap_scale);
  for (std::int64_t i = first * kWidth; i < last * kWidth; i += kLanes) {
    hn::Store(tanh(hn::Mul(scale, hn::Load(d, scores + i))), d, scores + i);
  }
}

/// Scores of hidden keys -> -inf over rows [first, last) of `vectors` vectors. Keys that every lane sees, from the last
/// lane's first to the first lane's last, are left alone.
HWY_INLINE void hide_scores(float* HWY_RESTRICT scores, int vectors, std::int64_t first, std::int64_t last,
                            const std::int64_t* begin, const std::int64_t* end, std::int64_t origin) {
  const Floats d;
  const std::int64_t all_from = std::clamp(begin[vectors * kLanes - 1] - origin, first, last);
  const std::int64_t all_to = std::clamp(end[0] - origin, all_from, last);
  for (int n = 0; n < vectors; ++n) {
    const LaneInterval visible(begin + n * kLanes, end + n * kLanes, origin);
    const auto hide = [&](std::int64_t row) {
      float* HWY_RESTRICT at = scores + row * kPanel + n * kLanes;
      hn::Store(hn::IfThenElse(visible.contains(row), hn::Load(d, at), hn::Set(d, -kInfinity)), d, at);
    };
    for (std::int64_t row = first; row < all_from; ++row) hide(row);
    for (std::int64_t row = all_to; row < last; ++row) hide(row);
  }
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_SCORES_INL_H_
