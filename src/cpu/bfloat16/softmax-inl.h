// SPDX-License-Identifier: Apache-2.0
// The online softmax of one panel of scores in small pieces, so that the products of its neighbours can run between
// them on the matrix unit.
#if defined(STROBE_CPU_BFLOAT16_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BFLOAT16_SOFTMAX_INL_H_
#undef STROBE_CPU_BFLOAT16_SOFTMAX_INL_H_
#else
#define STROBE_CPU_BFLOAT16_SOFTMAX_INL_H_
#endif

#include <optional>

#include "cpu/bfloat16/attributes-inl.h"
#include "cpu/bfloat16/kept_pairs-inl.h"
#include "cpu/bfloat16/scratch.h"
#include "cpu/kernels/task.h"
#include "cpu/kernels/terms-inl.h"

STROBE_BEFORE_BFLOAT16_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// kBlock queries, a lane each, against keys [first, last) of the tile in memory; empty where they see none of it.
struct Panel {
  std::int64_t row = 0;  // of the block
  std::int64_t first = 0;
  std::int64_t last = 0;    // multiples of kBlock, as first
  bool masked = false;      // some pair is hidden
  bool text_hides = false;  // by a text's mask
  int half = 0;             // of the buffers: two panels are in flight
  bool empty() const { return first >= last; }
};

/// Where one panel's softmax reads and writes. Statistics are kBlock floats each.
struct SoftmaxMemory {
  float* scores;            // [keys, kBlock]
  bfloat16* probabilities;  // right operand of O^T = V^T P^T: pairs of keys, two groups of 16 queries
  std::int64_t group_stride;
  float* row_max;
  float* row_sum;
  float* rescale;
  const std::int64_t* visible_begin;
  const std::int64_t* visible_end;
};

/// One pass finds the panel's new maximum, after softcap, ALiBi, bias and masks; a second makes P, rounded to bfloat16,
/// and the row sums of what it was before dropout and rounding.
template <class Unit>
class PanelSoftmax {
 public:
  /// Keys of the tile are counted from key_begin; there are `keys` of them.
  PanelSoftmax(const ForwardTask& task, const Panel& panel, const SoftmaxMemory& memory, std::int64_t key_begin,
               std::int64_t keys)
      : panel_(panel),
        memory_(memory),
        scale_(task.score_scale),
        terms_(terms_of(task, panel, key_begin, keys)),
        text_(task.expression),
        joined_(task.works_on_scores()),
        has_text_(text_.has_score() || panel.text_hides),
        exponent_factor_(task.exponent_factor()),
        kept_(task.dropout, terms_.row, task.q.group),
        key_(panel.first) {
    const Floats d;
    HWY_UNROLL(8) for (int v = 0; v < kBlockVecs; ++v) {
      hn::Store(hn::Set(d, -kInfinity), d, top_ + v * kLanes);
      hn::Store(hn::Zero(d), d, sum_ + v * kLanes);
    }
    if (panel.empty() || !(panel.masked || joined_)) return;
    for (int v = 0; v < kBlockVecs; ++v) {
      visible_[v].emplace(memory.visible_begin + v * kLanes, memory.visible_end + v * kLanes, key_begin);
      visible_[v]->cut(task.tree, terms_.row + v * kLanes, task.q.group, key_begin);
      if (joined_) lanes_[v].emplace(terms_, v * kLanes, *visible_[v]);
    }
  }

  /// Spreads what is to do over `calls` calls of advance().
  void pace(std::int64_t calls) {
    const std::int64_t pieces = 2 * (panel_.last - panel_.first) / kPieceKeys;
    pieces_per_call_ = calls > 0 ? ceil_div(pieces, calls) : 0;
  }

  HWY_INLINE void advance() {
    for (std::int64_t piece = 0; piece < pieces_per_call_ && !done_; ++piece) one_piece();
  }

  void finish() {
    while (!panel_.empty() && !done_) one_piece();
  }

 private:
  static constexpr std::int64_t kPieceKeys = 8;
  static constexpr float kFusedExponents = 1024.0F;

  HWY_INLINE void one_piece() {
    if (panel_.empty()) return;
    if (exponentials_) {
      if (fused_) {
        kept_.given() ? exponentiate<true, true>() : exponentiate<false, true>();
      } else {
        kept_.given() ? exponentiate<true, false>() : exponentiate<false, false>();
      }
    } else {
      if (has_text_) {
        if (key_ == panel_.first) apply_text();
      } else if (scale_.capped) {
        cap_scores<bf16::kBlock>(memory_.scores, key_, key_ + kPieceKeys, scale_.softcap_scale);
      }
      if (terms_.terms.given() && !has_text_) {
        add_terms(key_);
      } else {
        panel_.masked ? raise_maximum<true>() : raise_maximum<false>();
      }
    }
    key_ += kPieceKeys;
    if (key_ < panel_.last) return;
    exponentials_ ? store_sums() : settle_maximum();
    done_ = exponentials_;
    exponentials_ = true;
    key_ = panel_.first;
  }

