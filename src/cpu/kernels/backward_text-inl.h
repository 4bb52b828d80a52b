// SPDX-License-Identifier: Apache-2.0
// What a call's text does in one block of keys of the backward: scores and slopes of a panel, and the captures'
// gradients.
#if defined(STROBE_CPU_BACKWARD_TEXT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BACKWARD_TEXT_INL_H_
#undef STROBE_CPU_BACKWARD_TEXT_INL_H_
#else
#define STROBE_CPU_BACKWARD_TEXT_INL_H_
#endif

#include <algorithm>

#include "cpu/kernels/scratch.h"
#include "cpu/kernels/task.h"
#include "cpu/kernels/turn.h"
#include "cpu/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

class BackwardText {
 public:
  /// `queries` are the current head's, whose turn they follow; `count` the keys of the block.
  BackwardText(const BackwardTask& task, const BackwardQueries& queries, const BackwardScratch& scratch,
               std::int64_t count)
      : task_(task), queries_(queries), scratch_(scratch), count_(count) {}

  bool given() const { return text().given(); }
  bool has_mask() const { return text().has_mask(); }
  bool wants_captures() const { return task_.capture_turn.own != nullptr; }

  /// Of keys [key, key + keys) of the block and `rows` query rows from `row` on.
  TileVisibility visibility(std::int64_t key, std::int64_t keys, std::int64_t row, std::int64_t rows) const {
    return has_mask() ? tile_visibility(text(), panel(key, keys, row, rows)) : TileVisibility::full;
  }

  /// What the text makes of a panel's products, and the slopes, of rows [first, last) of the block at `row_begin`.
  void apply(std::int64_t key, std::int64_t row_begin, std::int64_t first, std::int64_t last) const {
    const Floats d;
    const ScoreScale& score = task_.score_scale;
    const Vec scale = hn::Set(d, score.scale);
    for (std::int64_t i = first * kPanel; i < last * kPanel; i += kLanes) {
      Vec s = hn::Load(d, scratch_.scores + i);
      if (score.capped) s = tanh(hn::Mul(s, hn::Set(d, score.softcap_scale)));
      const Vec x = queries_.terms.given() ? hn::MulAdd(s, scale, hn::Load(d, scratch_.terms + i)) : hn::Mul(s, scale);
      hn::Store(x, d, scratch_.given_scores + i);
      hn::Store(x, d, scratch_.text_scores + i);
    }
    transform_with_slopes(text(), panel(key, panel_keys(key), row_begin + first, last - first),
                          scratch_.text_scores + first * kPanel, scratch_.text_slopes + first * kPanel);
  }

  /// 0 where a score of the text's is -inf: such a pair is hidden, whatever else it holds.
  HWY_INLINE Vec shown(Vec score, Vec value) const {
    return hn::IfThenElseZero(hn::Ne(score, hn::Set(Floats(), -kInfinity)), value);
  }

  /// The gradient of the score that the text was given, from that of what it made of it, which is kept at `at`.
  HWY_INLINE Vec through(Vec score, std::int64_t at, Vec d_score, Vec& probability) const {
    const Floats d;
    probability = shown(score, probability);
    d_score = shown(score, d_score);
    hn::Store(d_score, d, scratch_.d_text + at);
    return shown(score, hn::Mul(d_score, hn::Load(d, scratch_.text_slopes + at)));
  }

  /// Of rows [first, last), when the tasks before this one have added theirs.
  void add_to_captures(std::int64_t key, std::int64_t row_begin, std::int64_t first, std::int64_t last) const {
    wait_for_captures(task_.capture_turn);
    for (std::int64_t row = first; row < last; ++row) {  // pairs that other masks hide
      for (std::int64_t i = 0; i < kPanel; ++i) {
        const bool seen = row_begin + row >= scratch_.row_begin[key + i] && row_begin + row < scratch_.row_end[key + i];
        if (!seen) scratch_.d_text[row * kPanel + i] = 0.0F;
      }
    }
    add_capture_gradients(text(), panel(key, panel_keys(key), row_begin + first, last - first),
                          scratch_.given_scores + first * kPanel, scratch_.d_text + first * kPanel);
  }

 private:
  const ExpressionTask& text() const { return queries_.expression; }
  std::int64_t panel_keys(std::int64_t key) const { return std::min(kPanel, count_ - key); }

  ExpressionPanel panel(std::int64_t key, std::int64_t keys, std::int64_t row, std::int64_t rows) const {
    return {.row = row,
            .rows = rows,
            .group = queries_.q.group,
            .key = task_.key_begin + key,
            .keys = keys,
            .along = rows,
            .width = kPanel};
  }

  const BackwardTask& task_;
  const BackwardQueries& queries_;
  const BackwardScratch& scratch_;
  const std::int64_t count_;
};

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_BACKWARD_TEXT_INL_H_
