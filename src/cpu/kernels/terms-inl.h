// SPDX-License-Identifier: Apache-2.0
// ALiBi and bias: what joins the scores between the products. Both passes add them up in the same order, so that a
// score has the same bits in both.
#if defined(STROBE_CPU_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_TERMS_INL_H_
#undef STROBE_CPU_TERMS_INL_H_
#else
#define STROBE_CPU_TERMS_INL_H_
#endif

#include "cpu/kernels/pack-inl.h"
#include "cpu/kernels/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// Rows of queries in a panel and the tile of keys that they meet.
struct TermsPanel {
  const ScoreTerms& terms;
  std::int64_t diagonal;   // center - position
  std::int64_t group;      // heads that are interleaved with positions
  std::int64_t row;        // the first
  std::int64_t rows;       // that exist; at most a panel's across the lanes
  std::int64_t key_begin;  // of the tile
  std::int64_t keys;       // of the tile that exist
  std::int64_t more_rows;  // after these: fetched ahead, as hardware does not follow from row to row of a bias

  /// Distances are counted from key_begin, so that float32 holds them exactly as far as 2^24.
  float center_of(std::int64_t position) const { return static_cast<float>(position + diagonal - key_begin); }
  float slope_of(std::int64_t head) const { return terms.alibi_slopes == nullptr ? 0.0F : -terms.alibi_slopes[head]; }
  float center(std::int64_t index) const { return center_of(row_place(row + index, group).position); }
  float slope(std::int64_t index) const { return slope_of(row_place(row + index, group).head); }
};

/// -slope |center - key| for a vector of centers or keys.
HWY_INLINE Vec add_alibi(Vec sum, Vec slope, Vec center, Vec key) {
  return hn::MulAdd(slope, hn::Abs(hn::Sub(center, key)), sum);
}

/// Fetches columns [first, last) of row `index` of a bias.
HWY_INLINE void prefetch_bias(const ConstRows& bias, DType dtype, std::int64_t index, std::int64_t first,
                              std::int64_t last) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const char* row = static_cast<const char*>(bias.data) + bias.offset(index) * size;
  for (std::int64_t byte = first * size; byte < last * size; byte += 64) hwy::Prefetch(row + byte);
}

/// Keys of a bias that are packed together: few enough to stay beside the scores in the nearest cache.
inline constexpr std::int64_t kBiasKeys = 64;

/// The bias of keys [key, end) of the tile for a panel of kWidth queries, into `bias` [key][lane]; keys [first, last)
/// are packed in turn. `row_buffer` is what packing takes besides.
template <std::int64_t kWidth = kPanel>
HWY_INLINE void pack_bias(const TermsPanel& panel, std::int64_t key, std::int64_t end, std::int64_t first,
                          std::int64_t last, float* row_buffer, float* bias) {
  const DType dtype = panel.terms.bias_dtype;
  const std::int64_t columns = std::min(end, panel.keys) - key;
  const ConstRows from = panel.terms.bias.from_column(dtype, panel.key_begin + key);
  pack_panels<kWidth>(dtype, {from, panel.row, panel.rows, columns}, round_up(panel.rows, kWidth), end - key, 1.0F,
                      row_buffer, bias);
  // What comes next, while this is at work: the panel's next keys, or the next panel's first.
  const bool more_keys = end < last;
  const std::int64_t next = panel.key_begin + (more_keys ? end : first);
  const std::int64_t next_end = std::min(next + kBiasKeys, panel.key_begin + std::min(last, panel.keys));
  const std::int64_t row = panel.row + (more_keys ? 0 : panel.rows);
  const std::int64_t rows = std::min(more_keys ? panel.rows : panel.more_rows, kPrefetchRows);
  for (std::int64_t i = 0; i < rows; ++i) prefetch_bias(panel.terms.bias, dtype, row + i, next, next_end);
}

