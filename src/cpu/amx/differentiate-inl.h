// P^T and dS^T of a block of keys and queries, in small pieces, so that the products of the next block can run between
// them on the matrix unit.
#if defined(STROBE_CPU_AMX_DIFFERENTIATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_AMX_DIFFERENTIATE_INL_H_
#undef STROBE_CPU_AMX_DIFFERENTIATE_INL_H_
#else
#define STROBE_CPU_AMX_DIFFERENTIATE_INL_H_
#endif

#include <optional>

#include "cpu/amx/attributes-inl.h"
#include "cpu/amx/scratch.h"
#include "cpu/kernels/scores-inl.h"
#include "cpu/kernels/task.h"

STROBE_BEFORE_AMX_NAMESPACE();
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

/// Where one block of pairs reads and writes.
struct DerivativeMemory {
  bfloat16* probability_rows;  // left operands: two groups of 16 keys, queries along the rows
  bfloat16* d_score_rows;
  std::int64_t row_group_stride;
  bfloat16* d_score_pairs;  // right operand: pairs of keys, two groups of 16 queries
  std::int64_t pair_group_stride;
  const float* lse;
  const float* delta;
  const std::int64_t* visible_begin;
  const std::int64_t* visible_end;
};

/// P = 2^(S - LSE) and dS = P (dP - delta) [(1 - t^2) under softcap], rounded to bfloat16.
template <class Unit>
class Differentiation {
 public:
  /// `key_begin` is the block's first key in the sequence.
  Differentiation(const Pairs& pairs, const DerivativeMemory& memory, const ScoreMap& map, std::int64_t key_begin)
      : pairs_(pairs), memory_(memory), map_(map), key_begin_(key_begin), key_(pairs.given ? 0 : amx::kBlock) {}

  /// Spreads what is to do over `calls` calls of advance().
  void pace(std::int64_t calls) { keys_per_call_ = calls > 0 ? round_up((amx::kBlock + calls - 1) / calls, 2) : 0; }

  HWY_INLINE void advance() { until(std::min(key_ + keys_per_call_, amx::kBlock)); }
  void finish() { until(amx::kBlock); }

 private:
  HWY_INLINE void until(std::int64_t last) {
    if (pairs_.masked || map_.capped) {
      keys<true>(last);
    } else {
      keys<false>(last);
    }
  }

  template <bool kChanged>
  HWY_INLINE void keys(std::int64_t last) {
    for (std::int64_t query = 0; query < amx::kBlock; query += kLanes) {
      std::optional<LaneInterval> visible;
      if (kChanged && pairs_.masked) {
        visible.emplace(memory_.visible_begin + query, memory_.visible_end + query, key_begin_);
      }
      for (std::int64_t key = key_; key < last; key += 2) {
        const Vec even = one_key<kChanged>(key, query, visible);
        const Vec odd = one_key<kChanged>(key + 1, query, visible);
        Unit::narrow_pairs(even, odd,
                           memory_.d_score_pairs + query / amx::kTileRows * memory_.pair_group_stride +
                               key / 2 * amx::kTileDepth + query % amx::kTileRows * 2);
      }
    }
    key_ = last;
  }

  /// Stores P and dS of a key and kLanes queries as rows; returns dS.
  template <bool kChanged>
  HWY_INLINE Vec one_key(std::int64_t key, std::int64_t query, const std::optional<LaneInterval>& visible) const {
    const Floats d;
    const std::int64_t at = key * amx::kBlock + query;
    Vec s = hn::Load(d, pairs_.scores + at);
    if (kChanged && map_.capped) s = tanh(hn::Mul(s, hn::Set(d, map_.tanh_scale)));
    // An lse that does not belong to these inputs must not overflow P. NaN passes.
    const Vec exponent = hn::MulSub(s, hn::Set(d, map_.score_scale), hn::Load(d, memory_.lse + query));
    const Vec most = hn::Set(d, 127.0F);
    Vec p = exp2(hn::IfThenElse(hn::Gt(exponent, most), most, exponent));
    Vec ds = hn::Mul(p, hn::Sub(hn::Load(d, pairs_.d_probabilities + at), hn::Load(d, memory_.delta + query)));
    if (kChanged && map_.capped) ds = hn::Mul(ds, hn::NegMulAdd(s, s, hn::Set(d, 1.0F)));
    if (kChanged && pairs_.masked) {
      const auto seen = visible->contains(key);
      p = hn::IfThenElseZero(seen, p);
      ds = hn::IfThenElseZero(seen, ds);
    }
    const std::int64_t row =
        key / amx::kTileRows * memory_.row_group_stride + key % amx::kTileRows * amx::kTileDepth + query;
    Unit::narrow(p, memory_.probability_rows + row);
    Unit::narrow(ds, memory_.d_score_rows + row);
    return ds;
  }

  const Pairs pairs_;
  const DerivativeMemory memory_;
  const ScoreMap& map_;
  const std::int64_t key_begin_;
  std::int64_t key_;
  std::int64_t keys_per_call_ = 0;
};

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_AMX_NAMESPACE();

#endif  // STROBE_CPU_AMX_DIFFERENTIATE_INL_H_
