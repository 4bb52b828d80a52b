// SPDX-License-Identifier: Apache-2.0
// One block of query rows against all its keys: FlashAttention-2's forward (algorithm 1), queries across the vector
// lanes.
//
// S^T = K Q^T and O^T = V^T P^T keep a query's statistics in one lane, so the online softmax needs no sum across lanes,
// P feeds the second product from where the first left S, and neither K nor V is ever transposed.
#if defined(STROBE_CPU_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_FORWARD_INL_H_
#undef STROBE_CPU_FORWARD_INL_H_
#else
#define STROBE_CPU_FORWARD_INL_H_
#endif

#include <optional>
#include <utility>

#include "cpu/kernels/convert-inl.h"
#include "cpu/kernels/dropout-inl.h"
#include "cpu/kernels/eight_bit-inl.h"
#include "cpu/kernels/multiply-inl.h"
#include "cpu/kernels/pack-inl.h"
#include "cpu/kernels/query_block-inl.h"
#include "cpu/kernels/row_statistics.h"
#include "cpu/kernels/scores-inl.h"
#include "cpu/kernels/terms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

class ForwardBlock : protected QueryBlock {
 public:
  ForwardBlock(const ForwardTask& task, std::byte* scratch)
      : QueryBlock(task, scratch),
        d_(scratch_.columns),
        dv_(scratch_.columns_v),
        qv_first_(round_up(task.head_dim, kStrip)),
        key_layout_(rows_together(d_)) {}

  void run() {
    begin();
    for_each_tile([&](std::int64_t key_begin, std::int64_t key_end) { tile(key_begin, key_end); });
    finish();
  }

 protected:
  DType key_dtype() const { return task_.stored.given() ? task_.stored.dtype : task_.dtype; }

  void begin() {
    // Where nothing is normalized every row's maximum is 0 and its sum 1, and nothing is ever rescaled.
    std::fill_n(scratch_.row_max, lanes(), task_.normalized ? -kInfinity : 0.0F);
    if (!task_.normalized) std::fill_n(scratch_.rescale, kPanel, 1.0F);
    std::fill_n(scratch_.row_offset, lanes(), 0.0F);
    std::fill_n(scratch_.block_factor, kPanel, 1.0F);
    std::fill_n(scratch_.row_sum, lanes(), task_.normalized ? 0.0F : 1.0F);
    std::fill_n(scratch_.summed, ceil_div(lanes(), kPanel), false);
    for (std::int64_t index = 0; index < parts(); ++index) begin_part(part(index));
  }

  void begin_part(const Part& part) {
    prefetch_first_rows(task_.dtype, task_.q, part.row, part.rows, task_.head_dim);
    prefetch_first_rows(key_dtype(), task_.k, first_tile(), task_.visible.keys - first_tile(), task_.head_dim);
    const std::int64_t lanes = round_up(part.rows, kLanes);
    float* queries = scratch_.queries + part.lane * d_;
    pack_panels(task_.dtype, {task_.q, part.row, part.rows, task_.head_dim}, lanes, qv_first_, task_.query_factor,
                scratch_.row, queries, d_);
    if (task_.qv_columns > 0) {
      pack_panels(task_.dtype, {task_.qv, part.row, part.rows, task_.qv_columns}, lanes, dv_, task_.query_factor,
                  scratch_.row, queries + qv_first_ * kPanel, d_);
    }
    for (std::int64_t i = 0; i < lanes; ++i) {  // lanes past the last row repeat it
      const std::int64_t row = part.row + std::min(i, part.rows - 1);
      const std::int64_t position = row_place(row, task_.q.group).position;
      scratch_.visible_begin[part.lane + i] = task_.visible.begin(position);
      scratch_.visible_end[part.lane + i] = task_.visible.end(position);
    }
    if (task_.eight_bit.given()) {
      load_query_scales(task_.eight_bit, task_.q.group, part.row, part.rows, lanes, task_.query_factor,
                        scratch_.query_scales + part.lane, scratch_.query_shifts + part.lane);
    }
  }

  /// Keys [key_begin, key_end) against every panel of queries.
  void tile(std::int64_t key_begin, std::int64_t key_end) {
    const std::int64_t count = key_end - key_begin;
    if (visibility({.row = task_.row_begin, .rows = rows_}, key_begin, 0, count) == TileVisibility::hidden) return;
    pack_tile(key_begin, key_end);
    // A hidden key has probability 0, and 0 * NaN is NaN: such a tile takes the path that skips hidden pairs.
    const bool hidden_poison = (hides_any(key_begin, key_end) || task_.expression.has_mask()) &&
                               !all_finite(scratch_.values, value_layout_, round_up(count, kStrip), dv_);
    for_each_panel(key_begin, [&](const Part& rest) { panel(rest, key_begin, count, hidden_poison); });
  }

