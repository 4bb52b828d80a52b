// SPDX-License-Identifier: Apache-2.0
// P^T and dS^T of a block of keys and queries, in small pieces, so that the products of the next block can run between
// them on the matrix unit.
#if defined(STROBE_CPU_BFLOAT16_DIFFERENTIATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BFLOAT16_DIFFERENTIATE_INL_H_
#undef STROBE_CPU_BFLOAT16_DIFFERENTIATE_INL_H_
#else
#define STROBE_CPU_BFLOAT16_DIFFERENTIATE_INL_H_
#endif

#include <limits>
#include <optional>

#include "cpu/bfloat16/attributes-inl.h"
#include "cpu/bfloat16/kept_pairs-inl.h"
#include "cpu/bfloat16/scratch.h"
#include "cpu/kernels/task.h"
#include "cpu/kernels/terms-inl.h"
#include "cpu/kernels/turn.h"

STROBE_BEFORE_BFLOAT16_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// kBlock keys and kBlock queries, counted from the first key of the task and the first row of the block of queries.
struct Pairs {
  std::int64_t key = 0;
  std::int64_t row = 0;
  bool given = false;
  bool masked = false;               // some pair is hidden
  float* scores = nullptr;           // S^T, [keys, queries]
  float* d_probabilities = nullptr;  // dP^T
};

/// Rows [first, last) of a group of heads.
struct RowRange {
  std::int64_t first;
  std::int64_t last;
};

/// Where one block of pairs reads and writes.
struct DerivativeMemory {
  bfloat16* probability_rows;  // left operands: two groups of 16 keys, queries along the rows
  bfloat16* d_score_rows;
  std::int64_t row_group_stride;
  bfloat16* d_score_pairs;  // right operand: pairs of keys, two groups of 16 queries
  std::int64_t pair_group_stride;
  float* unsloped;      // dS before the softcap's slope, 2 x 2 tiles of 16 keys by 16 queries; null: not wanted
  float* given_scores;  // [keys, queries] scores that the text was given; null: no gradient of a capture is wanted
  float* d_text;        // dS of what the text made of them, likewise
  const float* shift;
  const float* log2_sum;
  const float* delta;
  const std::int64_t* visible_begin;
  const std::int64_t* visible_end;
};

/// P, of RowNormalizers, and dS = P (dP - delta) [(1 - t^2) under softcap], rounded to bfloat16. ALiBi and bias join
/// the scores, a text makes others of them; dropout takes its share of P and dP.
template <class Unit>
class Differentiation {
 public:
  /// `block` is the rows of `queries` from which the pairs' are counted.
  Differentiation(const BackwardTask& task, const BackwardQueries& queries, RowRange block, const Pairs& pairs,
                  const DerivativeMemory& memory)
      : pairs_(pairs),
        memory_(memory),
        scale_(task.score_scale),
        terms_{.terms = queries.terms,
               .diagonal = task.visible.diagonal,
               .group = queries.q.group,
               .row = block.first + pairs.row,
               .rows = std::min(bf16::kBlock, block.last - block.first - pairs.row),
               .key_begin = task.key_begin,
               .keys = task.key_end - task.key_begin,
               .more_rows = 0},
        kept_(queries.dropout, terms_.row, terms_.group),
        inverse_keep_(queries.dropout.given ? 1.0F / queries.dropout.key.keep_probability() : 1.0F),
        text_(queries.expression),
        has_text_(pairs.given && text_acts()),
        changed_(pairs.masked || scale_.capped || terms_.terms.given() || has_text_ || kept_.given() ||
                 memory.unsloped != nullptr),
        key_(pairs.given ? 0 : bf16::kBlock) {
    if (!pairs.given || !changed_) return;
    if (kept_.given()) kept_.draw(task.key_begin + pairs.key);
    for (int v = 0; v < kBlockVecs; ++v) {
      visible_[v].emplace(memory.visible_begin + v * kLanes, memory.visible_end + v * kLanes,
                          task.key_begin + pairs.key);
      if (terms_.terms.given()) lanes_[v].emplace(terms_, v * kLanes, *visible_[v]);
    }
    if (terms_.terms.bias.data != nullptr) {
      const std::int64_t end = pairs.key + bf16::kBlock;
      pack_bias<bf16::kBlock>(terms_, pairs.key, end, pairs.key, end, row_, bias_);
    }
    if (has_text_) apply_text();
  }

