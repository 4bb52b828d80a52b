// SPDX-License-Identifier: Apache-2.0
// Dropout of queries across the lanes: the random numbers of kernels/dropout-inl.h for blocks of pairs.
#if defined(STROBE_CPU_BFLOAT16_KEPT_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BFLOAT16_KEPT_PAIRS_INL_H_
#undef STROBE_CPU_BFLOAT16_KEPT_PAIRS_INL_H_
#else
#define STROBE_CPU_BFLOAT16_KEPT_PAIRS_INL_H_
#endif

#include "cpu/bfloat16/attributes-inl.h"
#include "cpu/bfloat16/scratch.h"
#include "cpu/kernels/dropout-inl.h"

STROBE_BEFORE_BFLOAT16_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// Vectors across the kBlock queries of a panel.
inline constexpr int kBlockVecs = static_cast<int>(bf16::kBlock / kLanes);
static_assert(bf16::kBlock == kWordKeys, "blocks of keys are drawn whole");

/// Which of kBlock keys each of kBlock queries keeps.
class KeptPairs {
 public:
  /// Queries from `row` on, heads interleaved with positions as in GroupRows.
  KeptPairs(const GroupDropout& task, std::int64_t row, std::int64_t group) : task_(task), row_(row), group_(group) {}

  bool given() const { return task_.given; }

  /// Draws for the kBlock keys from `key` of the sequence on, a multiple of kBlock.
  void draw(std::int64_t key) { keep_bits(task_, group_, row_, bf16::kBlock, key, 1, words_); }

  /// Which queries of vector `v` keep key `key` of those drawn.
  HWY_INLINE hn::Mask<Floats> at(int v, std::int64_t key) const {
    return kept(hn::Load(Words(), words_ + v * kLanes), key);
  }

 private:
  const GroupDropout& task_;
  std::int64_t row_, group_;
  HWY_ALIGN std::uint32_t words_[bf16::kBlock];  // of each query, a bit for each key
};

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_BFLOAT16_NAMESPACE();

#endif  // STROBE_CPU_BFLOAT16_KEPT_PAIRS_INL_H_