  void pack_tile(std::int64_t key_begin, std::int64_t key_end) {
    const std::int64_t count = key_end - key_begin;
    const std::int64_t packed = round_up(count, kStrip);
    value_layout_ = columns_together(packed);
    if (!task_.eight_bit.given()) prefetch_first_rows(key_dtype(), task_.v, key_begin, count, task_.head_dim_v);
    const StoredTile stored{task_.stored, task_.dtype, key_begin, count, scratch_.converted};
    pack_tiles(task_.dtype, {stored.keys(task_.k, task_.head_dim), stored.first(), count, task_.head_dim}, packed,
               key_layout_, scratch_.keys);
    pack_values(stored, key_begin, count, packed);
    // The first rows of O, which finish() writes; it fetches the next ones itself.
    prefetch_rows(task_.dtype_o, task_.o, task_.row_begin, task_.row_begin + std::min(rows_, kTransposedRows),
                  task_.head_dim_v);
  }

  void pack_values(const StoredTile& stored, std::int64_t key_begin, std::int64_t count, std::int64_t packed) {
    if (!task_.eight_bit.given()) {
      const ConstRows rows = stored.values(task_.v, task_.head_dim_v);
      const Source values{rows, stored.first(), count, task_.head_dim_v};
      pack_tiles(task_.dtype, values, packed, value_layout_, scratch_.values);
      if (task_.qv_columns > 0) {
        pack_tiles(task_.dtype, values, packed, key_layout_,
                   scratch_.keys + qv_first_ / kStrip * key_layout_.strip_stride);
      }
      return;
    }
    load_key_scales(task_.eight_bit, key_begin, count, packed, scratch_);
    if (task_.dtype == DType::int8) {
      pack_values_of<std::int8_t>(task_.v, key_begin, count, task_.head_dim_v, packed, value_layout_, scratch_.values);
    } else {
      pack_values_of<float8_e4m3>(task_.v, key_begin, count, task_.head_dim_v, packed, value_layout_, scratch_.values);
    }
  }

  /// The first panel of `rest`.
  void panel(const Part& rest, std::int64_t key_begin, std::int64_t count, bool hidden_poison) {
    const std::int64_t lane = rest.lane;
    const int vectors = panel_vectors(rest.rows);
    const PanelKeys keys = panel_keys(rest, key_begin, count);
    if (keys.first >= keys.last) return;
    const TileVisibility seen = visibility({.row = rest.row, .rows = std::min(kPanel, rest.rows)}, key_begin,
                                           keys.first, std::min(keys.last, count));
    if (seen == TileVisibility::hidden) return;

    with_vectors(vectors, [&](auto own) { multiply_queries<own>(lane, keys.first, keys.last); });
    if (task_.eight_bit.given()) {
      scale_scores(scratch_, lane, vectors, keys.first, keys.last, task_.needs_shifted_products());
    }
    if (task_.score_scale.capped) cap_scores(scratch_.scores, keys.first, keys.last, task_.score_scale.softcap_scale);
    softmax(rest, key_begin, count, keys, seen);
    if (task_.dropout.given) drop(rest, key_begin, keys.first, keys.last, scratch_.scores);
    add_values(rest, key_begin, keys, hidden_poison);
  }

  /// Scores of the panel to probabilities, those of hidden keys to 0.
  void softmax(const Part& rest, std::int64_t key_begin, std::int64_t count, const PanelKeys& keys,
               TileVisibility seen = TileVisibility::full) {
    if (task_.expression.given() || !task_.normalized) return softmax_of_text(rest, key_begin, count, keys, seen);
    if (task_.terms.given()) return softmax_of_terms(rest, key_begin, count, keys.first, keys.last, keys.masked);
    const int vectors = panel_vectors(rest.rows);
    if (keys.masked) hide(rest, key_begin, keys, scratch_.scores, -kInfinity);
    softmax(rest.lane, vectors, keys.first, keys.last);
  }

