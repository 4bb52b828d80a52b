// SPDX-License-Identifier: Apache-2.0
// One block of keys against all queries that see it: FlashAttention-2's backward (algorithm 2), keys across the vector
// lanes.
//
// S = Q K^T and dP = dO V^T put the keys of a panel into lanes; P and dS then feed dV^T = dO^T P and dK^T = Q^T dS from
// where they lie. dQ += dS K adds to float32 sums that all key blocks share, each in its turn, in the order of the
// keys: the bits do not depend on which thread ran what.
#if defined(STROBE_CPU_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BACKWARD_INL_H_
#undef STROBE_CPU_BACKWARD_INL_H_
#else
#define STROBE_CPU_BACKWARD_INL_H_
#endif

#include "cpu/kernels/backward_text-inl.h"
#include "cpu/kernels/bias_gradient-inl.h"
#include "cpu/kernels/dropout-inl.h"
#include "cpu/kernels/key_gradients-inl.h"
#include "cpu/kernels/multiply-inl.h"
#include "cpu/kernels/pack-inl.h"
#include "cpu/kernels/scores-inl.h"
#include "cpu/kernels/scratch.h"
#include "cpu/kernels/terms-inl.h"
#include "cpu/kernels/traits-inl.h"
#include "cpu/kernels/turn.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

class BackwardBlock {
 public:
  BackwardBlock(const BackwardTask& task, std::byte* scratch)
      : task_(task),
        queries_of_(task.queries),
        scratch_(scratch, task.head_dim, task.head_dim_v, task.qv_columns, task.queries.expression.given(), task.tiles,
                 kernel_traits()),
        count_(task.key_end - task.key_begin),
        padded_keys_(round_up(count_, kPanel)),
        d_(scratch_.columns),
        dv_(scratch_.columns_v),
        wide_d_(scratch_.wide_columns),
        qv_first_(round_up(task.head_dim, kStrip)),
        query_layout_(rows_together(d_)),
        d_o_layout_(rows_together(task.head_dim_v)),
        bias_gradient_(task.bias_turn, task.key_begin, count_, scratch_.terms),
        text_(task, queries_of_, scratch_, count_),
        has_extras_(task.queries.terms.given() || task.queries.expression.given() || task.queries.dropout.given ||
                    task.queries.d_bias.data != nullptr || !task.normalized),
        kept_(scratch_.kept) {}

  void run() {
    begin();
    for_each_query_block(task_, queries_of_, bias_gradient_, padded_block() * wide_d_,
                         [this](std::int64_t row_begin, std::int64_t row_end, bool is_last_head) {
                           is_last_head_ = is_last_head;
                           query_block(row_begin, row_end);
                         });
    finish();
  }

 private:
  void begin() {
    const Source keys{task_.k, task_.key_begin, count_, task_.head_dim};
    const Source values{task_.v, task_.key_begin, count_, task_.head_dim_v};
    const std::int64_t lanes = round_up(count_, kLanes);
    prefetch_first_rows(task_.dtype, task_.k, task_.key_begin, count_, task_.head_dim);
    prefetch_first_rows(task_.dtype, task_.v, task_.key_begin, count_, task_.head_dim_v);
    pack_panels(task_.dtype, keys, lanes, qv_first_, 1.0F, scratch_.row, scratch_.keys, d_);
    pack_panels(task_.dtype, values, lanes, dv_, 1.0F, scratch_.row, scratch_.values);
    pack_wide_panels(task_.dtype, keys, count_, scratch_.row, scratch_.wide_keys);
    if (task_.qv_columns > 0) {
      pack_panels(task_.dtype, values, lanes, dv_, 1.0F, scratch_.row, scratch_.keys + qv_first_ * kPanel, d_);
      pack_wide_panels(task_.dtype, values, count_, scratch_.row,
                       scratch_.wide_keys + round_up(task_.head_dim, kWidePanel) * count_);
    }
    std::fill_n(scratch_.dk, padded_keys_ * d_, 0.0F);
    std::fill_n(scratch_.dv, padded_keys_ * dv_, 0.0F);
    const std::int64_t group = queries_of_.q.group;
    const std::int64_t positions = queries_of_.rows / group;
    for (std::int64_t lane = 0; lane < padded_keys_; ++lane) {  // lanes past the last key repeat it; nobody reads them
      const std::int64_t key = task_.key_begin + std::min(lane, count_ - 1);
      scratch_.row_begin[lane] = task_.visible.first_position(key, positions) * group;
      scratch_.row_end[lane] = task_.visible.last_position(key, positions) * group;
    }
    keys_finite_ = all_finite(scratch_.wide_keys, count_ * wide_d_);
  }

