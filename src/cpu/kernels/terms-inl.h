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

  /// Distances are counted from key_begin, so that float32 holds them exactly as far as 2^24.
  float center(std::int64_t index) const { return static_cast<float>((row + index) / group + diagonal - key_begin); }
  float slope(std::int64_t index) const {
    return terms.alibi_slopes == nullptr ? 0.0F : -terms.alibi_slopes[(row + index) % group] * kLog2E;
  }
};

/// -slope |center - key| for a vector of centers or keys.
HWY_INLINE Vec add_alibi(Vec sum, Vec slope, Vec center, Vec key) {
  return hn::MulAdd(slope, hn::Abs(hn::Sub(center, key)), sum);
}

/// scores = scale * scores + terms over keys [first, last) of the tile, queries across the lanes. `bias` holds a panel,
/// `row_buffer` a row of the tile.
HWY_INLINE void add_terms_to_queries(const TermsPanel& panel, std::int64_t first, std::int64_t last, float scale,
                                     float* row_buffer, float* HWY_RESTRICT bias, float* HWY_RESTRICT scores) {
  const Floats d;
  const bool has_bias = panel.terms.bias.data != nullptr;
  if (has_bias) {
    const std::int64_t columns = std::min(last, panel.keys) - first;
    const ConstRows from = panel.terms.bias.from_column(panel.terms.bias_dtype, panel.key_begin + first);
    pack_panels(panel.terms.bias_dtype, {from, panel.row, panel.rows, columns}, last - first, kLog2E, row_buffer, bias);
  }
  for (int n = 0; n < kTileVecs; ++n) {
    HWY_ALIGN float centers[kLanes];
    HWY_ALIGN float slopes[kLanes];
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const std::int64_t index = std::min(n * kLanes + lane, panel.rows - 1);
      centers[lane] = panel.center(index);
      slopes[lane] = panel.slope(index);
    }
    const Vec center = hn::Load(d, centers);
    const Vec slope = hn::Load(d, slopes);
    for (std::int64_t key = first; key < last; ++key) {
      float* HWY_RESTRICT score = scores + key * kPanel + n * kLanes;
      Vec sum = hn::Mul(hn::Load(d, score), hn::Set(d, scale));
      if (panel.terms.alibi_slopes != nullptr) {
        sum = add_alibi(sum, slope, center, hn::Set(d, static_cast<float>(key)));
      }
      if (has_bias) sum = hn::Add(sum, hn::Load(d, bias + (key - first) * kPanel + n * kLanes));
      hn::Store(sum, d, score);
    }
  }
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
    if (bias != nullptr) bias += panel.terms.bias.offset(panel.row + row) + panel.key_begin;
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
