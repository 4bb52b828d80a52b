// SPDX-License-Identifier: Apache-2.0
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
  WordVec query = hn::Zero(Words());
  WordVec head = hn::Zero(Words());

  DropoutLanes(const GroupDropout& task, std::int64_t row, std::int64_t group) {
    HWY_ALIGN unsigned queries[kLanes];
    HWY_ALIGN unsigned heads[kLanes];
    for_each_lane(row, group, [&](std::int64_t lane, std::int64_t position, std::int64_t head_of_group) {
      queries[lane] = static_cast<unsigned>(position);
      heads[lane] = task.head + static_cast<unsigned>(head_of_group);
    });
    query = hn::Load(Words(), queries);
    head = hn::Load(Words(), heads);
  }
};

/// Philox block `t` of each lane's query for the keys from `key` on, a multiple of kSliceBlock: the halves of word j
/// are the slices of keys 8 j + 2 t and the next.
HWY_INLINE PhiloxVecs draw(const GroupDropout& task, const DropoutLanes& lanes, std::int64_t key, int t) {
  const Words w;
  const unsigned counter = dropout_counter(task.key, 0, 0, static_cast<unsigned>(key + 2 * t)).word[0];
  return philox({{hn::Set(w, counter), lanes.query, lanes.head, hn::Set(w, task.key.offset)}}, task.key.key);
}

/// Which lanes are kept. Slices have 16 bits: a signed comparison, which every instruction set has, does.
HWY_INLINE hn::Mask<Floats> kept(WordVec slices, unsigned threshold) {
  const Ints d;
  return hn::RebindMask(Floats(), hn::Gt(hn::BitCast(d, slices), hn::Set(d, static_cast<std::int32_t>(threshold) - 1)));
}

