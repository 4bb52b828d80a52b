// SPDX-License-Identifier: Apache-2.0
// Few queries: a block of keys as the heads of a task see it, and the softmax of its scores.
#if defined(STROBE_CPU_FEW_QUERIES_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_FEW_QUERIES_BLOCK_INL_H_
#undef STROBE_CPU_FEW_QUERIES_BLOCK_INL_H_
#else
#define STROBE_CPU_FEW_QUERIES_BLOCK_INL_H_
#endif

#include <algorithm>

#include "cpu/kernels/dropout-inl.h"
#include "cpu/kernels/few_queries.h"
#include "cpu/kernels/few_queries_merge-inl.h"
#include "cpu/kernels/few_queries_products-inl.h"
#include "cpu/kernels/terms-inl.h"
#include "cpu/kernels/traits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// What the heads of a task keep of the block at hand. Blocks begin at `key` of the sequence and have `count` keys.
class FewQueriesBlock {
 protected:
  FewQueriesBlock(const FewQueriesTask& task, std::byte* scratch)
      : task_(task),
        first_(task.heads.front()),
        rows_(first_.row_end),
        scratch_(scratch, first_.head_dim, first_.head_dim_v, first_.qv_columns > 0, first_.stored.given(), rows_,
                 static_cast<std::int64_t>(task.heads.size()), kernel_traits()) {}

  std::int64_t heads() const { return static_cast<std::int64_t>(task_.heads.size()); }

  FewQueriesState state(std::int64_t head) const { return {task_.states + head * task_.state_floats, rows_}; }

  const ForwardTask& head_task(std::int64_t head) const { return task_.heads[static_cast<std::size_t>(head)]; }
  const std::int64_t* begin_of(std::int64_t head) const { return scratch_.begin + head * rows_; }
  const std::int64_t* end_of(std::int64_t head) const { return scratch_.end + head * rows_; }
  float* scores(std::int64_t head) const { return scratch_.scores + head * scratch_.m_padded * kFewQueriesKeys; }
  float* queries(std::int64_t head) const { return scratch_.queries + head * scratch_.m_padded * scratch_.columns; }
  float* query_values(std::int64_t head) const {
    return scratch_.query_values + head * scratch_.m_padded * scratch_.columns_v;
  }
  std::int64_t any_begin(std::int64_t head) const { return scratch_.any_begin[head]; }
  std::int64_t any_end(std::int64_t head) const { return scratch_.any_end[head]; }

  /// What values of the block at hand are added to.
  float* output_of(std::int64_t head) const {
    return first_.row_invariant ? scratch_.block_output + head * rows_ * scratch_.columns_v : state(head).output;
  }

  /// The keys of a block that each row sees, counted from `key`, and those that any does.
  void find_visible(std::int64_t head, std::int64_t key, std::int64_t count) {
    const ForwardTask& task = head_task(head);
    std::int64_t any_begin = count;
    std::int64_t any_end = 0;
    for (std::int64_t row = 0; row < rows_; ++row) {
      const bool shown = task.blocks.visible(row / task.q.group, key);
      const std::int64_t first = std::clamp<std::int64_t>(scratch_.visible_begin[row] - key, 0, count);
      const std::int64_t last = shown ? std::clamp<std::int64_t>(scratch_.visible_end[row] - key, 0, count) : 0;
      scratch_.begin[head * rows_ + row] = first;
      scratch_.end[head * rows_ + row] = std::max(first, last);
      if (first >= last) continue;
      any_begin = std::min(any_begin, first);
      any_end = std::max(any_end, last);
    }
    scratch_.any_begin[head] = any_begin;
    scratch_.any_end[head] = any_end;
  }

  /// Whether no key of the block is hidden from a row, or may be.
  bool every_row_sees(std::int64_t key, std::int64_t count) const {
    const std::int64_t all = heads() * rows_;
    return !first_.tree.reaches(key + count) && !first_.expression.has_mask() &&
           std::all_of(scratch_.begin, scratch_.begin + all, [](std::int64_t begin) { return begin == 0; }) &&
           std::all_of(scratch_.end, scratch_.end + all, [&](std::int64_t end) { return end == count; });
  }

