// SPDX-License-Identifier: Apache-2.0
// One block of query rows against all its keys, with tangents: the forward's pass, in which S' = scale (Q' K^T + Q
// K'^T) stands beside S, and O' sums P V' + (P S') V beside O. Equations: include/strobe/jvp.h.
#if defined(STROBE_CPU_JVP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_JVP_INL_H_
#undef STROBE_CPU_JVP_INL_H_
#else
#define STROBE_CPU_JVP_INL_H_
#endif

#include <algorithm>

#include "cpu/kernels/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

class JvpBlock : private ForwardBlock {
 public:
  JvpBlock(const JvpTask& task, std::byte* scratch)
      : ForwardBlock(task.forward, scratch),
        tangents_(task),
        more_(scratch, task_.head_dim, task_.head_dim_v, task_.tiles, kernel_traits()),
        has_scores_(task.q_tangent.data != nullptr || task.k_tangent.data != nullptr),
        has_values_(task.v_tangent.data != nullptr) {}

  void run() {
    begin();
    for_each_tile([&](std::int64_t key_begin, std::int64_t key_end) { tile(key_begin, key_end); });
    for (std::int64_t index = 0; index < parts(); ++index) finish_part(part(index));
  }

 private:
  void begin() {
    ForwardBlock::begin();
    std::fill_n(more_.row_sum, lanes(), 0.0F);
    if (tangents_.q_tangent.data == nullptr) return;
    for (std::int64_t index = 0; index < parts(); ++index) {
      const Part own = part(index);
      pack_panels(task_.dtype, {tangents_.q_tangent, own.row, own.rows, task_.head_dim}, round_up(own.rows, kLanes), d_,
                  task_.query_factor, more_.row, more_.queries + own.lane * d_);
    }
  }

  void tile(std::int64_t key_begin, std::int64_t key_end) {
    pack_tile(key_begin, key_end);
    const std::int64_t count = key_end - key_begin;
    const std::int64_t packed = round_up(count, kStrip);
    const ConstRows& k = tangents_.k_tangent;
    const ConstRows& v = tangents_.v_tangent;
    if (k.data != nullptr) {
      pack_tiles(task_.dtype, {k, key_begin, count, task_.head_dim}, packed, key_layout_, more_.keys);
    }
    if (has_values_) {
      pack_tiles(task_.dtype, {v, key_begin, count, task_.head_dim_v}, packed, value_layout_, more_.values);
    }
    // As in the forward: 0 times what a hidden key holds may be NaN.
    const bool hidden_poison =
        hides_any(key_begin, key_end) && (!all_finite(scratch_.values, value_layout_, packed, dv_) ||
                                          (has_values_ && !all_finite(more_.values, value_layout_, packed, dv_)));
    for_each_panel(key_begin, [&](const Part& rest) { panel(rest, key_begin, count, hidden_poison); });
  }

  /// The first panel of `rest`.
  void panel(const Part& rest, std::int64_t key_begin, std::int64_t count, bool hidden_poison) {
    const PanelKeys keys = panel_keys(rest, key_begin, count);
    if (keys.first >= keys.last) return;
    const int vectors = panel_vectors(rest.rows);
    with_vectors(vectors, [&](auto own) { multiply_queries<own>(rest.lane, keys.first, keys.last); });
    if (has_scores_) {
      with_vectors(vectors, [&](auto own) { multiply_tangents<own>(rest.lane, keys.first, keys.last); });
    }
    if (task_.score_scale.capped) cap(keys);
    softmax(rest, key_begin, count, keys);
    if (has_scores_) {
      if (keys.masked) hide(rest, key_begin, keys, more_.scores, 0.0F);
      weigh(rest, keys);
    }
    if (task_.dropout.given) {
      drop(rest, key_begin, keys.first, keys.last, scratch_.scores);
      if (has_scores_) drop(rest, key_begin, keys.first, keys.last, more_.scores);
    }
    add_value_tangents(rest, key_begin, keys, hidden_poison);
    add_values(rest, key_begin, keys, hidden_poison);
  }