  static TermsPanel terms_of(const ForwardTask& task, const Panel& panel, std::int64_t key_begin, std::int64_t keys) {
    const std::int64_t row = task.row_begin + panel.row;
    return {.terms = task.terms,
            .diagonal = task.visible.diagonal,
            .group = task.q.group,
            .row = row,
            .rows = std::min(bf16::kBlock, task.row_end - row),
            .key_begin = key_begin,
            .keys = keys,
            .more_rows = std::max<std::int64_t>(task.row_end - row - bf16::kBlock, 0)};
  }

  /// The text's scores, of all of the panel's keys at once: what it computes once for all of them is done once.
  void apply_text() {
    if (scale_.capped) {
      cap_scores<bf16::kBlock>(memory_.scores, panel_.first, panel_.last, scale_.softcap_scale);
    }
    for (std::int64_t key = panel_.first; key < panel_.last && joined_; key += kPieceKeys) add_terms(key);
    const ExpressionPanel panel{.row = terms_.row,
                                .rows = terms_.rows,
                                .group = terms_.group,
                                .key = terms_.key_begin + panel_.first,
                                .keys = std::min(panel_.last, terms_.keys) - panel_.first,
                                .along = panel_.last - panel_.first,
                                .width = bf16::kBlock};
    transform_scores(text_, panel, panel_.text_hides, memory_.scores + panel_.first * bf16::kBlock);
  }

  /// ALiBi, bias and masks, which make scores of the products of kPieceKeys keys from `key` on, and their maximum.
  void add_terms(std::int64_t key) {
    const std::int64_t packed = (key - panel_.first) % kBiasKeys;
    if (terms_.terms.bias.data != nullptr && packed == 0) {
      pack_bias<bf16::kBlock>(terms_, key, std::min(key + kBiasKeys, panel_.last), panel_.first, panel_.last, row_,
                              bias_);
    }
    for (int v = 0; v < kBlockVecs; ++v) {
      lanes_[v]->template add<bf16::kBlock>(panel_.masked, key, key + kPieceKeys, scale_.scale,
                                            bias_ + packed * bf16::kBlock + v * kLanes, memory_.scores + v * kLanes);
    }
  }

  /// The maximum of kPieceKeys keys, hidden ones at -inf.
  template <bool kMasked>
  HWY_INLINE void raise_maximum() {
    const Floats d;
    HWY_UNROLL(8) for (int v = 0; v < kBlockVecs; ++v) {
      float* HWY_RESTRICT scores = memory_.scores + key_ * bf16::kBlock + v * kLanes;
      Vec top = hn::Load(d, top_ + v * kLanes);
      if constexpr (kMasked) hide(v, scores);
      // Pairwise: a chain of maxima would wait for its own latency.
      Vec pair[kPieceKeys / 2];
      HWY_UNROLL(4) for (std::int64_t i = 0; i < kPieceKeys / 2; ++i) {
        pair[i] = hn::Max(hn::Load(d, scores + 2 * i * bf16::kBlock), hn::Load(d, scores + (2 * i + 1) * bf16::kBlock));
      }
      top = hn::Max(top, hn::Max(hn::Max(pair[0], pair[1]), hn::Max(pair[2], pair[3])));
      hn::Store(top, d, top_ + v * kLanes);
    }
  }

  void hide(int v, float* HWY_RESTRICT scores) const {
    const Floats d;
    for (std::int64_t key = 0; key < kPieceKeys; ++key) {
      float* HWY_RESTRICT at = scores + key * bf16::kBlock;
      hn::Store(hn::IfThenElse(visible_[v]->contains(key_ + key), hn::Load(d, at), hn::Set(d, -kInfinity)), d, at);
    }
  }