  /// Online softmax: P in place of S over the keys that each row sees. All rows in each pass, so that the sums and
  /// maxima across the lanes of one row wait for nothing of another.
  void softmax(std::int64_t head, std::int64_t key, std::int64_t count) {
    if (any_begin(head) >= any_end(head)) return;
    const ForwardTask& task = head_task(head);
    const FewQueriesState of_head = state(head);
    const float factor = task.exponent_factor();
    if (task.expression.given()) apply_text(head, key, count);
    for (std::int64_t row = 0; row < rows_; ++row) scratch_.top[row] = top_of_row(head, row, key, count);
    raise_maxima(of_head, factor);
    if (task.row_invariant) std::copy_n(scratch_.rescale, rows_, scratch_.block_rescale + head * rows_);
    KeptKeys kept(scratch_.kept);
    if (task.dropout.given) kept.draw(task.dropout, task.q.group, 0, rows_, key, key + count);
    for (std::int64_t row = 0; row < rows_; ++row) {
      const std::int64_t first = begin_of(head)[row];
      const std::int64_t last = end_of(head)[row];
      if (first >= last) continue;
      const Floats d;
      float* HWY_RESTRICT scores = this->scores(head) + row * kFewQueriesKeys;
      const Vec shift = hn::Set(d, scratch_.shift[row]);
      Vec sum = hn::Zero(d);
      float in_order = 0.0F;  // the sum of a tile, key by key
      for (std::int64_t at = round_down(first, kLanes); at < last; at += kLanes) {
        Vec p = exp2(hn::Mul(hn::Sub(hn::Load(d, scores + at), shift), hn::Set(d, factor)));
        sum = hn::Add(sum, p);
        if (task.row_invariant) {
          hn::Store(p, d, scores + at);
          for (std::int64_t i = 0; i < kLanes; ++i) in_order += scores[at + i];
        }
        if (task.dropout.given) p = hn::IfThenElseZero(kept.at(row, at), p);
        hn::Store(p, d, scores + at);
      }
      float& row_sum = of_head.row_sum[row];
      if (task.row_invariant) {
        row_sum = hn::GetLane(hn::MulAdd(hn::Set(d, row_sum), hn::Set(d, scratch_.rescale[row]), hn::Set(d, in_order)));
        continue;
      }
      row_sum = row_sum * scratch_.rescale[row] + hn::GetLane(hn::SumOfLanes(d, sum));
      if (scratch_.rescale[row] != 1.0F)
        rescale_output(scratch_.rescale[row], of_head.output + row * scratch_.columns_v);
    }
  }

  /// The largest score of a row, hidden ones made -inf.
  float top_of_row(std::int64_t head, std::int64_t row, std::int64_t key, std::int64_t count) {
    const Floats d;
    const ForwardTask& task = head_task(head);
    float* HWY_RESTRICT scores = this->scores(head) + row * kFewQueriesKeys;
    const std::int64_t first = begin_of(head)[row];
    const std::int64_t last = end_of(head)[row];
    if (first >= last) return -kInfinity;
    const std::int64_t from = round_down(first, kLanes);
    if (!task.expression.given()) make_scores(task, row, key, count, from, last, scores);
    if (task.tree.reaches(key + last)) {
      const std::int64_t position = row / task.q.group;
      for (std::int64_t at = std::max(first, task.tree.begin - key); at < last; ++at) {
        if (!task.tree.shows(position, key + at)) scores[at] = -kInfinity;
      }
    }
    const Vec positions = hn::Iota(d, 0.0F);
    Vec top = hn::Set(d, -kInfinity);
    for (std::int64_t at = from; at < last; at += kLanes) {
      Vec s = hn::Load(d, scores + at);
      if (at < first || at + kLanes > last) {
        const auto seen = hn::And(hn::Ge(positions, hn::Set(d, static_cast<float>(first - at))),
                                  hn::Lt(positions, hn::Set(d, static_cast<float>(last - at))));
        s = hn::IfThenElse(seen, s, hn::Set(d, -kInfinity));
        hn::Store(s, d, scores + at);
      }
      top = hn::Max(top, s);
    }
    return hn::GetLane(hn::MaxOfLanes(d, top));
  }

