// SPDX-License-Identifier: Apache-2.0
// The forward of kernels/forward-inl.h in bfloat16 with float32 sums: S^T = K Q^T and O^T = V^T P^T, queries across the
// vector lanes. `Unit` is what multiplies: TileUnit or DotUnit.
//
// On matrix tiles three panels of queries are in flight: while the vector units turn the scores of one into
// probabilities, the matrix unit makes the scores of the next and the output of the one before. Where the vector units
// do all, a panel is done before the next one begins: its scores stay in L1.
#if defined(STROBE_CPU_BFLOAT16_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BFLOAT16_FORWARD_INL_H_
#undef STROBE_CPU_BFLOAT16_FORWARD_INL_H_
#else
#define STROBE_CPU_BFLOAT16_FORWARD_INL_H_
#endif

#include "cpu/bfloat16/attributes-inl.h"
#include "cpu/bfloat16/operands.h"
#include "cpu/bfloat16/pack-inl.h"
#include "cpu/bfloat16/scratch.h"
#include "cpu/bfloat16/softmax-inl.h"
#include "cpu/kernels/convert-inl.h"
#include "cpu/kernels/row_statistics.h"

STROBE_BEFORE_BFLOAT16_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

template <class Unit>
class Bfloat16ForwardBlock {
 public:
  Bfloat16ForwardBlock(const ForwardTask& task, std::byte* scratch)
      : task_(task),
        scratch_(scratch, task.head_dim, task.head_dim_v, task.qv_columns, task.stored.given(), task.tiles),
        rows_(task.row_end - task.row_begin),
        d_(scratch_.columns),
        dv_(scratch_.columns_v),
        qv_first_(round_up(task.head_dim, bf16::kBlock)) {}

  void run() {
    [[maybe_unused]] const typename Unit::Session session;
    begin();
    const std::int64_t block_n = task_.tiles.block_n;
    const std::int64_t last = scratch_.visible_end[rows_ - 1];
    for (std::int64_t key = round_down(scratch_.visible_begin[0], block_n); key < last; key += block_n) {
      if (any_part_sees(key)) tile(key, std::min(key + block_n, task_.visible.keys));
    }
    finish();
  }

 private:
  // Under a block mask the rows of a panel lie in one row of the mask, and a tile in one column.
  bool sees(std::int64_t row, std::int64_t key) const {
    return task_.blocks.visible((task_.row_begin + row) / task_.q.group, key);
  }
  bool any_part_sees(std::int64_t key) const {
    for (std::int64_t row = 0; row < rows_; row += task_.tiles.part_m) {
      if (sees(row, key)) return true;
    }
    return false;
  }

  void begin() {
    const std::int64_t lanes = round_up(rows_, bf16::kBlock);
    pack_rows<Unit, true>({task_.q, task_.row_begin, rows_, task_.head_dim}, lanes, qv_first_, scratch_.queries, d_);
    if (task_.qv_columns > 0) {
      pack_rows<Unit, true>({task_.qv, task_.row_begin, rows_, task_.qv_columns}, lanes, dv_,
                            scratch_.queries + qv_first_ * bf16::kTileRows, d_);
    }
    if (task_.query_factor != 1.0F) multiply_by(scratch_.queries, lanes * d_, task_.query_factor);
    std::fill_n(scratch_.row_max, lanes, -kInfinity);
    std::fill_n(scratch_.row_sum, lanes, 0.0F);
    std::fill_n(scratch_.output, lanes * dv_, 0.0F);
    for (std::int64_t row = 0; row < lanes; ++row) {  // lanes past the last row repeat it
      const std::int64_t position = (task_.row_begin + std::min(row, rows_ - 1)) / task_.q.group;
      scratch_.visible_begin[row] = task_.visible.begin(position);
      scratch_.visible_end[row] = task_.visible.end(position);
    }
  }