  /// S'^T = K Q'^T + K' Q^T of keys [first, last) and kVecs vectors of queries, without the scale.
  template <int kVecs>
  HWY_INLINE void multiply_tangents(std::int64_t lane, std::int64_t first, std::int64_t last) {
    for (std::int64_t key = first; key < last; key += kStrip) {
      const std::int64_t strip = key / kStrip * key_layout_.group_stride;
      Accumulators<kStrip, kVecs> sums;
      if (tangents_.q_tangent.data != nullptr) {
        sums = multiply_rows<kStrip, kVecs, kStrip, kPanel>(scratch_.keys + strip, key_layout_.strip_stride, d_,
                                                            more_.queries + lane * d_);
      }
      if (tangents_.k_tangent.data != nullptr) {
        sums = multiply_rows<kStrip, kVecs, kStrip, kPanel>(more_.keys + strip, key_layout_.strip_stride, d_,
                                                            scratch_.queries + lane * d_, sums);
      }
      sums.store_to(more_.scores + key * kPanel, kPanel);
    }
  }

  /// s -> t = tanh(softcap_scale * s), and s' -> (1 - t^2) s'.
  void cap(const PanelKeys& keys) {
    cap_scores(scratch_.scores, keys.first, keys.last, task_.score_scale.softcap_scale);
    if (!has_scores_) return;
    const Floats d;
    const Vec one = hn::Set(d, 1.0F);
    for (std::int64_t i = keys.first * kPanel; i < keys.last * kPanel; i += kLanes) {
      const Vec t = hn::Load(d, scratch_.scores + i);
      hn::Store(hn::Mul(hn::Load(d, more_.scores + i), hn::NegMulAdd(t, t, one)), d, more_.scores + i);
    }
  }

  /// P S' in place of S', and its sums.
  void weigh(const Part& rest, const PanelKeys& keys) {
    const Floats d;
    const ScoreScale& scale = task_.score_scale;
    const Vec factor = hn::Set(d, scale.capped ? scale.scale * scale.softcap_scale : scale.scale);
    for (int n = 0; n < panel_vectors(rest.rows); ++n) {
      const float* HWY_RESTRICT p = scratch_.scores + n * kLanes;
      float* HWY_RESTRICT tangents = more_.scores + n * kLanes;
      FixedVec sums[2] = {hn::Zero(d), hn::Zero(d)};  // one would wait for the last sum at every key
      for (std::int64_t key = keys.first; key < keys.last; key += 2) {
        HWY_UNROLL(2) for (int i = 0; i < 2; ++i) {
          const std::int64_t at = (key + i) * kPanel;
          const Vec weighted = hn::Mul(hn::Load(d, p + at), hn::Mul(hn::Load(d, tangents + at), factor));
          hn::Store(weighted, d, tangents + at);
          sums[i] = hn::Add(sums[i], weighted);
        }
      }
      float* HWY_RESTRICT row_sum = more_.row_sum + rest.lane + n * kLanes;
      const Vec rescale = hn::Load(d, scratch_.rescale + n * kLanes);
      hn::Store(hn::MulAdd(hn::Load(d, row_sum), rescale, hn::Add(sums[0], sums[1])), d, row_sum);
    }
  }

  /// O' of the panel's rows as ForwardBlock::add_values() does O, which comes after it.
  void add_value_tangents(const Part& rest, std::int64_t key_begin, const PanelKeys& keys, bool hidden_poison) {
    const bool summed = scratch_.summed[rest.lane / kPanel];
    if (keys.masked && hidden_poison) {
      if (!summed) clear_tangents(rest.lane);
      add_visible_tangents(rest, keys, key_begin);
    } else {
      with_vectors(panel_vectors(rest.rows), [&](auto own) { multiply_values<own>(rest.lane, keys, summed); });
    }
  }

  void clear_tangents(std::int64_t lane) { std::fill_n(more_.output + lane * dv_, kPanel * dv_, 0.0F); }

  /// O'^T = rescale O'^T + V'^T P^T + V^T (P S')^T, without the first where nothing has been `summed` yet.
  template <int kVecs>
  HWY_INLINE void multiply_values(std::int64_t lane, const PanelKeys& keys, bool summed) {
    float* output = more_.output + lane * dv_;
    const std::int64_t strips = (keys.last - keys.first) / kStrip;
    const std::int64_t scores = keys.first * kPanel;
    for (std::int64_t c = 0; c < dv_; c += kStrip) {
      const std::int64_t tile = value_tile(keys.first, c) - scratch_.values;
      Accumulators<kStrip, kVecs> sums;
      if (has_values_) {
        sums = multiply_columns<kVecs, kPanel>(more_.values + tile, value_layout_.group_stride, strips,
                                               scratch_.scores + scores);
      }
      if (has_scores_) {
        sums = multiply_columns<kVecs, kPanel>(scratch_.values + tile, value_layout_.group_stride, strips,
                                               more_.scores + scores, sums);
      }
      summed ? sums.rescale_add_to(output + c * kPanel, kPanel, scratch_.rescale)
             : sums.store_to(output + c * kPanel, kPanel);
    }
  }

