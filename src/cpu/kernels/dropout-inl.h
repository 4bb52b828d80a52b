// SPDX-License-Identifier: Apache-2.0
// Dropout's random numbers on vectors: Philox4x32-7, a block in each lane. Which slice belongs to which element:
// include/strobe/dropout.h.
#if defined(STROBE_CPU_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_DROPOUT_INL_H_
#undef STROBE_CPU_DROPOUT_INL_H_
#else
#define STROBE_CPU_DROPOUT_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "cpu/kernels/scratch.h"
#include "cpu/kernels/task.h"
#include "cpu/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

inline constexpr std::int64_t kWordKeys = 32;  // a word of bits says which of them a row keeps

struct PhiloxVecs {
  FixedWordVec word[4];
};

#if HWY_TARGET != HWY_SCALAR
/// Products of a 32-bit constant with every lane: high and low halves.
struct WideProduct {
  FixedWordVec high;
  FixedWordVec low;

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

#if HWY_TARGET != HWY_SCALAR
inline constexpr std::int64_t kGroup = 16;  // positions in a row that share kGroupPatches patches
inline constexpr std::int64_t kGroupPatches = 4;

/// Of the rows row, row + 1, ... = position * group + head, those of one patch of queries and one head, whose random
/// numbers for sixteen keys lie in kGroupPatches lanes.
struct PatchRows {
  std::int64_t position;  // its first
  std::int64_t head;
};

/// Of 16 bits, one for each slice of four blocks of Philox, to one for each key, four times.
HWY_INLINE std::uint64_t in_order_of_keys(std::uint64_t bits) {
  const auto swap = [&](int distance, std::uint64_t mask) {
    const std::uint64_t moved = ((bits >> distance) ^ bits) & mask;
    bits ^= moved ^ (moved << distance);
  };
  swap(2, 0x0C0C0C0C0C0C0C0CU);
  swap(4, 0x00F000F000F000F0U);
  return bits;
}

/// Draws for a vector of patches and the sixteen keys from first_key on: set(patch, place, bits) for each, where bit i
/// of `bits` says whether the query of that place keeps key i.
template <class Set>
HWY_INLINE void draw_patches(const GroupDropout& task, const PatchRows* patches, std::int64_t first_key,
                             const Set& set) {
  const Words w;
  const hn::Repartition<std::int8_t, Words> slices;
  HWY_ALIGN unsigned queries[kLanes];
  HWY_ALIGN unsigned heads[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) {
    const PatchRows& rows = patches[i / kGroupPatches];
    queries[i] = dropout_patch(static_cast<unsigned>(rows.position));
    heads[i] = task.head + static_cast<unsigned>(rows.head);
  }
  const WordVec keys = hn::Add(hn::And(hn::Iota(w, 0U), hn::Set(w, static_cast<unsigned>(kGroupPatches - 1))),
                               hn::Set(w, dropout_patch(static_cast<unsigned>(first_key))));
  const PhiloxVecs random =
      philox({{keys, hn::Load(w, queries), hn::Load(w, heads), hn::Set(w, task.key.offset)}}, task.key.key);
  // With their highest bits flipped, unsigned numbers compare as signed ones do.
  const auto below = hn::Set(slices, static_cast<std::int8_t>((task.key.threshold - 1U) ^ 0x80U));
  for (int place = 0; place < 4; ++place) {
    const auto flipped = hn::BitCast(slices, hn::Xor(random.word[place], hn::Set(w, 0x80808080U)));
    std::uint8_t bytes[8] = {};
    hn::StoreMaskBits(slices, hn::Gt(flipped, below), bytes);
    std::uint64_t bits;
    std::memcpy(&bits, bytes, sizeof(bits));
    bits = in_order_of_keys(bits);
    for (std::int64_t i = 0; i < kLanes / kGroupPatches; ++i) {
      set(patches[i], place, static_cast<std::uint32_t>(bits >> (kGroup * i)) & 0xFFFFU);
    }
  }
}

/// keep_bits() of the kGroup rows from a multiple of kGroup on, in a group of one: whole patches, of which each bit
/// goes to a place that the compiler knows.
HWY_INLINE void keep_whole_patches(const GroupDropout& task, std::int64_t row, std::int64_t first_key,
                                   std::int64_t stride, std::uint32_t* HWY_RESTRICT to) {
  constexpr std::int64_t kPatches = kLanes / kGroupPatches;
  for (std::int64_t first = 0; first < kGroupPatches; first += kPatches) {
    PatchRows patches[kPatches];
    for (std::int64_t i = 0; i < kPatches; ++i) patches[i] = {row + 2 * (first + i), 0};
    std::uint32_t* HWY_RESTRICT own = to + 2 * first * stride;
    const auto place_of = [&](const PatchRows& of, int place) {
      return own + (2 * (&of - patches) + place % 2 + place / 2 * 8) * stride;
    };
    draw_patches(task, patches, first_key,
                 [&](const PatchRows& of, int place, std::uint32_t bits) { *place_of(of, place) = bits; });
    draw_patches(task, patches, first_key + kGroup,
                 [&](const PatchRows& of, int place, std::uint32_t bits) { *place_of(of, place) |= bits << kGroup; });
  }
}

/// Bit i of to[r * stride]: whether row `row` + r keeps key first_key + i, a multiple of 32. Rows and keys are those of
/// whole sequences.
HWY_INLINE void keep_aligned_bits(const GroupDropout& task, std::int64_t group, std::int64_t row, std::int64_t rows,
                                  std::int64_t first_key, std::int64_t stride, std::uint32_t* HWY_RESTRICT to) {
  if (group == 1 && row % kGroup == 0) {
    for (; rows >= kGroup; rows -= kGroup, row += kGroup, to += kGroup * stride) {
      keep_whole_patches(task, row, first_key, stride, to);
    }
    if (rows == 0) return;
  }
  constexpr std::int64_t kPatches = kLanes / kGroupPatches;
  for (std::int64_t r = 0; r < rows; ++r) to[r * stride] = 0;
  PatchRows patches[kPatches] = {};
  std::int64_t count = 0;
  const auto draw = [&] {
    for (std::int64_t half = 0; half < 2; ++half) {
      draw_patches(task, patches, first_key + kGroup * half, [&](const PatchRows& of, int place, std::uint32_t bits) {
        if (&of - patches >= count) return;
        const std::int64_t r = (of.position + place % 2 + place / 2 * 8) * group + of.head - row;
        if (r >= 0 && r < rows) to[r * stride] |= bits << (kGroup * half);
      });
    }
    count = 0;
  };
  const std::int64_t first = row / group;
  const std::int64_t last = (row + rows - 1) / group;
  for (std::int64_t begin = round_down(first, kGroup); begin <= last; begin += kGroup) {
    for (std::int64_t position = begin; position < begin + 8; position += 2) {
      const auto reaches = [&](std::int64_t two) { return two <= last && two + 1 >= first; };
      if (!reaches(position) && !reaches(position + 8)) continue;
      for (std::int64_t head = 0; head < group; ++head) {
        patches[count++] = {position, head};
        if (count == kPatches) draw();
      }
    }
  }
  if (count > 0) draw();
}
#else
HWY_INLINE void keep_aligned_bits(const GroupDropout& task, std::int64_t group, std::int64_t row, std::int64_t rows,
                                  std::int64_t first_key, std::int64_t stride, std::uint32_t* HWY_RESTRICT to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto query = static_cast<unsigned>((row + r) / group);
    const unsigned head = task.head + static_cast<unsigned>((row + r) % group);
    std::uint32_t& bits = to[r * stride];
    bits = 0;
    for (unsigned i = 0; i < kWordKeys; ++i) {
      const unsigned key = static_cast<unsigned>(first_key) + i;
      const PhiloxBlock block = strobe::philox(dropout_counter(task.key, head, query, key), task.key.key);
      bits |= static_cast<std::uint32_t>(dropout_slice(block, query, key) >= task.key.threshold) << i;
    }
  }
}
#endif

