// SPDX-License-Identifier: Apache-2.0
// RowNormalizers of rows with a large LSE: the maximum and the sum of the scores that backward-inl.h makes, bit by bit.
#if defined(STROBE_CPU_ROW_NORMALIZERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_ROW_NORMALIZERS_INL_H_
#undef STROBE_CPU_ROW_NORMALIZERS_INL_H_
#else
#define STROBE_CPU_ROW_NORMALIZERS_INL_H_
#endif

#include <algorithm>

#include "cpu/kernels/few_queries.h"
#include "cpu/kernels/few_queries_products-inl.h"
#include "cpu/kernels/lane_statistics-inl.h"
#include "cpu/kernels/row_normalizers.h"
#include "cpu/kernels/terms-inl.h"
#include "cpu/kernels/traits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

class RowNormalizing {
 public:
  RowNormalizing(const NormalizerTask& task, std::byte* scratch)
      : task_(task),
        columns_(score_columns(task.head_dim, task.qv_columns, kLanes)),
        qv_first_(round_up(task.head_dim, kLanes)),
        scratch_(scratch, task.head_dim, task.qv_columns, kernel_traits()) {}

  void run() {
    for_each_group_with_large_lse(task_, kRowGroup, [this](std::int64_t row, std::int64_t count) {
      with_row_group(count, [&](auto own) { some_rows<own>(row); });
    });
  }

 private:
  /// kRows rows from `row` on against every key that one of them sees.
  template <int kRows>
  void some_rows(std::int64_t row) {
    const Source queries{task_.q, row, kRows, task_.head_dim};
    const Source query_values{task_.qv, row, kRows, task_.qv_columns};
    for (int i = 0; i < kRows; ++i) load_one(queries, query_values, i, scratch_.queries + i * columns_);
    LaneStatistics statistics[kRows];
    const std::int64_t first = task_.visible.begin(position(row));
    const std::int64_t last = task_.visible.end(position(row + kRows - 1));
    for (std::int64_t key = round_down(first, kLanes); key < last; key += kLanes) {
      const std::int64_t count = std::min(kLanes, task_.visible.keys - key);
      const Source keys{task_.k, key, count, task_.head_dim};
      const Source values{task_.v, key, count, task_.qv_columns};
      for (std::int64_t i = 0; i < count; ++i) load_one(keys, values, i, scratch_.keys + i * columns_);
      multiply_across_keys<kRows, 1>(scratch_.queries, columns_, BlockRows<float>{scratch_.keys, columns_}, count,
                                     scratch_.scores);
      for (int i = 0; i < kRows; ++i) {
        statistics[i].add(visible_scores(row + i, key, scratch_.scores + i * kFewQueriesKeys));
      }
    }
    for (int i = 0; i < kRows; ++i) {
      if (has_large_lse(task_, row + i)) set_from_statistics(task_, row + i, statistics[i].row());
    }
  }

  std::int64_t position(std::int64_t row) const { return row_place(row, task_.q.group).position; }

  /// Of a row and the keys from `key` on; -inf where a key is hidden.
  HWY_INLINE Vec visible_scores(std::int64_t row, std::int64_t key, const float* products) const {
    const Floats d;
    const Vec hidden = hn::Set(d, -kInfinity);
    const std::int64_t at = position(row);
    if (!task_.blocks.visible(at, key)) return hidden;
    const std::int64_t first = std::clamp<std::int64_t>(task_.visible.begin(at) - key, 0, kLanes);
    const std::int64_t last = std::clamp<std::int64_t>(task_.visible.end(at) - key, 0, kLanes);
    const Vec lane = hn::Iota(d, 0.0F);
    const auto seen = hn::And(hn::Ge(lane, hn::Set(d, static_cast<float>(first))),
                              hn::Lt(lane, hn::Set(d, static_cast<float>(last))));
    const ScoreScale& scale = task_.score_scale;
    HWY_ALIGN float scores[kLanes];
    Vec s = hn::Load(d, products);
    if (scale.capped) s = tanh(hn::Mul(s, hn::Set(d, scale.softcap_scale)));
    hn::Store(task_.terms.given() ? s : hn::Mul(s, hn::Set(d, scale.scale)), d, scores);
    if (task_.terms.given()) {
      const TermsPanel panel{.terms = task_.terms,
                             .diagonal = task_.visible.diagonal,
                             .group = task_.q.group,
                             .row = row,
                             .rows = 1,
                             .key_begin = key,
                             .keys = std::min(kLanes, task_.visible.keys - key),
                             .more_rows = 0};
      add_row_terms(panel, scale.scale, 0, kLanes, scores);
    }
    if (task_.expression.given()) {
      const ExpressionPanel panel{.row = row,
                                  .rows = 1,
                                  .group = task_.q.group,
                                  .key = key,
                                  .keys = std::min(kLanes, task_.visible.keys - key),
                                  .along = 1,
                                  .width = kLanes};
      transform_scores(task_.expression, panel, true, scores);
    }
    return hn::IfThenElse(seen, hn::Load(d, scores), hidden);
  }

  /// A row of q or k and, behind it, that of qv or v.
  void load_one(const Source& from, const Source& more, std::int64_t row, float* to) const {
    switch (task_.dtype) {
      case DType::float16: return load_one_of<float16>(from, more, row, to);
      case DType::bfloat16: return load_one_of<bfloat16>(from, more, row, to);
      default: return load_one_of<float>(from, more, row, to);
    }
  }

  template <class T>
  void load_one_of(const Source& from, const Source& more, std::int64_t row, float* to) const {
    load_source_row<T>(from, row, qv_first_, 1.0F, to);
    if (more.columns > 0) load_source_row<T>(more, row, columns_ - qv_first_, 1.0F, to + qv_first_);
  }

  const NormalizerTask& task_;
  const std::int64_t columns_;   // of q and, behind them, of qv, each in whole vectors
  const std::int64_t qv_first_;  // the first of qv
  const NormalizerScratch scratch_;
};

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_ROW_NORMALIZERS_INL_H_