  /// multiply_values() over visible pairs alone.
  void add_visible_tangents(const Part& rest, const PanelKeys& keys, std::int64_t key_begin) {
    const Floats d;
    for (int n = 0; n < panel_vectors(rest.rows); ++n) {
      const LaneInterval visible = visible_keys(rest, n, key_begin);
      const Vec rescale = hn::Load(d, scratch_.rescale + n * kLanes);
      for (std::int64_t c = 0; c < dv_; ++c) {
        float* HWY_RESTRICT out = more_.output + rest.lane * dv_ + c * kPanel + n * kLanes;
        Vec sum = hn::Zero(d);
        for (std::int64_t key = keys.first; key < keys.last; ++key) {
          const std::int64_t at = value_tile(key, c) - scratch_.values + key % kStrip * kStrip + c % kStrip;
          const std::int64_t score = key * kPanel + n * kLanes;
          Vec own = sum;
          if (has_values_) {
            own = hn::MulAdd(hn::Set(d, more_.values[at]), hn::Load(d, scratch_.scores + score), own);
          }
          if (has_scores_) {
            own = hn::MulAdd(hn::Set(d, scratch_.values[at]), hn::Load(d, more_.scores + score), own);
          }
          sum = hn::IfThenElse(visible.contains(key), own, sum);
        }
        hn::Store(hn::MulAdd(hn::Load(d, out), rescale, sum), d, out);
      }
    }
  }

  void finish_part(const Part& part) {
    const std::int64_t stride = round_up(dv_, kLanes);
    for (std::int64_t row = 0; row < part.rows; row += kTransposedRows) {
      const std::int64_t lane = part.lane + row;
      if (row % kPanel == 0 && !scratch_.summed[lane / kPanel]) {
        clear_output(lane);
        clear_tangents(lane);
      }
      const std::int64_t at = round_down(lane, kPanel) * dv_ + lane % kPanel;
      transpose_columns(scratch_.output + at, kPanel, dv_, stride, scratch_.row);
      transpose_columns(more_.output + at, kPanel, dv_, stride, more_.row);
      for (std::int64_t i = 0; i < std::min(kTransposedRows, part.rows - row); ++i) {
        finish_row(part.row + row + i, lane + i, scratch_.row + i * stride, more_.row + i * stride);
      }
    }
  }

  /// Divides both by the row's sum, and takes LSE' O off the tangent.
  void finish_row(std::int64_t row, std::int64_t lane, float* HWY_RESTRICT output, float* HWY_RESTRICT tangent) {
    const float factor =
        finish_statistics(task_, row, RowMaximum{.units = scratch_.row_max[lane]}, scratch_.row_sum[lane]);
    const float keep = task_.dropout.given ? task_.dropout.key.keep_probability() : 1.0F;
    const float lse_tangent = more_.row_sum[lane] * (factor * keep);
    for (std::int64_t c = 0; c < task_.head_dim_v; ++c) {
      output[c] = output[c] * factor + 0.0F;  // of a sum that has underflowed to -0, too, as in the forward
      tangent[c] = tangent[c] * factor - lse_tangent * output[c];
    }
    if (tangents_.wants_o) store_result(task_.dtype_o, task_.o, row, output, task_.head_dim_v);
    store_result(task_.dtype_o, tangents_.o_tangent, row, tangent, task_.head_dim_v);
    const GroupRows<float*>& lse = tangents_.lse_tangent;
    if (lse.data != nullptr) lse.data[lse.offset(row)] = lse_tangent;
  }

  const JvpTask& tangents_;
  const JvpScratch more_;
  const bool has_scores_;  // whether S' is not zero
  const bool has_values_;  // whether V' is not zero
};

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_JVP_INL_H_
