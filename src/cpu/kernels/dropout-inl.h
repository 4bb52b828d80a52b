// Dropout's random numbers on vectors: Philox4x32-7, a block in each lane. Which slice belongs to which element:
// include/strobe/dropout.h.
#if defined(STROBE_CPU_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_DROPOUT_INL_H_
#undef STROBE_CPU_DROPOUT_INL_H_
#else
#define STROBE_CPU_DROPOUT_INL_H_
#endif

#include <cstring>

#include "cpu/kernels/scratch.h"
#include "cpu/kernels/task.h"
#include "cpu/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

using Words = hn::RebindToUnsigned<Floats>;
using WordVec = hn::Vec<Words>;

inline constexpr std::int64_t kSliceBlock = 32;  // keys whose slices share a row of Philox blocks
inline constexpr int kBlocksPerRow = 4;          // of Philox, of eight slices each

struct PhiloxVecs {
  WordVec word[4];
};

#if HWY_TARGET != HWY_SCALAR
/// Products of a 32-bit constant with every lane: high and low halves.
struct WideProduct {
  WordVec high;
  WordVec low;

  HWY_INLINE WideProduct(unsigned factor, WordVec x) {
    const Words d;
    const hn::RepartitionToWide<Words> wide;
    const WordVec f = hn::Set(d, factor);
    const auto even = hn::MulEven(f, x);
    const auto odd = hn::MulEven(f, hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, x))));
    low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
    high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  }
};

HWY_INLINE PhiloxVecs philox(PhiloxVecs counter, PhiloxKey key) {
  const Words d;
  HWY_UNROLL(7) for (int round = 0; round < kPhiloxRounds; ++round) {
    const WideProduct even(kPhiloxMultiplier0, counter.word[0]);
    const WideProduct odd(kPhiloxMultiplier1, counter.word[2]);
    counter = {{hn::Xor(hn::Xor(odd.high, counter.word[1]), hn::Set(d, key.low)), odd.low,
                hn::Xor(hn::Xor(even.high, counter.word[3]), hn::Set(d, key.high)), even.low}};
    key = {key.low + kPhiloxWeyl0, key.high + kPhiloxWeyl1};
  }
  return counter;
}
#else
HWY_INLINE PhiloxVecs philox(PhiloxVecs counter, PhiloxKey key) {
  const Words d;
  const PhiloxBlock block = strobe::philox({{hn::GetLane(counter.word[0]), hn::GetLane(counter.word[1]),
                                             hn::GetLane(counter.word[2]), hn::GetLane(counter.word[3])}},
                                           key);
  return {{hn::Set(d, block.word[0]), hn::Set(d, block.word[1]), hn::Set(d, block.word[2]), hn::Set(d, block.word[3])}};
}
#endif

/// Which query rows lie across the lanes, for dropout.
struct DropoutLanes {
  WordVec query;
  WordVec head;

  DropoutLanes(const DropoutTask& task, std::int64_t row, std::int64_t group) {
    HWY_ALIGN unsigned queries[kLanes];
    HWY_ALIGN unsigned heads[kLanes];
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      queries[lane] = static_cast<unsigned>((row + lane) / group);
      heads[lane] = task.head + static_cast<unsigned>((row + lane) % group);
    }
    query = hn::Load(Words(), queries);
    head = hn::Load(Words(), heads);
  }
};

/// Which lanes are kept. Slices have 16 bits: a signed comparison, which every instruction set has, does.
HWY_INLINE hn::Mask<Floats> kept(WordVec slices, unsigned threshold) {
  const Ints d;
  return hn::RebindMask(Floats(), hn::Gt(hn::BitCast(d, slices), hn::Set(d, static_cast<std::int32_t>(threshold) - 1)));
}

/// The same of slices in memory.
HWY_INLINE hn::Mask<Floats> kept(const std::uint16_t* slices, unsigned threshold) {
  return kept(hn::PromoteTo(Words(), hn::LoadU(hn::Rebind<std::uint16_t, Words>(), slices)), threshold);
}