  /// O of the panel's rows, with what it was before rescaled.
  void add_values(const Part& rest, std::int64_t key_begin, const PanelKeys& keys, bool hidden_poison) {
    const std::int64_t lane = rest.lane;
    const int vectors = panel_vectors(rest.rows);
    bool& summed = scratch_.summed[lane / kPanel];
    if ((keys.masked || task_.expression.has_mask()) && hidden_poison) {
      if (!summed) clear_output(lane);
      add_visible_values(rest, vectors, keys.first, keys.last, key_begin);
    } else {
      with_vectors(vectors, [&](auto own) { multiply_values<own>(lane, keys.first, keys.last, summed); });
    }
    summed = true;
  }

  void clear_output(std::int64_t lane) { std::fill_n(scratch_.output + lane * dv_, kPanel * dv_, 0.0F); }

  /// S^T = K Q^T of keys [first, last) and kVecs vectors of queries, with V qv^T where there is qv.
  template <int kVecs>
  HWY_INLINE void multiply_queries(std::int64_t lane, std::int64_t first, std::int64_t last) {
    for (std::int64_t key = first; key < last; key += kStrip) {
      multiply_rows<kStrip, kVecs, kStrip, kPanel>(scratch_.keys + key / kStrip * key_layout_.group_stride,
                                                   key_layout_.strip_stride, d_, scratch_.queries + lane * d_)
          .store_to(scratch_.scores + key * kPanel, kPanel);
    }
  }

  /// O^T = rescale O^T + V^T P^T of the same, or V^T P^T where nothing has been `summed` yet.
  template <int kVecs>
  HWY_INLINE void multiply_values(std::int64_t lane, std::int64_t first, std::int64_t last, bool summed) {
    float* output = scratch_.output + lane * dv_;
    for (std::int64_t c = 0; c < dv_; c += kStrip) {
      auto sums = multiply_columns<kVecs, kPanel>(value_tile(first, c), value_layout_.group_stride,
                                                  (last - first) / kStrip, scratch_.scores + first * kPanel);
      if (task_.eight_bit.given()) sums.scale(scratch_.block_factor);
      summed ? sums.rescale_add_to(output + c * kPanel, kPanel, scratch_.rescale)
             : sums.store_to(output + c * kPanel, kPanel);
    }
  }

  /// Online softmax over rows [first, last) of the panel's scores: P in place of S, statistics updated, the factor for
  /// what has been summed before in scratch_.rescale.
  void softmax(std::int64_t lane, int vectors, std::int64_t first, std::int64_t last) {
    const Floats d;
    static_assert(kStrip % 4 == 0);
    for (int n = 0; n < vectors; ++n) {
      const float* HWY_RESTRICT scores = scratch_.scores + n * kLanes;
      FixedVec top[4];  // one would wait for the last maximum at every key
      for (FixedVec& one : top) one = hn::Set(d, -kInfinity);
      for (std::int64_t key = first; key < last; key += 4) {
        HWY_UNROLL(4) for (int i = 0; i < 4; ++i) top[i] = hn::Max(top[i], hn::Load(d, scores + (key + i) * kPanel));
      }
      const Vec all = hn::Max(hn::Max(top[0], top[1]), hn::Max(top[2], top[3]));
      exponentiate(lane, n * kLanes, first, last, all);
    }
  }

  /// The same of products that become scores first, which ALiBi or a bias joins.
  void softmax_of_terms(const Part& rest, std::int64_t key_begin, std::int64_t count, std::int64_t first,
                        std::int64_t last, bool masked) {
    add_terms(rest, key_begin, count, first, last, masked,
              [&](int n, Vec top) { exponentiate(rest.lane, n * kLanes, first, last, top); });
  }

  /// The same where a text has its say after the terms, or what it makes of the scores stays as it is.
  void softmax_of_text(const Part& rest, std::int64_t key_begin, std::int64_t count, const PanelKeys& keys,
                       TileVisibility seen) {
    if (task_.works_on_scores() || !task_.normalized) {
      add_terms(rest, key_begin, count, keys.first, keys.last, false, [](int, Vec) {});
    }
    if (task_.expression.given()) {
      const ExpressionPanel panel = expression_panel({.row = rest.row, .rows = std::min(kPanel, rest.rows)}, key_begin,
                                                     keys.first, std::min(keys.last, count), keys.last - keys.first);
      transform_scores(task_.expression, panel, seen == TileVisibility::partial, scratch_.scores + keys.first * kPanel);
    }
    if (!task_.normalized) clear_infinite(scratch_.scores, keys.first, keys.last);
    if (keys.masked) hide(rest, key_begin, keys, scratch_.scores, task_.normalized ? -kInfinity : 0.0F);
    if (!task_.normalized) return;
    softmax(rest.lane, panel_vectors(rest.rows), keys.first, keys.last);
  }