/// One vector of queries of a panel.
class TermsLanes {
 public:
  TermsLanes(const TermsPanel& panel, std::int64_t lane, const LaneInterval& visible)
      : terms_(panel.terms), visible_(visible), top_(hn::Set(Floats(), -kInfinity)) {
    HWY_ALIGN float centers[kLanes];
    HWY_ALIGN float slopes[kLanes];
    for_each_lane(panel.row + lane, panel.group, [&](std::int64_t i, std::int64_t position, std::int64_t head) {
      centers[i] = panel.center_of(position);
      slopes[i] = panel.slope_of(head);
    });
    center_ = hn::Load(Floats(), centers);
    slope_ = hn::Load(Floats(), slopes);
  }

  /// The terms of `key` of the tile, whose bias is at `bias`.
  template <bool kAlibi, bool kBias>
  HWY_INLINE Vec sum(std::int64_t key, const float* HWY_RESTRICT bias) const {
    const Floats d;
    Vec terms = hn::Zero(d);
    if constexpr (kBias) terms = hn::Load(d, bias);
    if constexpr (kAlibi) terms = add_alibi(terms, slope_, center_, hn::Set(d, static_cast<float>(key)));
    return terms;
  }
  HWY_INLINE Vec sum(std::int64_t key, const float* bias) const {
    if (terms_.bias.data == nullptr) return sum<true, false>(key, bias);
    return terms_.alibi_slopes == nullptr ? sum<false, true>(key, bias) : sum<true, true>(key, bias);
  }

  /// scores = scale * scores + terms over keys [first, last) of the tile, -inf where the key is hidden; keys are
  /// kStride elements apart. `bias` is of pack_bias from key `first` on. Not masked: no key is hidden.
  template <std::int64_t kStride = kPanel>
  HWY_INLINE void add(bool masked, std::int64_t first, std::int64_t last, float scale, const float* bias,
                      float* scores) {
    masked ? add<kStride, true>(first, last, scale, bias, scores)
           : add<kStride, false>(first, last, scale, bias, scores);
  }

  /// The largest of what was added, a lane per query.
  Vec top() const { return top_; }

 private:
  template <std::int64_t kStride, bool kMasked>
  HWY_INLINE void add(std::int64_t first, std::int64_t last, float scale, const float* bias, float* scores) {
    if (terms_.bias.data == nullptr) return add<kStride, kMasked, true, false>(first, last, scale, bias, scores);
    if (terms_.alibi_slopes == nullptr) return add<kStride, kMasked, false, true>(first, last, scale, bias, scores);
    add<kStride, kMasked, true, true>(first, last, scale, bias, scores);
  }

  template <std::int64_t kStride, bool kMasked, bool kAlibi, bool kBias>
  HWY_INLINE void add(std::int64_t first, std::int64_t last, float scale, const float* HWY_RESTRICT bias,
                      float* HWY_RESTRICT scores) {
    const Floats d;
    Vec top = top_;
    for (std::int64_t key = first; key < last; ++key) {
      float* HWY_RESTRICT score = scores + key * kStride;
      const Vec terms = this->sum<kAlibi, kBias>(key, bias + (key - first) * kStride);
      Vec sum = hn::MulAdd(hn::Load(d, score), hn::Set(d, scale), terms);
      if constexpr (kMasked) sum = hn::IfThenElse(visible_.contains(key), sum, hn::Set(d, -kInfinity));
      top = hn::Max(top, sum);
      hn::Store(sum, d, score);
    }
    top_ = top;
  }

  const ScoreTerms& terms_;
  LaneInterval visible_;
  FixedVec center_ = hn::Zero(Floats());
  FixedVec slope_ = hn::Zero(Floats());
  FixedVec top_;
};

/// One vector of `from`, of which `count` elements exist; the others are 0.
template <class T>
HWY_INLINE Vec load_some(const T* from, std::int64_t count) {
  if (count >= kLanes) return load(Floats(), from);
  HWY_ALIGN float elements[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) elements[i] = to_float(from[i]);
  return hn::Load(Floats(), elements);
}