/// Zeros what is dropped of one vector of queries' probabilities over keys [first, last) of the tile at key_begin.
HWY_INLINE void drop_keys(const DropoutTask& task, const DropoutLanes& lanes, std::int64_t key_begin,
                          std::int64_t first, std::int64_t last, float* HWY_RESTRICT probabilities) {
  const Floats d;
  const Words w;
  const auto drop = [&](std::int64_t key, WordVec slice) {
    if (key < first || key >= last) return;
    float* HWY_RESTRICT at = probabilities + key * kPanel;
    hn::Store(hn::IfThenElseZero(kept(slice, task.key.threshold), hn::Load(d, at)), d, at);
  };
  for (std::int64_t block = (key_begin + first) / kSliceBlock * kSliceBlock; block < key_begin + last;
       block += kSliceBlock) {
    for (int t = 0; t < kBlocksPerRow; ++t) {
      const unsigned counter = dropout_counter(task.key, 0, 0, static_cast<unsigned>(block + 2 * t)).word[0];
      const PhiloxVecs random =
          philox({{hn::Set(w, counter), lanes.query, lanes.head, hn::Set(w, task.key.offset)}}, task.key.key);
      for (int j = 0; j < 4; ++j) {
        const std::int64_t key = block - key_begin + 8 * j + 2 * t;
        drop(key, hn::And(random.word[j], hn::Set(w, 0xFFFFU)));
        drop(key + 1, hn::ShiftRight<16>(random.word[j]));
      }
    }
  }
}

/// Slices of keys [first_key, first_key + slice_columns(kPanel)), first_key a multiple of 32, in the order of the keys,
/// for rows [first, last) counted from row_begin. The four Philox blocks of each row lie side by side: as many rows as
/// fill the lanes at once, or a lane at a time.
HWY_INLINE void slices_of_rows(const DropoutTask& task, std::int64_t group, std::int64_t row_begin, std::int64_t first,
                               std::int64_t last, std::int64_t first_key, std::uint16_t* HWY_RESTRICT slices) {
  constexpr std::int64_t kRows = HWY_MAX(kLanes / kBlocksPerRow, 1);
  constexpr std::int64_t kTogether = HWY_MIN(kLanes, kBlocksPerRow);  // blocks of a row in one vector
  constexpr std::int64_t kColumns = slice_columns(kPanel);
  const Words w;
  for (std::int64_t row = first; row < last; row += kRows) {
    HWY_ALIGN unsigned queries[kLanes];
    HWY_ALIGN unsigned heads[kLanes];
    HWY_ALIGN unsigned blocks[kLanes];
    for (std::int64_t i = 0; i < kLanes; ++i) {
      const std::int64_t at = row_begin + std::min(row + i / kTogether, last - 1);
      queries[i] = static_cast<unsigned>(at / group);
      heads[i] = task.head + static_cast<unsigned>(at % group);
      blocks[i] = static_cast<unsigned>(i % kTogether);
    }
    const WordVec query = hn::Load(w, queries);
    const WordVec head = hn::Load(w, heads);
    const WordVec lane = hn::Load(w, blocks);
    for (std::int64_t block = 0; block < kColumns * kBlocksPerRow / kSliceBlock; block += kTogether) {
      const unsigned counter = dropout_counter(task.key, 0, 0, static_cast<unsigned>(first_key)).word[0];
      const PhiloxVecs random = philox({{hn::Add(lane, hn::Set(w, counter + static_cast<unsigned>(block))), query, head,
                                         hn::Set(w, task.key.offset)}},
                                       task.key.key);
      for (int j = 0; j < 4; ++j) {
        HWY_ALIGN unsigned words[kLanes];
        hn::Store(random.word[j], w, words);
        for (std::int64_t r = 0; r < std::min(kRows, last - row); ++r) {
          // Word j of the four blocks holds eight slices in the order of their keys.
          std::memcpy(
              slices + (row + r) * kColumns + block / kBlocksPerRow * kSliceBlock + 8 * j + block % kBlocksPerRow * 2,
              words + r * kTogether, kTogether * sizeof(unsigned));
        }
      }
    }
  }
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_DROPOUT_INL_H_