  /// Keys [key_begin, key_end) against every panel of queries.
  void tile(std::int64_t key_begin, std::int64_t key_end) {
    const std::int64_t count = key_end - key_begin;
    if (seen_by_text(0, rows_, key_begin, count) == TileVisibility::hidden) return;
    key_begin_ = key_begin;
    count_ = count;
    packed_ = round_up(count, bf16::kBlock);
    const StoredTile stored{task_.stored, task_.dtype, key_begin, count, scratch_.converted};
    pack_rows<Unit, false>({stored.keys(task_.k, task_.head_dim), stored.first(), count, task_.head_dim}, packed_,
                           qv_first_, scratch_.keys, d_);
    const ConstRows rows = stored.values(task_.v, task_.head_dim_v);
    const Source values{rows, stored.first(), count, task_.head_dim_v};
    pack_row_pairs<Unit, true>(values, packed_, dv_, scratch_.values);
    if (task_.qv_columns > 0) {
      pack_rows<Unit, false>(values, packed_, dv_, scratch_.keys + qv_first_ * bf16::kTileRows, d_);
    }
    const bool uniform = scratch_.visible_begin[rows_ - 1] <= key_begin && scratch_.visible_end[0] >= key_end &&
                         !task_.tree.reaches(key_end);
    // A hidden key has probability 0, and 0 * NaN is NaN: such a tile takes the path that skips hidden pairs.
    hidden_poison_ = (!uniform || task_.expression.has_mask()) && !all_finite(scratch_.values, packed_ * dv_);

    Panel scored;    // waits for its softmax
    Panel weighted;  // waits for its product with V
    for (std::int64_t row = 0; row < rows_; row += bf16::kBlock) {
      Panel next = panel(row);
      if (next.empty()) continue;
      if constexpr (!Unit::kOverlaps) {
        stage(next, {}, {});
        stage({}, next, {});
        stage({}, {}, next);
        continue;
      }
      next.half = 1 - scored.half;
      stage(next, scored, weighted);
      weighted = scored;
      scored = next;
    }
    stage({}, scored, weighted);
    stage({}, {}, scored);
  }

  Panel panel(std::int64_t row) const {
    if (!sees(row, key_begin_)) return {};
    const std::int64_t* begin = scratch_.visible_begin + row;
    const std::int64_t* end = scratch_.visible_end + row;
    Panel panel{.row = row,
                .first = round_down(std::clamp<std::int64_t>(begin[0] - key_begin_, 0, count_), bf16::kBlock),
                .last = std::clamp<std::int64_t>(end[bf16::kBlock - 1] - key_begin_, 0, count_)};
    if (panel.empty()) return {};
    const TileVisibility seen =
        seen_by_text(row, std::min(bf16::kBlock, rows_ - row), key_begin_ + panel.first, panel.last - panel.first);
    if (seen == TileVisibility::hidden) return {};
    panel.text_hides = seen == TileVisibility::partial;
    panel.last = round_up(panel.last, bf16::kBlock);
    panel.masked = begin[bf16::kBlock - 1] - key_begin_ > panel.first || end[0] - key_begin_ < panel.last ||
                   task_.tree.reaches(key_begin_ + panel.last);
    return panel;
  }

  /// What a text shows of keys [key, key + keys) to `rows` rows of the block from `row` on.
  TileVisibility seen_by_text(std::int64_t row, std::int64_t rows, std::int64_t key, std::int64_t keys) const {
    return tile_visibility(task_.expression, {.row = task_.row_begin + row,
                                              .rows = rows,
                                              .group = task_.q.group,
                                              .key = key,
                                              .keys = keys,
                                              .along = keys,
                                              .width = bf16::kBlock});
  }

  void stage(const Panel& next, const Panel& scored, const Panel& weighted) {
    PanelSoftmax<Unit> softmax(task_, scored, memory_of(scored), key_begin_, count_);
    softmax.pace(product_steps(next, d_) + product_steps(weighted, dv_));
    const auto between = [&softmax] { softmax.advance(); };
    for (std::int64_t key = next.first; key < next.last; key += bf16::kBlock) {
      Unit::multiply({scratch_.keys + key * d_, bf16::kTileRows * d_},
                     {scratch_.queries + next.row * d_, bf16::kTileRows * d_}, d_ / bf16::kTileDepth,
                     {scores_of(next) + key * bf16::kBlock, bf16::kBlock}, between);
    }
    if (!weighted.empty()) add_values(weighted, between);
    softmax.finish();
  }

  /// Steps of kTileDepth in a panel's product over [keys, columns] of K or V.
  static std::int64_t product_steps(const Panel& panel, std::int64_t columns) {
    return panel.empty() ? 0 : (panel.last - panel.first) / bf16::kBlock * (columns / bf16::kTileDepth);
  }

  /// O^T = rescale O^T + V^T P^T.
  template <class Between>
  void add_values(const Panel& panel, const Between& between) {
    float* output = scratch_.output + panel.row * dv_;
    rescale_output(output, scratch_.rescale + panel.row);
    const bool hides = panel.masked || task_.expression.has_mask();
    if (hides && hidden_poison_) return add_visible_values(panel, output);
    const std::int64_t steps = (panel.last - panel.first) / bf16::kTileDepth;
    const bfloat16* probabilities = probabilities_of(panel) + panel.first * bf16::kTileRows;
    for (std::int64_t c = 0; c < dv_; c += bf16::kBlock) {
      Unit::multiply_add({scratch_.values + c * packed_ + panel.first * bf16::kTileRows, bf16::kTileRows * packed_},
                         {probabilities, probability_stride()}, steps, {output + c * bf16::kBlock, bf16::kBlock},
                         between);
    }
  }

