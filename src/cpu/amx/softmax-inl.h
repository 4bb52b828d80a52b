// The online softmax of one panel of scores in small pieces, so that the products of its neighbours can run between
// them on the matrix unit.
#if defined(STROBE_CPU_AMX_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_AMX_SOFTMAX_INL_H_
#undef STROBE_CPU_AMX_SOFTMAX_INL_H_
#else
#define STROBE_CPU_AMX_SOFTMAX_INL_H_
#endif

#include "cpu/amx/attributes-inl.h"
#include "cpu/amx/scratch.h"
#include "cpu/kernels/scores-inl.h"
#include "cpu/kernels/task.h"

STROBE_BEFORE_AMX_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// Vectors across the kBlock queries of a panel.
inline constexpr int kBlockVecs = static_cast<int>(amx::kBlock / kLanes);

/// kBlock queries, a lane each, against keys [first, last) of the tile in memory; empty where they see none of it.
struct Panel {
  std::int64_t row = 0;  // of the block
  std::int64_t first = 0;
  std::int64_t last = 0;  // multiples of kBlock, as first
  bool masked = false;    // some pair is hidden
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

/// One pass finds the panel's new maximum (after softcap and masks), a second makes P, rounded to bfloat16, and the row
/// sums of what it was before rounding.
template <class Unit>
class PanelSoftmax {
 public:
  PanelSoftmax(const Panel& panel, const SoftmaxMemory& memory, const ScoreMap& map, std::int64_t key_begin)
      : panel_(panel), memory_(memory), map_(map), key_begin_(key_begin), key_(panel.first) {
    const Floats d;
    HWY_UNROLL(8) for (int v = 0; v < kBlockVecs; ++v) {
      hn::Store(hn::Set(d, -kInfinity), d, top_ + v * kLanes);
      hn::Store(hn::Zero(d), d, sum_ + v * kLanes);
    }
  }

  /// Spreads what is to do over `calls` calls of advance().
  void pace(std::int64_t calls) {
    const std::int64_t pieces = 2 * (panel_.last - panel_.first) / kPieceKeys;
    pieces_per_call_ = calls > 0 ? (pieces + calls - 1) / calls : 0;
  }

  HWY_INLINE void advance() {
    for (std::int64_t piece = 0; piece < pieces_per_call_ && !done_; ++piece) one_piece();
  }

  void finish() {
    while (!panel_.empty() && !done_) one_piece();
  }

 private:
  static constexpr std::int64_t kPieceKeys = 8;

  HWY_INLINE void one_piece() {
    if (panel_.empty()) return;
    if (!exponentials_) {
      (panel_.masked || map_.capped) ? raise_maximum<true>() : raise_maximum<false>();
    } else {
      exponentiate();
    }
    key_ += kPieceKeys;
    if (key_ < panel_.last) return;
    exponentials_ ? store_sums() : settle_maximum();
    done_ = exponentials_;
    exponentials_ = true;
    key_ = panel_.first;
  }

  /// The maximum of kPieceKeys keys; with softcap and masks, those are applied to the scores first.
  template <bool kChanged>
  HWY_INLINE void raise_maximum() {
    const Floats d;
    HWY_UNROLL(8) for (int v = 0; v < kBlockVecs; ++v) {
      float* HWY_RESTRICT scores = memory_.scores + key_ * amx::kBlock + v * kLanes;
      Vec top = hn::Load(d, top_ + v * kLanes);
      if constexpr (kChanged) change_scores(v, scores);
      // Pairwise: a chain of maxima would wait for its own latency.
      Vec pair[kPieceKeys / 2];
      HWY_UNROLL(4) for (std::int64_t i = 0; i < kPieceKeys / 2; ++i) {
        pair[i] = hn::Max(hn::Load(d, scores + 2 * i * amx::kBlock), hn::Load(d, scores + (2 * i + 1) * amx::kBlock));
      }
      top = hn::Max(top, hn::Max(hn::Max(pair[0], pair[1]), hn::Max(pair[2], pair[3])));
      hn::Store(top, d, top_ + v * kLanes);
    }
  }

  void change_scores(int v, float* HWY_RESTRICT scores) const {
    const Floats d;
    const Vec scale = hn::Set(d, map_.tanh_scale);
    const LaneInterval visible(memory_.visible_begin + v * kLanes, memory_.visible_end + v * kLanes, key_begin_);
    for (std::int64_t key = 0; key < kPieceKeys; ++key) {
      Vec s = hn::Load(d, scores + key * amx::kBlock);
      if (map_.capped) s = tanh(hn::Mul(scale, s));
      if (panel_.masked) s = hn::IfThenElse(visible.contains(key_ + key), s, hn::Set(d, -kInfinity));
      hn::Store(s, d, scores + key * amx::kBlock);
    }
  }

  void settle_maximum() {
    const Floats d;
    for (int v = 0; v < kBlockVecs; ++v) {
      float* HWY_RESTRICT row_max = memory_.row_max + v * kLanes;
      const Vec old_max = hn::Load(d, row_max);
      const Vec new_max = hn::Max(old_max, hn::Mul(hn::Load(d, top_ + v * kLanes), hn::Set(d, map_.score_scale)));
      // A row that has seen no key yet keeps -inf; subtracting 0 instead makes its probabilities 0 and not NaN.
      const Vec shift = hn::IfThenElse(hn::Eq(new_max, hn::Set(d, -kInfinity)), hn::Zero(d), new_max);
      hn::Store(shift, d, shift_ + v * kLanes);
      hn::Store(exp2(hn::Sub(old_max, shift)), d, memory_.rescale + v * kLanes);
      hn::Store(new_max, d, row_max);
    }
  }

  HWY_INLINE void exponentiate() {
    const Floats d;
    const Vec scale = hn::Set(d, map_.score_scale);
    bfloat16* HWY_RESTRICT step =
        memory_.probabilities + key_ / amx::kTileDepth * amx::kTileElements + key_ % amx::kTileDepth * amx::kTileRows;
    HWY_UNROLL(8) for (int v = 0; v < kBlockVecs; ++v) {
      const float* HWY_RESTRICT scores = memory_.scores + key_ * amx::kBlock + v * kLanes;
      const std::int64_t query = v * kLanes;
      bfloat16* HWY_RESTRICT to = step + query / amx::kTileRows * memory_.group_stride + query % amx::kTileRows * 2;
      const Vec shift = hn::Load(d, shift_ + query);
      Vec sum = hn::Load(d, sum_ + query);
      HWY_UNROLL(4) for (std::int64_t key = 0; key < kPieceKeys; key += 2) {
        const Vec even = exp2(hn::MulSub(hn::Load(d, scores + key * amx::kBlock), scale, shift));
        const Vec odd = exp2(hn::MulSub(hn::Load(d, scores + (key + 1) * amx::kBlock), scale, shift));
        Unit::narrow_pairs(even, odd, to + key * amx::kTileRows);
        sum = hn::Add(sum, hn::Add(even, odd));
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
  const ScoreMap& map_;
  const std::int64_t key_begin_;
  std::int64_t key_;
  std::int64_t pieces_per_call_ = 0;
  bool exponentials_ = false;
  bool done_ = false;
  HWY_ALIGN float top_[amx::kBlock];
  HWY_ALIGN float sum_[amx::kBlock];
  HWY_ALIGN float shift_[amx::kBlock];
};

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_AMX_NAMESPACE();

#endif  // STROBE_CPU_AMX_SOFTMAX_INL_H_