  /// Keys [first, last) of the tile, which has `along` of them with those that only fill strips.
  ExpressionPanel expression_panel(const Part& rows, std::int64_t key_begin, std::int64_t first, std::int64_t last,
                                   std::int64_t along) const {
    return {.row = rows.row,
            .rows = rows.rows,
            .group = task_.q.group,
            .key = key_begin + first,
            .keys = last - first,
            .along = along,
            .width = kPanel};
  }

  TileVisibility visibility(const Part& rows, std::int64_t key_begin, std::int64_t first, std::int64_t last) const {
    if (!task_.expression.has_mask()) return TileVisibility::full;
    return tile_visibility(task_.expression, expression_panel(rows, key_begin, first, last, last - first));
  }

  /// Products become scores. finish(n, top) follows for each vector of queries with their largest.
  template <class Finish>
  void add_terms(const Part& rest, std::int64_t key_begin, std::int64_t count, std::int64_t first, std::int64_t last,
                 bool masked, const Finish& finish) {
    const TermsPanel terms{.terms = task_.terms,
                           .diagonal = task_.visible.diagonal,
                           .group = task_.q.group,
                           .row = rest.row,
                           .rows = std::min(kPanel, rest.rows),
                           .key_begin = key_begin,
                           .keys = count,
                           .more_rows = std::max<std::int64_t>(rest.rows - kPanel, 0)};
    const int vectors = panel_vectors(rest.rows);
    std::optional<TermsLanes> lanes[kTileVecs];
    for (int n = 0; n < vectors; ++n) {
      lanes[n].emplace(terms, n * kLanes, visible_keys(rest, n, key_begin));
    }
    for (std::int64_t key = first; key < last; key += kBiasKeys) {
      const std::int64_t end = std::min(key + kBiasKeys, last);
      if (task_.terms.bias.data != nullptr) pack_bias(terms, key, end, first, last, scratch_.row, scratch_.bias);
      for (int n = 0; n < vectors; ++n) {
        lanes[n]->add(masked, key, end, task_.score_scale.scale, scratch_.bias + n * kLanes,
                      scratch_.scores + n * kLanes);
      }
    }
    for (int n = 0; n < vectors; ++n) finish(n, lanes[n]->top());
  }

  /// P = exp2(factor (S - max)) for one vector of queries, at `lane` of the panel that begins at `panel`, whose largest
  /// score in these rows is `top`.
  HWY_INLINE void exponentiate(std::int64_t panel, std::int64_t lane, std::int64_t first, std::int64_t last, Vec top) {
    const Floats d;
    const Vec factor = hn::Set(d, task_.exponent_factor());
    if (task_.eight_bit.given()) {
      return exponentiate_to_8_bits(scratch_, task_.dtype, panel, lane, first, last, top, factor);
    }
    float* HWY_RESTRICT scores = scratch_.scores + lane;
    float* HWY_RESTRICT row_max = scratch_.row_max + panel + lane;
    float* HWY_RESTRICT row_sum = scratch_.row_sum + panel + lane;
    const Vec old_max = hn::Load(d, row_max);
    const Vec new_max = hn::Max(old_max, top);
    // A row that has seen no key yet keeps -inf; subtracting 0 instead makes its probabilities 0 and not NaN.
    const Vec shift = hn::IfThenElse(hn::Eq(new_max, hn::Set(d, -kInfinity)), hn::Zero(d), new_max);
    Vec sum = hn::Zero(d);
    for (std::int64_t key = first; key < last; ++key) {
      const Vec p = exp2(hn::Mul(hn::Sub(hn::Load(d, scores + key * kPanel), shift), factor));
      hn::Store(p, d, scores + key * kPanel);
      sum = hn::Add(sum, p);
    }
    const Vec rescale = exp2(hn::Mul(hn::Sub(old_max, shift), factor));
    hn::Store(rescale, d, scratch_.rescale + lane);
    hn::Store(new_max, d, row_max);
    hn::Store(hn::MulAdd(hn::Load(d, row_sum), rescale, sum), d, row_sum);
  }

  /// Zeros dropped probabilities, after their sums were taken. What is kept is divided by the keep probability at the
  /// end, with the rest of O.
  void drop(const Part& rest, std::int64_t key_begin, std::int64_t first, std::int64_t last, float* probabilities) {
    drop_keys(task_.dropout, task_.q.group, rest.row, panel_vectors(rest.rows), key_begin, first, last, probabilities);
  }