/// Words of keep_aligned_bits() for keys from first_key on, without their first `skipped` bits, and with as many of the
/// words that follow.
static HWY_NOINLINE HWY_MAYBE_UNUSED void shift_bits(const GroupDropout& task, std::int64_t group, std::int64_t row,
                                                     std::int64_t rows, std::int64_t first_key, std::int64_t skipped,
                                                     std::int64_t stride, std::uint32_t* words) {
  std::uint32_t next[kPanel];
  for (std::int64_t begin = 0; begin < rows; begin += kPanel) {
    const std::int64_t count = std::min(kPanel, rows - begin);
    keep_aligned_bits(task, group, row + begin, count, first_key + kWordKeys, 1, next);
    for (std::int64_t r = 0; r < count; ++r) {
      std::uint32_t& word = words[(begin + r) * stride];
      word = word >> skipped | next[r] << (kWordKeys - skipped);
    }
  }
}

/// Bit i of to[r * stride]: whether the call's row `row` + r keeps its key first_key + i, a multiple of 32.
HWY_INLINE void keep_bits(const GroupDropout& task, std::int64_t group, std::int64_t row, std::int64_t rows,
                          std::int64_t first_key, std::int64_t stride, std::uint32_t* HWY_RESTRICT to) {
  row += task.first_position * group;
  first_key += task.first_key;
  const std::int64_t skipped = first_key % kWordKeys;  // of parts of sequences a word may lie across two
  keep_aligned_bits(task, group, row, rows, first_key - skipped, stride, to);
  if (skipped != 0) shift_bits(task, group, row, rows, first_key - skipped, skipped, stride, to);
}

