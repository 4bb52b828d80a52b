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
#include <cstdint>
#include <limits>

#include "call/score_rule.h"
#include "cpu/kernels/task.h"
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
    const auto inside = hn::And(hn::Ge(at, begin), hn::Lt(at, end));
    return row < tree_begin_ ? inside : hn::And(inside, tree_shows(row - tree_begin_));
  }

  /// Takes out what a tree mask hides from the lanes, which are query rows from `row` on; those past the last row
  /// repeat it. The interval's rows are keys, counted from `origin`.
  void cut(const TreeMask& tree, std::int64_t row, std::int64_t group, std::int64_t origin) {
    if (!tree.given()) return;
    tree_begin_ = tree.begin - origin;
    for_each_lane(row, group, [&](std::int64_t lane, std::int64_t position, std::int64_t) {
      const std::uint64_t word = tree.word(std::min(position, tree.queries - 1));
      tree_low_[lane] = static_cast<std::uint32_t>(word);
      tree_high_[lane] = static_cast<std::uint32_t>(word >> 32U);
    });
  }

 private:
  /// Which lanes' words have a bit. Keys past the sequence's last, of which tiles have some, are hidden anyway.
  HWY_INLINE hn::Mask<Floats> tree_shows(std::int64_t bit) const {
    const hn::RebindToUnsigned<Floats> words;
    const auto word = hn::Load(words, bit < 32 ? tree_low_ : tree_high_);
    return hn::RebindMask(Floats(), hn::TestBit(word, hn::Set(words, 1U << (bit % 32))));
  }

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
  std::int64_t tree_begin_ = std::numeric_limits<std::int64_t>::max();
  HWY_ALIGN std::uint32_t tree_low_[kLanes] = {};  // of each lane's word; read from tree_begin_ on
  HWY_ALIGN std::uint32_t tree_high_[kLanes] = {};
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

/// Scores of -inf, which have no weight, -> 0 over rows [first, last).
HWY_INLINE void clear_infinite(float* HWY_RESTRICT scores, std::int64_t first, std::int64_t last) {
  const Floats d;
  for (std::int64_t i = first * kPanel; i < last * kPanel; i += kLanes) {
    const Vec s = hn::Load(d, scores + i);
    hn::Store(hn::IfThenElseZero(hn::Ne(s, hn::Set(d, -kInfinity)), s), d, scores + i);
  }
}

/// Scores of hidden keys -> `value` over keys [first, last) of `vectors` vectors. Keys that every lane sees, from the
/// last lane's first to the first lane's last or to those that `task` has a tree mask for, are left alone. The lanes
/// are query rows from `row` on.
HWY_INLINE void hide_scores(float* HWY_RESTRICT scores, int vectors, std::int64_t first, std::int64_t last,
                            const std::int64_t* begin, const std::int64_t* end, std::int64_t origin,
                            const ForwardTask& task, std::int64_t row, float value = -kInfinity) {
  const Floats d;
  const std::int64_t all_from = std::clamp(begin[vectors * kLanes - 1] - origin, first, last);
  const std::int64_t shown = task.tree.given() ? std::min(end[0], task.tree.begin) : end[0];
  const std::int64_t all_to = std::clamp(shown - origin, all_from, last);
  for (int n = 0; n < vectors; ++n) {
    LaneInterval visible(begin + n * kLanes, end + n * kLanes, origin);
    visible.cut(task.tree, row + n * kLanes, task.q.group, origin);
    const auto hide = [&](std::int64_t key) {
      float* HWY_RESTRICT at = scores + key * kPanel + n * kLanes;
      hn::Store(hn::IfThenElse(visible.contains(key), hn::Load(d, at), hn::Set(d, value)), d, at);
    };
    for (std::int64_t key = first; key < all_from; ++key) hide(key);
    for (std::int64_t key = all_to; key < last; ++key) hide(key);
  }
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_SCORES_INL_H_