  /// Below kFusedExponents a product with the factor is rounded by less than P is, and one fused instruction makes an
  /// exponent; larger maxima are subtracted first.
  void settle_maximum() {
    const Floats d;
    fused_ = true;
    const Vec factor = hn::Set(d, exponent_factor_);
    for (int v = 0; v < kBlockVecs; ++v) {
      float* HWY_RESTRICT row_max = memory_.row_max + v * kLanes;
      const Vec old_max = hn::Load(d, row_max);
      const bool joined = terms_.terms.given() && !has_text_;
      const Vec top = joined ? lanes_[v]->top() : hn::Load(d, top_ + v * kLanes);
      const Vec new_max = hn::Max(old_max, top);
      // A row that has seen no key yet keeps -inf; subtracting 0 instead makes its probabilities 0 and not NaN.
      const Vec shift = hn::IfThenElse(hn::Eq(new_max, hn::Set(d, -kInfinity)), hn::Zero(d), new_max);
      fused_ = fused_ && hn::AllTrue(d, hn::Lt(hn::Abs(hn::Mul(shift, factor)), hn::Set(d, kFusedExponents)));
      hn::Store(shift, d, shift_ + v * kLanes);
      hn::Store(old_max, d, old_max_ + v * kLanes);
      hn::Store(new_max, d, row_max);
    }
    for (int v = 0; v < kBlockVecs; ++v) {
      const Vec old_max = hn::Load(d, old_max_ + v * kLanes);
      const Vec shift = hn::Load(d, shift_ + v * kLanes);
      const Vec product = hn::Mul(shift, factor);
      const Vec below = fused_ ? hn::Sub(hn::Mul(old_max, factor), product) : hn::Mul(hn::Sub(old_max, shift), factor);
      hn::Store(exp2(below), d, memory_.rescale + v * kLanes);
      if (fused_) hn::Store(product, d, shift_ + v * kLanes);
    }
  }

  template <bool kFused>
  static HWY_INLINE Vec exponent(Vec score, Vec shift, Vec factor) {
    return kFused ? hn::MulSub(score, factor, shift) : hn::Mul(hn::Sub(score, shift), factor);
  }

  template <bool kDropout, bool kFused>
  HWY_INLINE void exponentiate() {
    const Floats d;
    const Vec factor = hn::Set(d, exponent_factor_);
    const std::int64_t drawn = key_ % bf16::kBlock;
    if (kDropout && drawn == 0) kept_.draw(terms_.key_begin + key_);
    bfloat16* HWY_RESTRICT step = memory_.probabilities + key_ / bf16::kTileDepth * bf16::kTileElements +
                                  key_ % bf16::kTileDepth * bf16::kTileRows;
    HWY_UNROLL(8) for (int v = 0; v < kBlockVecs; ++v) {
      const float* HWY_RESTRICT scores = memory_.scores + key_ * bf16::kBlock + v * kLanes;
      const std::int64_t query = v * kLanes;
      bfloat16* HWY_RESTRICT to = step + query / bf16::kTileRows * memory_.group_stride + query % bf16::kTileRows * 2;
      const Vec shift = hn::Load(d, shift_ + query);
      Vec sum = hn::Load(d, sum_ + query);
      HWY_UNROLL(4) for (std::int64_t key = 0; key < kPieceKeys; key += 2) {
        Vec even = exp2(exponent<kFused>(hn::Load(d, scores + key * bf16::kBlock), shift, factor));
        Vec odd = exp2(exponent<kFused>(hn::Load(d, scores + (key + 1) * bf16::kBlock), shift, factor));
        sum = hn::Add(sum, hn::Add(even, odd));
        if constexpr (kDropout) {
          even = hn::IfThenElseZero(kept_.at(v, drawn + key), even);
          odd = hn::IfThenElseZero(kept_.at(v, drawn + key + 1), odd);
        }
        Unit::narrow_pairs(even, odd, to + key * bf16::kTileRows);
      }
      hn::Store(sum, d, sum_ + query);
    }
  }

  void store_sums() {
    const Floats d;
    for (int v = 0; v < kBlockVecs; ++v) {
      float* HWY_RESTRICT row_sum = memory_.row_sum + v * kLanes;
      const Vec rescale = hn::Load(d, memory_.rescale + v * kLanes);
      hn::Store(hn::MulAdd(hn::Load(d, row_sum), rescale, hn::Load(d, sum_ + v * kLanes)), d, row_sum);
    }
  }

  const Panel panel_;
  const SoftmaxMemory memory_;
  const ScoreScale& scale_;
  const TermsPanel terms_;
  const ExpressionTask& text_;
  const bool joined_;    // terms or a text's score
  const bool has_text_;  // that does anything to these pairs
  const float exponent_factor_;
  KeptPairs kept_;
  std::optional<LaneInterval> visible_[kBlockVecs];
  std::optional<TermsLanes> lanes_[kBlockVecs];
  std::int64_t key_;
  std::int64_t pieces_per_call_ = 0;
  bool exponentials_ = false;
  bool done_ = false;
  bool fused_ = true;  // whether shift_ is of exponents, else of scores
  HWY_ALIGN float top_[bf16::kBlock];
  HWY_ALIGN float sum_[bf16::kBlock];
  HWY_ALIGN float shift_[bf16::kBlock];
  HWY_ALIGN float old_max_[bf16::kBlock];
  HWY_ALIGN float bias_[kBiasKeys * bf16::kBlock];
  HWY_ALIGN float row_[kTransposedRows * kBiasKeys];
};

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_BFLOAT16_NAMESPACE();

#endif  // STROBE_CPU_BFLOAT16_SOFTMAX_INL_H_
