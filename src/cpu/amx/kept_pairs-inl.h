// SPDX-License-Identifier: Apache-2.0
// Dropout of queries across the lanes: the random numbers of kernels/dropout-inl.h for pairs of keys.
#if defined(STROBE_CPU_AMX_KEPT_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_AMX_KEPT_PAIRS_INL_H_
#undef STROBE_CPU_AMX_KEPT_PAIRS_INL_H_
#else
#define STROBE_CPU_AMX_KEPT_PAIRS_INL_H_
#endif

#include <optional>

#include "cpu/amx/attributes-inl.h"
#include "cpu/amx/scratch.h"
#include "cpu/kernels/dropout-inl.h"

STROBE_BEFORE_AMX_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// Vectors across the kBlock queries of a panel.
inline constexpr int kBlockVecs = static_cast<int>(amx::kBlock / kLanes);
static_assert(amx::kBlock == kSliceBlock, "blocks of keys are drawn whole");

/// Which of kBlock keys each of kBlock queries keeps.
class KeptPairs {
 public:
  /// Queries from `row` on, heads interleaved with positions as in GroupRows.
  KeptPairs(const GroupDropout& task, std::int64_t row, std::int64_t group) : task_(task) {
    if (!task.given) return;
    for (int v = 0; v < kBlockVecs; ++v) lanes_[v].emplace(task, row + v * kLanes, group);
  }

  bool given() const { return task_.given; }

  /// Draws for the kBlock keys from `key` of the sequence on, a multiple of kBlock.
  void draw(std::int64_t key) {
    for (int v = 0; v < kBlockVecs; ++v) {
      for (int t = 0; t < kBlocksPerRow; ++t) {
        const PhiloxVecs random = strobe::cpu::HWY_NAMESPACE::draw(task_, *lanes_[v], key, t);
        for (int j = 0; j < 4; ++j) hn::Store(random.word[j], Words(), words_[v][kBlocksPerRow * j + t]);
      }
    }
  }

  /// Which queries of vector `v` keep key `key` of those drawn.
  HWY_INLINE hn::Mask<Floats> at(int v, std::int64_t key) const {
    const Words w;
    const WordVec pair = hn::Load(w, words_[v][key / 2]);
    return kept(key % 2 == 0 ? hn::And(pair, hn::Set(w, 0xFFFFU)) : hn::ShiftRight<16>(pair), task_.key.threshold);
  }

 private:
  const GroupDropout& task_;
  std::optional<DropoutLanes> lanes_[kBlockVecs];
  HWY_ALIGN std::uint32_t words_[kBlockVecs][amx::kBlock / 2][kLanes];  // slices of a key and the next
};

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_AMX_NAMESPACE();

#endif  // STROBE_CPU_AMX_KEPT_PAIRS_INL_H_