/// Which lanes have bit `key` of their words.
HWY_INLINE hn::Mask<Floats> kept(WordVec words, std::int64_t key) {
  return hn::RebindMask(Floats(), hn::TestBit(words, hn::Set(Words(), 1U << key)));
}

/// Zeros what is dropped of the probabilities of `vectors` vectors of rows from `row` on, over keys [first, last) of
/// the tile at key_begin.
HWY_INLINE void drop_keys(const GroupDropout& task, std::int64_t group, std::int64_t row, int vectors,
                          std::int64_t key_begin, std::int64_t first, std::int64_t last,
                          float* HWY_RESTRICT probabilities) {
  const Floats d;
  HWY_ALIGN std::uint32_t words[kPanel];
  for (std::int64_t block = round_down(key_begin + first, kWordKeys); block < key_begin + last; block += kWordKeys) {
    keep_bits(task, group, row, vectors * kLanes, block, 1, words);
    const std::int64_t begin = std::max(block, key_begin + first);
    const std::int64_t end = std::min(block + kWordKeys, key_begin + last);
    for (std::int64_t lane = 0; lane < vectors * kLanes; lane += kLanes) {
      const WordVec bits = hn::Load(Words(), words + lane);
      for (std::int64_t key = begin; key < end; ++key) {
        float* HWY_RESTRICT at = probabilities + (key - key_begin) * kPanel + lane;
        hn::Store(hn::IfThenElseZero(kept(bits, key - block), hn::Load(d, at)), d, at);
      }
    }
  }
}

/// Which keys of a block a row keeps: a word for each 32 keys from a multiple of 32 on.
class KeptKeys {
 public:
  explicit KeptKeys(std::uint32_t* bits) : bits_(bits) {}

  /// Draws for `rows` query rows from `row_begin` on and keys [key_begin, key_end).
  void draw(const GroupDropout& task, std::int64_t group, std::int64_t row_begin, std::int64_t rows,
            std::int64_t key_begin, std::int64_t key_end) {
    const std::int64_t first_key = round_down(key_begin, kWordKeys);
    skipped_ = key_begin - first_key;
    words_ = ceil_div(key_end - first_key, kWordKeys);
    for (std::int64_t word = 0; word < words_; ++word) {
      keep_bits(task, group, row_begin, rows, first_key + word * kWordKeys, words_, bits_ + word);
    }
  }

  /// kLanes keys from `key` on, counted from key_begin; key_begin + key is a multiple of kLanes.
  HWY_INLINE hn::Mask<Floats> at(std::int64_t row, std::int64_t key) const {
    const Words w;
    const std::int64_t bit = skipped_ + key;
    const std::uint32_t bits = bits_[row * words_ + bit / kWordKeys] >> (bit % kWordKeys);
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