  /// Spreads what is to do over `calls` calls of advance().
  void pace(std::int64_t calls) { keys_per_call_ = calls > 0 ? round_up(ceil_div(bf16::kBlock, calls), 2) : 0; }

  HWY_INLINE void advance() { until(std::min(key_ + keys_per_call_, bf16::kBlock)); }
  void finish() { until(bf16::kBlock); }

  /// What the pairs give to the captures' gradients, after finish(): when the tasks before this one have given theirs.
  void add_to_captures(const CaptureTurn& turn) const {
    if (!pairs_.given || memory_.d_text == nullptr) return;
    wait_for_captures(turn);
    add_capture_gradients(text_, panel(), memory_.given_scores, memory_.d_text);
  }

 private:
  HWY_INLINE void until(std::int64_t last) { changed_ ? keys<true>(last) : keys<false>(last); }

  template <bool kChanged>
  HWY_INLINE void keys(std::int64_t last) {
    for (int v = 0; v < kBlockVecs; ++v) {
      const std::int64_t query = v * kLanes;
      for (std::int64_t key = key_; key < last; key += 2) {
        const Vec even = one_key<kChanged>(key, v);
        const Vec odd = one_key<kChanged>(key + 1, v);
        Unit::narrow_pairs(even, odd,
                           memory_.d_score_pairs + query / bf16::kTileRows * memory_.pair_group_stride +
                               key / 2 * bf16::kTileDepth + query % bf16::kTileRows * 2);
      }
    }
    key_ = last;
  }

  /// The text's scores and their slopes.
  void apply_text() {
    const Floats d;
    for (std::int64_t key = 0; key < bf16::kBlock; ++key) {
      for (int v = 0; v < kBlockVecs; ++v) {
        const std::int64_t at = key * bf16::kBlock + v * kLanes;
        Vec s = hn::Load(d, pairs_.scores + at);
        if (scale_.capped) s = tanh(hn::Mul(s, hn::Set(d, scale_.softcap_scale)));
        const Vec score = terms_.terms.given() ? with_terms(s, key, v) : hn::Mul(s, hn::Set(d, scale_.scale));
        hn::Store(score, d, text_scores_ + at);
        if (memory_.given_scores != nullptr) hn::Store(score, d, memory_.given_scores + at);
      }
    }
    transform_with_slopes(text_, panel(), text_scores_, text_slopes_);
  }

  bool text_acts() const { return text_.has_score() || tile_visibility(text_, panel()) != TileVisibility::full; }

  ExpressionPanel panel() const {
    return {.row = terms_.row,
            .rows = terms_.rows,
            .group = terms_.group,
            .key = terms_.key_begin + pairs_.key,
            .keys = std::min(bf16::kBlock, terms_.keys - pairs_.key),
            .along = bf16::kBlock,
            .width = bf16::kBlock};
  }