/// out[row][key lanes] = terms over rows [first, last) of the panel, keys [key, key + kPanel) of the tile across the
/// lanes.
template <bool kAlibi, class T>
HWY_INLINE void terms_of_keys(const TermsPanel& panel, std::int64_t key, std::int64_t first, std::int64_t last,
                              float* HWY_RESTRICT out) {
  const Floats d;
  for (std::int64_t row = first; row < last; ++row) {
    const Vec center = hn::Set(d, kAlibi ? panel.center(row) : 0.0F);
    const Vec slope = hn::Set(d, kAlibi ? panel.slope(row) : 0.0F);
    const T* bias = static_cast<const T*>(panel.terms.bias.data);
    if (bias != nullptr) {
      bias += panel.terms.bias.offset(panel.row + row) + panel.key_begin;
      if (row + kPrefetchRows < last) {
        prefetch_bias(panel.terms.bias, panel.terms.bias_dtype, panel.row + row + kPrefetchRows, panel.key_begin + key,
                      panel.key_begin + std::min(key + kPanel, panel.keys));
      }
    }
    for (int n = 0; n < kTileVecs; ++n) {
      const std::int64_t at = key + n * kLanes;
      Vec sum = hn::Zero(d);
      if (bias != nullptr && at < panel.keys) sum = load_some(bias + at, panel.keys - at);
      if constexpr (kAlibi) sum = add_alibi(sum, slope, center, hn::Iota(d, static_cast<float>(at)));
      hn::Store(sum, d, out + row * kPanel + n * kLanes);
    }
  }
}

template <bool kAlibi>
HWY_INLINE void terms_of_keys(const TermsPanel& panel, std::int64_t key, std::int64_t first, std::int64_t last,
                              float* out) {
  switch (panel.terms.bias_dtype) {
    case DType::float16: return terms_of_keys<kAlibi, float16>(panel, key, first, last, out);
    case DType::bfloat16: return terms_of_keys<kAlibi, bfloat16>(panel, key, first, last, out);
    default: return terms_of_keys<kAlibi, float>(panel, key, first, last, out);
  }
}

HWY_INLINE void terms_of_keys(const TermsPanel& panel, std::int64_t key, std::int64_t first, std::int64_t last,
                              float* out) {
  if (panel.terms.alibi_slopes == nullptr) return terms_of_keys<false>(panel, key, first, last, out);
  terms_of_keys<true>(panel, key, first, last, out);
}

/// Products [from, last) of the panel's first row, a multiple of the lanes from `from` on, become scores.
template <class Bias>
HWY_INLINE void add_row_terms_of(const TermsPanel& panel, float scale, std::int64_t from, std::int64_t last,
                                 float* HWY_RESTRICT products) {
  const Floats d;
  const Vec center = hn::Set(d, panel.center(0));
  const Vec slope = hn::Set(d, panel.slope(0));
  const Bias* bias = static_cast<const Bias*>(panel.terms.bias.data);
  if (bias != nullptr) bias += panel.terms.bias.offset(panel.row) + panel.key_begin;
  for (std::int64_t at = from; at < last; at += kLanes) {
    Vec terms = bias == nullptr ? hn::Zero(d) : load_some(bias + at, panel.keys - at);
    if (panel.terms.alibi_slopes != nullptr) {
      terms = add_alibi(terms, slope, center, hn::Iota(d, static_cast<float>(at)));
    }
    hn::Store(hn::MulAdd(hn::Load(d, products + at), hn::Set(d, scale), terms), d, products + at);
  }
}

/// Keys across the lanes: scores of one row, with ALiBi and bias.
inline void add_row_terms(const TermsPanel& panel, float scale, std::int64_t from, std::int64_t last, float* products) {
  switch (panel.terms.bias_dtype) {
    case DType::float16: return add_row_terms_of<float16>(panel, scale, from, last, products);
    case DType::bfloat16: return add_row_terms_of<bfloat16>(panel, scale, from, last, products);
    default: return add_row_terms_of<float>(panel, scale, from, last, products);
  }
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_TERMS_INL_H_