  void rescale_output(float* HWY_RESTRICT output, const float* HWY_RESTRICT factors) const {
    const Floats d;
    bool changed = false;
    for (int v = 0; v < kBlockVecs; ++v) {
      changed |= !hn::AllTrue(d, hn::Eq(hn::Load(d, factors + v * kLanes), hn::Set(d, 1.0F)));
    }
    if (!changed) return;
    for (int v = 0; v < kBlockVecs; ++v) {
      const Vec factor = hn::Load(d, factors + v * kLanes);
      for (std::int64_t c = 0; c < dv_; ++c) {
        float* HWY_RESTRICT at = output + c * bf16::kBlock + v * kLanes;
        hn::Store(hn::Mul(hn::Load(d, at), factor), d, at);
      }
    }
  }

  /// O^T += V^T P^T over visible pairs alone.
  void add_visible_values(const Panel& panel, float* HWY_RESTRICT output) const {
    const Floats d;
    const hn::RebindToUnsigned<Floats> bits;
    for (int v = 0; v < kBlockVecs; ++v) {
      const std::int64_t query = v * kLanes;
      LaneInterval visible(scratch_.visible_begin + panel.row + query, scratch_.visible_end + panel.row + query,
                           key_begin_);
      visible.cut(task_.tree, task_.row_begin + panel.row + query, task_.q.group, key_begin_);
      const bfloat16* pairs =
          probabilities_of(panel) + query / bf16::kTileRows * probability_stride() + query % bf16::kTileRows * 2;
      for (std::int64_t c = 0; c < dv_; ++c) {
        float* HWY_RESTRICT at = output + c * bf16::kBlock + query;
        Vec sum = hn::Load(d, at);
        for (std::int64_t key = panel.first; key < panel.last; ++key) {
          const auto pair = hn::LoadU(bits, reinterpret_cast<const std::uint32_t*>(pairs + key / 2 * bf16::kTileDepth));
          const Vec p =
              hn::BitCast(d, key % 2 == 0 ? hn::ShiftLeft<16>(pair) : hn::And(pair, hn::Set(bits, 0xFFFF0000U)));
          const bfloat16 value =
              scratch_.values[round_down(c, bf16::kTileRows) * packed_ + key / bf16::kTileDepth * bf16::kTileElements +
                              c % bf16::kTileRows * bf16::kTileDepth + key % bf16::kTileDepth];
          auto seen = visible.contains(key);
          if (task_.expression.has_mask()) seen = hn::And(seen, hn::Ne(p, hn::Zero(d)));  // NaN is seen
          sum = hn::IfThenElse(seen, hn::MulAdd(p, hn::Set(d, to_float(value)), sum), sum);
        }
        hn::Store(sum, d, at);
      }
    }
  }

  void finish() {
    for (std::int64_t row = 0; row < rows_; ++row) {
      scratch_.rescale[row] =
          finish_statistics(task_, task_.row_begin + row, {scratch_.row_max[row]}, scratch_.row_sum[row]);
    }
    const OutputRows to{task_.o, task_.row_begin, rows_, task_.head_dim_v};
    store_transposed<Unit>(scratch_.output, dv_, scratch_.rescale, to);
  }

  // Panels alternate between two halves of the buffers: consecutive ones are in flight together.
  float* scores_of(const Panel& panel) const {
    return scratch_.scores + panel.half * task_.tiles.block_n * bf16::kBlock;
  }
  bfloat16* probabilities_of(const Panel& panel) const {
    return scratch_.probabilities + panel.half * task_.tiles.block_n * bf16::kBlock;
  }
  std::int64_t probability_stride() const { return task_.tiles.block_n * bf16::kTileRows; }

  SoftmaxMemory memory_of(const Panel& panel) const {
    return {.scores = scores_of(panel),
            .probabilities = probabilities_of(panel),
            .group_stride = probability_stride(),
            .row_max = scratch_.row_max + panel.row,
            .row_sum = scratch_.row_sum + panel.row,
            .rescale = scratch_.rescale + panel.row,
            .visible_begin = scratch_.visible_begin + panel.row,
            .visible_end = scratch_.visible_end + panel.row};
  }

  const ForwardTask& task_;
  const bf16::ForwardScratch scratch_;
  const std::int64_t rows_;
  const std::int64_t d_;         // columns of scores' products in whole blocks: of q and, behind them, of qv
  const std::int64_t dv_;        // head_dim_v in whole blocks
  const std::int64_t qv_first_;  // the first of qv
  std::int64_t key_begin_ = 0;   // of the tile
  std::int64_t count_ = 0;       // its keys
  std::int64_t packed_ = 0;      // in whole blocks
  bool hidden_poison_ = false;
};

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_BFLOAT16_NAMESPACE();

#endif  // STROBE_CPU_BFLOAT16_FORWARD_INL_H_