  /// Rows that a block takes in the dQ sums.
  std::int64_t padded_block() const { return round_up(task_.tiles.block_m, kRowMultiple); }

  /// Query rows [row_begin, row_end) against every panel of keys.
  void query_block(std::int64_t row_begin, std::int64_t row_end) {
    const std::int64_t rows = row_end - row_begin;
    block_rows_ = round_up(rows, kRowMultiple);
    if (text_.visibility(0, count_, row_begin, rows) == TileVisibility::hidden) {
      return pass_hidden_block(task_, queries_of_, bias_gradient_, row_begin, row_end, is_last_head_);
    }
    prefetch_first_rows(task_.dtype, queries_of_.q, row_begin, rows, task_.head_dim);
    prefetch_first_rows(task_.dtype, queries_of_.d_o, row_begin, rows, task_.head_dim_v);
    pack_tiles(task_.dtype, {queries_of_.q, row_begin, rows, task_.head_dim}, block_rows_, query_layout_,
               scratch_.queries);
    if (task_.qv_columns > 0) {
      pack_tiles(task_.dtype, {queries_of_.qv, row_begin, rows, task_.qv_columns}, block_rows_, query_layout_,
                 scratch_.queries + qv_first_ / kStrip * query_layout_.strip_stride);
    }
    pack_tiles(task_.dtype, {queries_of_.d_o, row_begin, rows, task_.head_dim_v}, block_rows_, d_o_layout_,
               scratch_.d_o);
    const std::int64_t block = row_begin / task_.tiles.block_m;
    bias_gradient_.wait(row_end, queries_of_.q.group, task_.tiles.block_m);
    if (queries_of_.dropout.given) {
      kept_.draw(queries_of_.dropout, queries_of_.q.group, row_begin, rows, task_.key_begin, task_.key_end);
    }

    const bool uniform = scratch_.row_begin[padded_keys_ - 1] <= row_begin && scratch_.row_end[0] >= row_end;
    // A hidden pair has P = dS = 0, and 0 * NaN is NaN: such a block takes the path that skips hidden pairs.
    hidden_poison_ = (!uniform || text_.has_mask()) &&
                     !(keys_finite_ && all_finite(scratch_.queries, query_layout_, block_rows_, d_) &&
                       all_finite(scratch_.d_o, d_o_layout_, block_rows_, dv_));
    for (std::int64_t key = 0; key < padded_keys_; key += kPanel) panel(key, row_begin, rows);
    if (is_last_head_) bias_gradient_.pass(block + 1);
    add_query_gradient(row_begin, rows);
  }