  /// Stores P and dS of a key and vector `v` of the queries as rows; returns dS.
  template <bool kChanged>
  HWY_INLINE Vec one_key(std::int64_t key, int v) const {
    const Floats d;
    const std::int64_t query = v * kLanes;
    const std::int64_t at = key * bf16::kBlock + query;
    Vec s = hn::Load(d, pairs_.scores + at);
    if (kChanged && scale_.capped) s = tanh(hn::Mul(s, hn::Set(d, scale_.softcap_scale)));
    Vec score = hn::Mul(s, hn::Set(d, scale_.scale));
    if (kChanged && has_text_) {
      score = plain_nan(hn::Load(d, text_scores_ + at));
    } else if (kChanged && terms_.terms.given()) {
      score = with_terms(s, key, v);
    }
    const Vec exponent = hn::MulSub(hn::Sub(score, hn::Load(d, memory_.shift + query)), hn::Set(d, kLog2E),
                                    hn::Load(d, memory_.log2_sum + query));
    // P exceeds 1 by rounding alone: not where an lse does not belong to these inputs, either. NaN passes.
    const Vec most = hn::Set(d, 1.0F);
    Vec p = exp2(hn::IfThenElse(hn::Gt(exponent, most), most, exponent));
    Vec dp = hn::Load(d, pairs_.d_probabilities + at);
    const Vec whole = p;
    if (kChanged && kept_.given()) {
      const auto keeps = kept_.at(v, key);
      p = hn::IfThenElseZero(keeps, hn::Mul(p, hn::Set(d, inverse_keep_)));
      dp = hn::IfThenElseZero(keeps, hn::Mul(dp, hn::Set(d, inverse_keep_)));
    }
    Vec ds = hn::Mul(whole, hn::Sub(dp, hn::Load(d, memory_.delta + query)));
    if constexpr (kChanged) {
      auto seen = visible_[v]->contains(key);
      if (has_text_) {  // a score of -inf, as a mask gives it, hides its key, whatever the product holds
        seen = hn::And(seen, hn::Ne(score, hn::Set(d, -kInfinity)));
        if (memory_.d_text != nullptr) hn::Store(hn::IfThenElseZero(seen, ds), d, memory_.d_text + at);
        ds = hn::Mul(ds, plain_nan(hn::Load(d, text_slopes_ + at)));
      }
      p = hn::IfThenElseZero(seen, p);
      ds = hn::IfThenElseZero(seen, ds);
      if (memory_.unsloped != nullptr) hn::Store(ds, d, memory_.unsloped + tile_element(key, query));
      // A hidden slope may be NaN, which times 0 is NaN, too.
      if (scale_.capped) ds = hn::IfThenElseZero(seen, hn::Mul(ds, hn::NegMulAdd(s, s, hn::Set(d, 1.0F))));
    }
    const std::int64_t row =
        key / bf16::kTileRows * memory_.row_group_stride + key % bf16::kTileRows * bf16::kTileDepth + query;
    Unit::narrow(p, memory_.probability_rows + row);
    Unit::narrow(ds, memory_.d_score_rows + row);
    return ds;
  }

  HWY_INLINE Vec with_terms(Vec s, std::int64_t key, int v) const {
    const Floats d;
    const Vec terms = lanes_[v]->sum(pairs_.key + key, bias_ + key * bf16::kBlock + v * kLanes);
    return plain_nan(hn::MulAdd(s, hn::Set(d, scale_.scale), terms));
  }

  /// The caller's slopes, biases and captures may be NaN with any bits, of which Unit::narrow_pairs takes arithmetic's
  /// alone.
  static HWY_INLINE Vec plain_nan(Vec x) {
    return hn::IfThenElse(hn::IsNaN(x), hn::Set(Floats(), std::numeric_limits<float>::quiet_NaN()), x);
  }

  static std::int64_t tile_element(std::int64_t key, std::int64_t query) {
    const std::int64_t tile = key / bf16::kTileRows * 2 + query / bf16::kTileRows;
    return (tile * bf16::kTileRows + key % bf16::kTileRows) * bf16::kTileRows + query % bf16::kTileRows;
  }

  const Pairs pairs_;
  const DerivativeMemory memory_;
  const ScoreScale& scale_;
  const TermsPanel terms_;
  KeptPairs kept_;
  const float inverse_keep_;
  const ExpressionTask& text_;
  const bool has_text_;  // that does anything to these pairs
  const bool changed_;   // by anything but scale and LSE
  std::optional<LaneInterval> visible_[kBlockVecs];
  std::optional<TermsLanes> lanes_[kBlockVecs];
  std::int64_t key_;
  std::int64_t keys_per_call_ = 0;
  HWY_ALIGN float bias_[bf16::kBlock * bf16::kBlock];
  HWY_ALIGN float text_scores_[bf16::kBlock * bf16::kBlock];
  HWY_ALIGN float text_slopes_[bf16::kBlock * bf16::kBlock];
  HWY_ALIGN float row_[kTransposedRows * bf16::kBlock];
};

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_BFLOAT16_NAMESPACE();

#endif  // STROBE_CPU_BFLOAT16_DIFFERENTIATE_INL_H_