/// Zeros what is dropped of one vector of queries' probabilities over keys [first, last) of the tile at key_begin.
HWY_INLINE void drop_keys(const GroupDropout& task, const DropoutLanes& lanes, std::int64_t key_begin,
                          std::int64_t first, std::int64_t last, float* HWY_RESTRICT probabilities) {
  const Floats d;
  const Words w;
  const auto drop = [&](std::int64_t key, WordVec slice) {
    if (key < first || key >= last) return;
    float* HWY_RESTRICT at = probabilities + key * kPanel;
    hn::Store(hn::IfThenElseZero(kept(slice, task.key.threshold), hn::Load(d, at)), d, at);
  };
  for (std::int64_t block = round_down(key_begin + first, kSliceBlock); block < key_begin + last;
       block += kSliceBlock) {
    for (int t = 0; t < kBlocksPerRow; ++t) {
      const PhiloxVecs random = draw(task, lanes, block, t);
      for (int j = 0; j < 4; ++j) {
        const std::int64_t key = block - key_begin + 8 * j + 2 * t;
        drop(key, hn::And(random.word[j], hn::Set(w, 0xFFFFU)));
        drop(key + 1, hn::ShiftRight<16>(random.word[j]));
      }
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
/// Bit i of to[row * stride]: whether key first_key + i is kept, for up to kKeepRows rows from `row` on; first_key is a
/// multiple of 32. The four Philox blocks of each row lie side by side in the lanes.
inline constexpr std::int64_t kKeepRows = kLanes / kBlocksPerRow;
HWY_INLINE void keep_bits(const GroupDropout& task, std::int64_t group, std::int64_t row, std::int64_t rows,
                          std::int64_t first_key, std::int64_t stride, std::uint32_t* HWY_RESTRICT to) {
  const Words w;
  const hn::Repartition<std::int16_t, Words> slices;
  HWY_ALIGN unsigned queries[kLanes];
  HWY_ALIGN unsigned heads[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) {
    const std::int64_t at = row + i / kBlocksPerRow;
    queries[i] = static_cast<unsigned>(at / group);
    heads[i] = task.head + static_cast<unsigned>(at % group);
  }
  const WordVec block = hn::And(hn::Iota(w, 0U), hn::Set(w, kBlocksPerRow - 1U));
  const unsigned counter = dropout_counter(task.key, 0, 0, static_cast<unsigned>(first_key)).word[0];
  const PhiloxVecs random = philox(
      {{hn::Add(block, hn::Set(w, counter)), hn::Load(w, queries), hn::Load(w, heads), hn::Set(w, task.key.offset)}},
      task.key.key);
  // With their highest bits flipped, unsigned numbers compare as signed ones do.
  const auto below = hn::Set(slices, static_cast<std::int16_t>((task.key.threshold - 1U) ^ 0x8000U));
  for (std::int64_t r = 0; r < rows; ++r) to[r * stride] = 0;
  for (int j = 0; j < 4; ++j) {
    // Word j of a row's four blocks holds the slices of eight keys, in their order.
    const auto flipped = hn::BitCast(slices, hn::Xor(random.word[j], hn::Set(w, 0x80008000U)));
    std::uint8_t bits[8] = {};
    hn::StoreMaskBits(slices, hn::Gt(flipped, below), bits);
    for (std::int64_t r = 0; r < rows; ++r) to[r * stride] |= std::uint32_t{bits[r]} << (8 * j);
  }
}
#else
inline constexpr std::int64_t kKeepRows = 1;
HWY_INLINE void keep_bits(const GroupDropout& task, std::int64_t group, std::int64_t row, std::int64_t,
                          std::int64_t first_key, std::int64_t, std::uint32_t* HWY_RESTRICT to) {
  *to = 0;
  for (unsigned t = 0; t < kBlocksPerRow; ++t) {
    const PhiloxBlock counter =
        dropout_counter(task.key, task.head + static_cast<unsigned>(row % group), static_cast<unsigned>(row / group),
                        static_cast<unsigned>(first_key) + 2 * t);
    const PhiloxBlock block = strobe::philox(counter, task.key.key);
    for (unsigned key = 2 * t; key < 32; key += key % 2 == 0 ? 1 : 7) {
      *to |= static_cast<std::uint32_t>(dropout_slice(block, key) >= task.key.threshold) << key;
    }
  }
}
#endif

/// Which keys of a block a row keeps: a word for each 32 keys from a multiple of 32 on.
class KeptKeys {
 public:
  explicit KeptKeys(std::uint32_t* bits) : bits_(bits) {}

  /// Draws for `rows` query rows from `row_begin` on and keys [key_begin, key_end).
  void draw(const GroupDropout& task, std::int64_t group, std::int64_t row_begin, std::int64_t rows,
            std::int64_t key_begin, std::int64_t key_end) {
    const std::int64_t first_key = round_down(key_begin, kSliceBlock);
    skipped_ = key_begin - first_key;
    words_ = ceil_div(key_end - first_key, kSliceBlock);
    for (std::int64_t row = 0; row < rows; row += kKeepRows) {
      for (std::int64_t word = 0; word < words_; ++word) {
        keep_bits(task, group, row_begin + row, std::min(kKeepRows, rows - row), first_key + word * kSliceBlock, words_,
                  bits_ + row * words_ + word);
      }
    }
  }

  /// kLanes keys from `key` on, counted from key_begin; key_begin + key is a multiple of kLanes.
  HWY_INLINE hn::Mask<Floats> at(std::int64_t row, std::int64_t key) const {
    const Words w;
    const std::int64_t bit = skipped_ + key;
    const std::uint32_t bits = bits_[row * words_ + bit / kSliceBlock] >> (bit % kSliceBlock);
    HWY_ALIGN static constexpr std::uint32_t kLaneBits[16] = {1U << 0,  1U << 1,  1U << 2,  1U << 3, 1U << 4,  1U << 5,
                                                              1U << 6,  1U << 7,  1U << 8,  1U << 9, 1U << 10, 1U << 11,
                                                              1U << 12, 1U << 13, 1U << 14, 1U << 15};
    static_assert(kLanes <= 16);
    return hn::RebindMask(Floats(), hn::TestBit(hn::Set(w, bits), hn::Load(w, kLaneBits)));
  }

 private:
  std::uint32_t* bits_;
  std::int64_t words_ = 0;
  std::int64_t skipped_ = 0;
};

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_DROPOUT_INL_H_
