// ALiBi and bias: what joins the base-2 exponents between the products.
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
  std::int64_t rows;       // that exist; at most kPanel across the lanes
  std::int64_t key_begin;  // of the tile
  std::int64_t keys;       // of the tile that exist
  std::int64_t more_rows;  // after these: fetched ahead, as hardware does not follow from row to row of a bias

  /// Distances are counted from key_begin, so that float32 holds them exactly as far as 2^24.
  float center(std::int64_t index) const {
    const std::int64_t position = (row + index) / group;
    return static_cast<float>(position + diagonal - key_begin);
  }
  float slope(std::int64_t index) const {
    return terms.alibi_slopes == nullptr ? 0.0F : -terms.alibi_slopes[(row + index) % group] * kLog2E;
  }
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

/// The bias of keys [first, last) of the tile for a panel of queries, into `bias` [key][lane]. `row_buffer` is what
/// packing takes besides.
HWY_INLINE void pack_bias(const TermsPanel& panel, std::int64_t first, std::int64_t last, float* row_buffer,
                          float* bias) {
  const DType dtype = panel.terms.bias_dtype;
  const std::int64_t columns = std::min(last, panel.keys) - first;
  const ConstRows from = panel.terms.bias.from_column(dtype, panel.key_begin + first);
  pack_panels(dtype, {from, panel.row, panel.rows, columns}, last - first, 1.0F, row_buffer, bias);
  // The next panel's first rows, while this one works.
  for (std::int64_t row = 0; row < std::min(panel.more_rows, kPrefetchRows); ++row) {
    prefetch_bias(from, dtype, panel.row + panel.rows + row, 0, columns);
  }
}

/// scores = scale * scores + terms over keys [first, last) of the tile for one vector of queries, -inf where `visible`
/// hides the key, and the largest of each lane. `bias` is of pack_bias.
template <bool kAlibi, bool kBias>
HWY_INLINE Vec add_terms(const TermsPanel& panel, std::int64_t lane, const LaneInterval& visible, std::int64_t first,
                         std::int64_t last, float scale, const float* HWY_RESTRICT bias, float* HWY_RESTRICT scores) {
  const Floats d;
  HWY_ALIGN float centers[kLanes];
  HWY_ALIGN float slopes[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) {
    const std::int64_t index = std::min(lane + i, panel.rows - 1);
    centers[i] = panel.center(index);
    slopes[i] = panel.slope(index);
  }
  const Vec center = hn::Load(d, centers);
  const Vec slope = hn::Load(d, slopes);
  Vec top = hn::Set(d, -kInfinity);
  for (std::int64_t key = first; key < last; ++key) {
    float* HWY_RESTRICT score = scores + key * kPanel + lane;
    Vec sum = hn::Mul(hn::Load(d, score), hn::Set(d, scale));
    if constexpr (kAlibi) sum = add_alibi(sum, slope, center, hn::Set(d, static_cast<float>(key)));
    if constexpr (kBias) {
      sum = hn::MulAdd(hn::Load(d, bias + (key - first) * kPanel + lane), hn::Set(d, kLog2E), sum);
    }
    sum = hn::IfThenElse(visible.contains(key), sum, hn::Set(d, -kInfinity));
    top = hn::Max(top, sum);
    hn::Store(sum, d, score);
  }
  return top;
}

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
template <class T>
HWY_INLINE void terms_of_keys(const TermsPanel& panel, std::int64_t key, std::int64_t first, std::int64_t last,
                              float* HWY_RESTRICT out) {
  const Floats d;
  for (std::int64_t row = first; row < last; ++row) {
    const Vec center = hn::Set(d, panel.center(row));
    const Vec slope = hn::Set(d, panel.slope(row));
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
      if (bias != nullptr && at < panel.keys) {
        sum = hn::Mul(load_some(bias + at, panel.keys - at), hn::Set(d, kLog2E));
      }
      sum = add_alibi(sum, slope, center, hn::Iota(d, static_cast<float>(at)));
      hn::Store(sum, d, out + row * kPanel + n * kLanes);
    }
  }
}

HWY_INLINE void terms_of_keys(const TermsPanel& panel, std::int64_t key, std::int64_t first, std::int64_t last,
                              float* out) {
  switch (panel.terms.bias_dtype) {
    case DType::float16: return terms_of_keys<float16>(panel, key, first, last, out);
    case DType::bfloat16: return terms_of_keys<bfloat16>(panel, key, first, last, out);
    default: return terms_of_keys<float>(panel, key, first, last, out);
  }
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_TERMS_INL_H_