  /// O^T = rescale O^T + V^T P^T over visible pairs alone, in the order of multiply_values().
  void add_visible_values(const Part& rest, int vectors, std::int64_t first, std::int64_t last,
                          std::int64_t key_begin) {
    const Floats d;
    float* HWY_RESTRICT output = scratch_.output + rest.lane * dv_;
    for (int n = 0; n < vectors; ++n) {
      const LaneInterval visible = visible_keys(rest, n, key_begin);
      const Vec factor = hn::Load(d, scratch_.block_factor + n * kLanes);
      for (std::int64_t c = 0; c < dv_; ++c) {
        float* HWY_RESTRICT out = output + c * kPanel + n * kLanes;
        Vec sum = hn::Zero(d);
        for (std::int64_t key = first; key < last; ++key) {
          const Vec value = hn::Set(d, value_tile(key, c)[key % kStrip * kStrip + c % kStrip]);
          const Vec p = hn::Load(d, scratch_.scores + key * kPanel + n * kLanes);
          sum = hn::IfThenElse(hn::And(visible.contains(key), shown(p)), hn::MulAdd(value, p, sum), sum);
        }
        if (task_.eight_bit.given()) sum = hn::Mul(sum, factor);
        hn::Store(hn::MulAdd(hn::Load(d, out), hn::Load(d, scratch_.rescale + n * kLanes), sum), d, out);
      }
    }
  }

  /// A text hides pairs by a probability of 0, which one that is shown may have as well; NaN is shown.
  HWY_INLINE hn::Mask<Floats> shown(Vec p) const {
    const Vec zero = hn::Zero(Floats());
    return task_.expression.has_mask() ? hn::Ne(p, zero) : hn::Eq(zero, zero);
  }

  void finish() {
    for (std::int64_t index = 0; index < parts(); ++index) finish_part(part(index));
  }

  void finish_part(const Part& part) {
    const std::int64_t stride = round_up(dv_, kLanes);
    for (std::int64_t row = 0; row < part.rows; row += kTransposedRows) {
      const std::int64_t lane = part.lane + row;
      if (row % kPanel == 0 && !scratch_.summed[lane / kPanel]) clear_output(lane);
      prefetch_rows(task_.dtype_o, task_.o, part.row + std::min(row + kTransposedRows, part.rows),
                    part.row + std::min(row + 2 * kTransposedRows, part.rows), task_.head_dim_v);
      transpose_columns(scratch_.output + round_down(lane, kPanel) * dv_ + lane % kPanel, kPanel, dv_, stride,
                        scratch_.row);
      for (std::int64_t i = 0; i < std::min(kTransposedRows, part.rows - row); ++i) {
        finish_row(part.row + row + i, lane + i, scratch_.row + i * stride);
      }
    }
  }

  /// Divides the row's output by its sum, in place where it is rotated after that, and writes what the caller asked
  /// for.
  void finish_row(std::int64_t row, std::int64_t lane, float* HWY_RESTRICT output) {
    const RowMaximum maximum{.units = scratch_.row_max[lane],
                             .shift = task_.eight_bit.given() ? scratch_.query_shifts[lane] : 0.0F,
                             .log2_offset = scratch_.row_offset[lane]};
    float factor = finish_statistics(task_, row, maximum, scratch_.row_sum[lane]);
    // A hidden key's 0 * V makes +0 of a sum that has underflowed to -0: rows that meet no hidden key do the same.
    for (std::int64_t c = 0; c < task_.head_dim_v; ++c) output[c] += 0.0F;
    const Rotation& rotation = task_.eight_bit.rotation;
    if (rotation.given) {
      store_row(output, std::exchange(factor, 1.0F), output, task_.head_dim_v);
      rotate_back(rotation.seed, output, task_.head_dim_v);
    }
    store_result(task_.dtype_o, task_.o, row, output, task_.head_dim_v, factor);
  }

  const float* value_tile(std::int64_t key, std::int64_t column) const {
    return scratch_.values + key / kStrip * value_layout_.group_stride + column / kStrip * value_layout_.strip_stride;
  }

  const std::int64_t d_;         // columns of scores' products in whole strips: of q and, behind them, of qv
  const std::int64_t dv_;        // head_dim_v in whole strips
  const std::int64_t qv_first_;  // the first of qv
  const PackedLayout key_layout_;
  PackedLayout value_layout_{};
};

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_FORWARD_INL_H_