  void panel(std::int64_t key, std::int64_t row_begin, std::int64_t rows) {
    const std::int64_t* begin = scratch_.row_begin + key;
    const std::int64_t* end = scratch_.row_end + key;
    float* d_scores = scratch_.d_scores + key * block_rows_;
    const int vectors = panel_vectors(count_ - key);
    const std::int64_t last_lane = vectors * kLanes - 1;
    std::int64_t first = std::clamp<std::int64_t>(begin[0] - row_begin, 0, rows);
    std::int64_t last = std::clamp<std::int64_t>(end[last_lane] - row_begin, 0, rows);
    const std::int64_t panel_keys = std::min(kPanel, count_ - key);
    if (first >= last || text_.visibility(key, panel_keys, row_begin, rows) == TileVisibility::hidden) {
      std::fill_n(d_scores, block_rows_ * kPanel, 0.0F);
      if (bias_gradient_.writes_all()) {
        bias_gradient_.store_zeros(key, panel_keys, row_begin, row_begin + rows);
      }
      return;
    }
    first = round_down(first, kStrip);
    last = round_up(last, kStrip);
    std::fill_n(d_scores, first * kPanel, 0.0F);
    std::fill_n(d_scores + last * kPanel, (block_rows_ - last) * kPanel, 0.0F);
    const std::int64_t valid = std::min(last, rows);
    const bool masked = begin[last_lane] - row_begin > first || end[0] - row_begin < valid;

    multiply_panel(vectors, scratch_.queries, query_layout_, d_, scratch_.keys + key * d_, first, last,
                   scratch_.scores);
    bias_gradient_.prefetch(key, row_begin + first, row_begin + std::min(last, rows));
    multiply_panel(vectors, scratch_.d_o, d_o_layout_, dv_, scratch_.values + key * dv_, first, last,
                   scratch_.d_probabilities);
    if (queries_of_.terms.given()) {
      const TermsPanel terms{.terms = queries_of_.terms,
                             .diagonal = task_.visible.diagonal,
                             .group = queries_of_.q.group,
                             .row = row_begin,
                             .rows = valid,
                             .key_begin = task_.key_begin,
                             .keys = count_,
                             .more_rows = 0};
      terms_of_keys(terms, key, first, valid, scratch_.terms);
    }
    if (text_.given()) text_.apply(key, row_begin, first, valid);
    for (int n = 0; n < vectors; ++n) {
      const LaneInterval visible(begin + n * kLanes, end + n * kLanes, row_begin);
      const RowRange range{row_begin, first, last, valid};
      if (masked) {
        has_extras_ ? differentiate<true, true>(key, n * kLanes, visible, range, d_scores)
                    : differentiate<true, false>(key, n * kLanes, visible, range, d_scores);
      } else {
        has_extras_ ? differentiate<false, true>(key, n * kLanes, visible, range, d_scores)
                    : differentiate<false, false>(key, n * kLanes, visible, range, d_scores);
      }
    }
    if (bias_gradient_.wanted()) bias_gradient_.store(key, row_begin, first, valid, rows);
    if (text_.wants_captures()) text_.add_to_captures(key, row_begin, first, valid);
    if ((masked || text_.has_mask()) && hidden_poison_) {
      add_visible(vectors, scratch_.d_o, d_o_layout_, task_.head_dim_v, scratch_.scores, first, last, begin, end,
                  row_begin, scratch_.dv + key * dv_);
      add_visible(vectors, scratch_.queries, query_layout_, d_, d_scores, first, last, begin, end, row_begin,
                  scratch_.dk + key * d_);
      return;
    }
    add_columns(vectors, scratch_.d_o, d_o_layout_, dv_, scratch_.scores, first, last, scratch_.dv + key * dv_);
    add_columns(vectors, scratch_.queries, query_layout_, d_, d_scores, first, last, scratch_.dk + key * d_);
  }

  /// out[row][key lanes] = left rows * panel, over `columns`.
  void multiply_panel(int vectors, const float* left, PackedLayout layout, std::int64_t columns, const float* panel,
                      std::int64_t first, std::int64_t last, float* HWY_RESTRICT out) {
    with_vectors(vectors, [&](auto own) {
      for (std::int64_t row = first; row < last; row += kStrip) {
        multiply_rows<kStrip, own, kStrip, kPanel>(left + row / kStrip * layout.group_stride, layout.strip_stride,
                                                   columns, panel)
            .store_to(out + row * kPanel, kPanel);
      }
    });
  }

  /// Rows [first, last) of the block that begins at `block`; from `valid` on they are padding.
  struct RowRange {
    std::int64_t block;
    std::int64_t first;
    std::int64_t last;
    std::int64_t valid;
  };

  /// P of scores x by the row's normalizers.
  static HWY_INLINE Vec probability(Vec x, float shift, float log2_sum) {
    const Floats d;
    const Vec exponent = hn::MulSub(hn::Sub(x, hn::Set(d, shift)), hn::Set(d, kLog2E), hn::Set(d, log2_sum));
    // P exceeds 1 by rounding alone: not where an lse does not belong to these inputs, either. NaN passes.
    return exp2(hn::IfThenElse(hn::Gt(exponent, hn::Set(d, 1.0F)), hn::Set(d, 1.0F), exponent));
  }