  /// Products -> scores where ALiBi, a bias or a text joins them; those of other calls are capped at most.
  void make_scores(const ForwardTask& task, std::int64_t row, std::int64_t key, std::int64_t count, std::int64_t from,
                   std::int64_t last, float* scores) const {
    if (task.score_scale.capped) cap_scores<1>(scores, from, round_up(last, kLanes), task.score_scale.softcap_scale);
    if (task.works_on_scores()) add_terms(task, row, key, count, from, last, scores);
  }

  /// What the text makes of the scores of every row, -inf of keys that it hides.
  void apply_text(std::int64_t head, std::int64_t key, std::int64_t count) const {
    const ForwardTask& task = head_task(head);
    const std::int64_t from = round_down(any_begin(head), kLanes);
    for (std::int64_t row = 0; row < rows_; ++row) {
      make_scores(task, row, key, count, from, any_end(head), scores(head) + row * kFewQueriesKeys);
    }
    const ExpressionPanel panel{.row = 0,
                                .rows = rows_,
                                .group = task.q.group,
                                .key = key,
                                .keys = count,
                                .along = rows_,
                                .width = kFewQueriesKeys};
    transform_scores(task.expression, panel, true, scores(head));
  }

  /// Rows across the lanes: their maxima with the block's, and what these make of the scores and of earlier sums.
  void raise_maxima(const FewQueriesState& of_head, float factor) const {
    const Floats d;
    for (std::int64_t row = 0; row < rows_; row += kLanes) {
      const Vec old_max = hn::LoadU(d, of_head.row_max + row);
      const Vec top = hn::Load(d, scratch_.top + row);
      const Vec new_max = hn::IfThenElse(hn::Gt(top, old_max), top, old_max);  // NaN is left to the sum
      const Vec shift = shift_of(new_max);
      hn::StoreU(new_max, d, of_head.row_max + row);
      hn::Store(shift, d, scratch_.shift + row);
      hn::Store(exp2(hn::Mul(hn::Sub(old_max, shift), hn::Set(d, factor))), d, scratch_.rescale + row);
    }
  }

  void rescale_output(float factor, float* HWY_RESTRICT output) const {
    const Floats d;
    for (std::int64_t c = 0; c < scratch_.columns_v; c += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, output + c), hn::Set(d, factor)), d, output + c);
    }
  }

  /// Products -> scores with ALiBi and bias, from key `from` of the block on.
  static void add_terms(const ForwardTask& task, std::int64_t row, std::int64_t key, std::int64_t count,
                        std::int64_t from, std::int64_t last, float* scores) {
    const TermsPanel panel{.terms = task.terms,
                           .diagonal = task.visible.diagonal,
                           .group = task.q.group,
                           .row = row,
                           .rows = 1,
                           .key_begin = key,
                           .keys = count,
                           .more_rows = 0};
    add_row_terms(panel, task.score_scale.scale, from, last, scores);
  }

  /// O = rescale O + P V of the block, in the order of a tile's.
  void add_block(std::int64_t head) const {
    if (any_begin(head) >= any_end(head)) return;
    const Floats d;
    float* HWY_RESTRICT output = state(head).output;
    const float* HWY_RESTRICT block = output_of(head);
    for (std::int64_t row = 0; row < rows_; ++row) {
      const Vec rescale = hn::Set(d, scratch_.block_rescale[head * rows_ + row]);
      for (std::int64_t at = row * scratch_.columns_v; at < (row + 1) * scratch_.columns_v; at += kLanes) {
        hn::StoreU(hn::MulAdd(hn::LoadU(d, output + at), rescale, hn::LoadU(d, block + at)), d, output + at);
      }
    }
  }

  const FewQueriesTask& task_;
  const ForwardTask& first_;
  const std::int64_t rows_;
  const FewQueriesScratch scratch_;
};

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_FEW_QUERIES_BLOCK_INL_H_
