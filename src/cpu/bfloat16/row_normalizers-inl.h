// SPDX-License-Identifier: Apache-2.0
// RowNormalizers of rows with a large LSE: the maximum and the sum of the scores that backward-inl.h makes, bit by bit.
#if defined(STROBE_CPU_BFLOAT16_ROW_NORMALIZERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BFLOAT16_ROW_NORMALIZERS_INL_H_
#undef STROBE_CPU_BFLOAT16_ROW_NORMALIZERS_INL_H_
#else
#define STROBE_CPU_BFLOAT16_ROW_NORMALIZERS_INL_H_
#endif

#include <algorithm>

#include "cpu/bfloat16/attributes-inl.h"
#include "cpu/bfloat16/kept_pairs-inl.h"
#include "cpu/bfloat16/operands.h"
#include "cpu/bfloat16/pack-inl.h"
#include "cpu/bfloat16/scratch.h"
#include "cpu/kernels/lane_statistics-inl.h"
#include "cpu/kernels/row_normalizers.h"
#include "cpu/kernels/terms-inl.h"

STROBE_BEFORE_BFLOAT16_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// kBlock rows, a lane each, against kBlock keys at a time.
template <class Unit>
class Bfloat16RowNormalizing {
 public:
  Bfloat16RowNormalizing(const NormalizerTask& task, std::byte* scratch)
      : task_(task), columns_(round_up(task.head_dim, bf16::kBlock)), scratch_(scratch, task.head_dim) {}

  void run() {
    for_each_group_with_large_lse(task_, bf16::kBlock,
                                  [this](std::int64_t row, std::int64_t count) { some_rows(row, count); });
  }

 private:
  void some_rows(std::int64_t row, std::int64_t count) {
    [[maybe_unused]] const typename Unit::Session session;
    pack_rows<Unit, true>({task_.q, row, count, task_.head_dim}, bf16::kBlock, columns_, scratch_.queries);
    for (std::int64_t i = 0; i < bf16::kBlock; ++i) {  // lanes past the last row repeat it
      const std::int64_t position = row_place(row + std::min(i, count - 1), task_.q.group).position;
      scratch_.visible_begin[i] = task_.visible.begin(position);
      scratch_.visible_end[i] = task_.visible.end(position);
    }
    LaneStatistics statistics[kBlockVecs];
    const std::int64_t last = scratch_.visible_end[bf16::kBlock - 1];
    for (std::int64_t key = round_down(scratch_.visible_begin[0], bf16::kBlock); key < last; key += bf16::kBlock) {
      if (task_.blocks.visible(row / task_.q.group, key)) block(row, count, key, statistics);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      if (has_large_lse(task_, row + i)) {
        set_from_statistics(task_, row + i, statistics[i / kLanes].lane(i % kLanes));
      }
    }
  }

  void block(std::int64_t row, std::int64_t rows, std::int64_t key, LaneStatistics (&statistics)[kBlockVecs]) {
    const Floats d;
    const std::int64_t keys = std::min(bf16::kBlock, task_.visible.keys - key);
    pack_rows<Unit, false>({task_.k, key, keys, task_.head_dim}, bf16::kBlock, columns_, scratch_.keys);
    Unit::multiply({scratch_.keys, bf16::kTileRows * columns_}, {scratch_.queries, bf16::kTileRows * columns_},
                   columns_ / bf16::kTileDepth, {scratch_.scores, bf16::kBlock}, [] {});
    const ScoreScale& scale = task_.score_scale;
    if (scale.capped) cap_scores<bf16::kBlock>(scratch_.scores, 0, bf16::kBlock, scale.softcap_scale);
    const TermsPanel panel{.terms = task_.terms,
                           .diagonal = task_.visible.diagonal,
                           .group = task_.q.group,
                           .row = row,
                           .rows = rows,
                           .key_begin = key,
                           .keys = keys,
                           .more_rows = 0};
    if (task_.terms.bias.data != nullptr) {
      pack_bias<bf16::kBlock>(panel, 0, bf16::kBlock, 0, bf16::kBlock, scratch_.row, scratch_.bias);
    }
    const bool joined = task_.terms.given() || task_.expression.given();
    for (int v = 0; v < kBlockVecs && joined; ++v) {
      const std::int64_t lane = v * kLanes;
      const LaneInterval visible(scratch_.visible_begin + lane, scratch_.visible_end + lane, key);
      TermsLanes(panel, lane, visible)
          .template add<bf16::kBlock>(false, 0, bf16::kBlock, scale.scale, scratch_.bias + lane,
                                      scratch_.scores + lane);
    }
    if (task_.expression.given()) {
      const ExpressionPanel pairs{.row = row,
                                  .rows = rows,
                                  .group = task_.q.group,
                                  .key = key,
                                  .keys = keys,
                                  .along = bf16::kBlock,
                                  .width = bf16::kBlock};
      transform_scores(task_.expression, pairs, true, scratch_.scores);
    }
    for (int v = 0; v < kBlockVecs; ++v) {
      const std::int64_t lane = v * kLanes;
      const LaneInterval visible(scratch_.visible_begin + lane, scratch_.visible_end + lane, key);
      const float* scores = scratch_.scores + lane;
      const Vec factor = hn::Set(d, joined ? 1.0F : scale.scale);
      for (std::int64_t i = 0; i < keys; ++i) {
        const Vec score = hn::Mul(hn::Load(d, scores + i * bf16::kBlock), factor);
        statistics[v].add(hn::IfThenElse(visible.contains(i), score, hn::Set(d, -kInfinity)));
      }
    }
  }

  const NormalizerTask& task_;
  const std::int64_t columns_;  // head_dim in whole blocks
  const bf16::NormalizerScratch scratch_;
};

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_BFLOAT16_NAMESPACE();

#endif  // STROBE_CPU_BFLOAT16_ROW_NORMALIZERS_INL_H_