  /// P in place of S, and dS = P (dP - delta) [(1 - t^2) under softcap], for one vector of keys. Extras: terms join the
  /// scores, dropout takes its share of P and dP, dS before the softcap, which is the bias's gradient, takes the place
  /// of the terms, and where nothing is normalized P = S and dS = dP.
  template <bool kMasked, bool kExtras>
  HWY_INLINE void differentiate(std::int64_t key, std::int64_t lane, const LaneInterval& visible, const RowRange& rows,
                                float* HWY_RESTRICT d_scores) {
    const Floats d;
    const float* HWY_RESTRICT delta = queries_of_.delta + rows.block;
    const float* HWY_RESTRICT shift = queries_of_.normalizers.shift + rows.block;
    const float* HWY_RESTRICT log2_sum = queries_of_.normalizers.log2_sum + rows.block;
    const Vec scale = hn::Set(d, task_.score_scale.scale);
    const Vec softcap_scale = hn::Set(d, task_.score_scale.softcap_scale);
    const bool capped = task_.score_scale.capped;
    const bool has_terms = queries_of_.terms.given();
    const bool has_text = text_.given();
    const bool normalized = !kExtras || task_.normalized;
    const bool wants_d_bias = bias_gradient_.wanted();
    const GroupDropout& dropout = queries_of_.dropout;
    const Vec inverse_keep = hn::Set(d, dropout.given ? 1.0F / dropout.key.keep_probability() : 1.0F);
    for (std::int64_t row = rows.first; row < rows.valid; ++row) {
      float* HWY_RESTRICT score = scratch_.scores + row * kPanel + lane;
      Vec s = hn::Load(d, score);
      if (capped) s = tanh(hn::Mul(s, softcap_scale));
      Vec x = hn::Mul(s, scale);
      if constexpr (kExtras) {
        if (has_terms) x = hn::MulAdd(s, scale, hn::Load(d, scratch_.terms + row * kPanel + lane));
        if (has_text) x = hn::Load(d, scratch_.text_scores + row * kPanel + lane);
      }
      const Vec p = normalized ? probability(x, shift[row], log2_sum[row]) : text_.shown(x, x);
      Vec dp = hn::Load(d, scratch_.d_probabilities + row * kPanel + lane);
      Vec p_kept = p;
      if constexpr (kExtras) {
        if (dropout.given) {
          const auto keeps = kept_.at(row, key + lane);
          p_kept = hn::IfThenElseZero(keeps, hn::Mul(p, inverse_keep));
          dp = hn::IfThenElseZero(keeps, hn::Mul(dp, inverse_keep));
        }
      }
      Vec unsloped = normalized ? hn::Mul(p, hn::Sub(dp, hn::Set(d, delta[row]))) : text_.shown(x, dp);
      if constexpr (kExtras) {
        if (has_text) unsloped = text_.through(x, row * kPanel + lane, unsloped, p_kept);
      }
      Vec ds = unsloped;
      if (capped) ds = hn::Mul(ds, hn::NegMulAdd(s, s, hn::Set(d, 1.0F)));
      if constexpr (kExtras) {
        if (has_text) ds = text_.shown(x, ds);  // whatever the product holds
      }
      if constexpr (kMasked) {
        const auto seen = visible.contains(row);
        p_kept = hn::IfThenElseZero(seen, p_kept);
        ds = hn::IfThenElseZero(seen, ds);
        unsloped = hn::IfThenElseZero(seen, unsloped);
      }
      if constexpr (kExtras) {
        if (wants_d_bias) hn::Store(unsloped, d, scratch_.terms + row * kPanel + lane);
      }
      hn::Store(p_kept, d, score);
      hn::Store(ds, d, d_scores + row * kPanel + lane);
    }
    for (std::int64_t row = rows.valid; row < rows.last; ++row) {
      hn::Store(hn::Zero(d), d, scratch_.scores + row * kPanel + lane);
      hn::Store(hn::Zero(d), d, d_scores + row * kPanel + lane);
    }
  }

  /// sums^T[column][key lanes] += left^T * right over rows [first, last).
  void add_columns(int vectors, const float* left, PackedLayout layout, std::int64_t columns, const float* right,
                   std::int64_t first, std::int64_t last, float* HWY_RESTRICT sums) {
    const float* rows = left + first / kStrip * layout.group_stride;
    with_vectors(vectors, [&](auto own) {
      for (std::int64_t c = 0; c < columns; c += kStrip) {
        multiply_columns<own, kPanel>(rows + c / kStrip * layout.strip_stride, layout.group_stride,
                                      (last - first) / kStrip, right + first * kPanel)
            .add_to(sums + c * kPanel, kPanel);
      }
    });
  }

  /// add_columns over visible pairs alone.
  void add_visible(int vectors, const float* left, PackedLayout layout, std::int64_t columns, const float* right,
                   std::int64_t first, std::int64_t last, const std::int64_t* begin, const std::int64_t* end,
                   std::int64_t row_begin, float* HWY_RESTRICT sums) {
    const Floats d;
    for (int n = 0; n < vectors; ++n) {
      const LaneInterval visible(begin + n * kLanes, end + n * kLanes, row_begin);
      for (std::int64_t c = 0; c < columns; ++c) {
        float* HWY_RESTRICT at = sums + c * kPanel + n * kLanes;
        Vec sum = hn::Load(d, at);
        for (std::int64_t row = first; row < last; ++row) {
          const Vec x = hn::Set(d, left[row / kStrip * layout.group_stride + c / kStrip * layout.strip_stride +
                                        row % kStrip * kStrip + c % kStrip]);
          const Vec y = hn::Load(d, right + row * kPanel + n * kLanes);
          auto seen = visible.contains(row);
          if (text_.has_mask()) seen = hn::And(seen, hn::Ne(y, hn::Zero(d)));  // NaN is seen
          sum = hn::IfThenElse(seen, hn::MulAdd(x, y, sum), sum);
        }
        hn::Store(sum, d, at);
      }
    }
  }

  /// dQ sums of the block += dS K, when all key blocks before this one have added theirs.
  void add_query_gradient(std::int64_t row_begin, std::int64_t rows) {
    std::atomic<std::int32_t>& turn = queries_of_.turn[row_begin / task_.tiles.block_m];
    const auto own = static_cast<std::int32_t>(task_.key_begin / task_.tiles.block_n);
    wait_for_turn(turn, own);
    float* sums = queries_of_.dq + row_begin / task_.tiles.block_m * padded_block() * wide_d_;
    if (hidden_poison_) {
      add_visible_queries(row_begin, rows, sums);
    } else {
      for (std::int64_t c = 0; c < wide_d_; c += kWidePanel) {
        for (std::int64_t row = 0; row < rows; row += kWideRows) {
          multiply_rows<kWideRows, kWideVecs, kPanel, kWidePanel>(
              scratch_.d_scores + row * kPanel, block_rows_ * kPanel, count_, scratch_.wide_keys + c * count_)
              .add_to(sums + row * wide_d_ + c, wide_d_);
        }
      }
    }
    pass_turn(turn, own, queries_of_.blocks, row_begin / queries_of_.q.group, task_.tiles.block_n, task_.visible.keys);
  }

  void add_visible_queries(std::int64_t row_begin, std::int64_t rows, float* HWY_RESTRICT sums) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t key = 0; key < count_; ++key) {
        if (row_begin + row < scratch_.row_begin[key] || row_begin + row >= scratch_.row_end[key]) continue;
        const float ds = scratch_.d_scores[key / kPanel * block_rows_ * kPanel + row * kPanel + key % kPanel];
        if (ds == 0.0F && text_.has_mask()) continue;
        for (std::int64_t c = 0; c < wide_d_; ++c) {
          const float k = scratch_.wide_keys[c / kWidePanel * count_ * kWidePanel + key * kWidePanel + c % kWidePanel];
          sums[row * wide_d_ + c] += ds * k;
        }
      }
    }
  }

  void finish() {
    pass_captures(task_.capture_turn);
    KeyGradients(task_, scratch_, count_).write();
  }

  const BackwardTask& task_;
  BackwardQueries queries_of_;  // the current head's, or group's
  const BackwardScratch scratch_;
  const std::int64_t count_;        // keys of this block
  const std::int64_t padded_keys_;  // in whole panels
  const std::int64_t d_;            // columns of scores' products in whole strips: of q and, behind them, of qv
  const std::int64_t dv_;           // head_dim_v in whole strips
  const std::int64_t wide_d_;       // the same in whole wide panels each
  const std::int64_t qv_first_;     // the first of d_ that is qv's
  const PackedLayout query_layout_;
  const PackedLayout d_o_layout_;
  BiasGradient bias_gradient_;
  const BackwardText text_;
  const bool has_extras_;        // terms, dropout or the bias's gradient
  KeptKeys kept_;                // of dropout
  std::int64_t block_rows_ = 0;  // of the current query block, padded
  bool is_last_head_ = true;
  bool keys_finite_ = true;
  bool hidden_poison_ = false;
};

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_BACKWARD_INL_H_
