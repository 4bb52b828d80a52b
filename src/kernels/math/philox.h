// SPDX-License-Identifier: Apache-2.0
// Dropout's random numbers: Philox4x32-7, the same on every engine. Which slice belongs to which element is written in
// include/strobe/dropout.h.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), section 3.3; 7 rounds pass every test of
// their table 2.
#pragma once

namespace strobe {

struct PhiloxBlock {
  unsigned word[4];
};

struct PhiloxKey {
  unsigned low;
  unsigned high;
};

inline constexpr int kPhiloxRounds = 7;
inline constexpr unsigned kPhiloxMultiplier0 = 0xD2511F53U;
inline constexpr unsigned kPhiloxMultiplier1 = 0xCD9E8D57U;
inline constexpr unsigned kPhiloxWeyl0 = 0x9E3779B9U;
inline constexpr unsigned kPhiloxWeyl1 = 0xBB67AE85U;

constexpr PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const unsigned long long even = static_cast<unsigned long long>(kPhiloxMultiplier0) * counter.word[0];
    const unsigned long long odd = static_cast<unsigned long long>(kPhiloxMultiplier1) * counter.word[2];
    counter = {{static_cast<unsigned>(odd >> 32) ^ counter.word[1] ^ key.low, static_cast<unsigned>(odd),
                static_cast<unsigned>(even >> 32) ^ counter.word[3] ^ key.high, static_cast<unsigned>(even)}};
    key = {key.low + kPhiloxWeyl0, key.high + kPhiloxWeyl1};
  }
  return counter;
}

/// One call's dropout: key, the offset's part of the counter, and what a slice is compared with.
struct DropoutKey {
  PhiloxKey key;
  unsigned offset;
  unsigned threshold;  // of 256: slices below it are dropped

  constexpr float keep_probability() const { return static_cast<float>(256U - threshold) / 256.0F; }
};

/// The key of the same dropout with another seed and offset.
constexpr DropoutKey with_state(const DropoutKey& dropout, unsigned long long seed, unsigned long long offset) {
  return {.key = {static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32) ^ static_cast<unsigned>(offset >> 32)},
          .offset = static_cast<unsigned>(offset),
          .threshold = dropout.threshold};
}

/// `probability` in [0, 1). At most 255 of 256 are dropped: something is kept.
constexpr DropoutKey dropout_key(float probability, unsigned long long seed, unsigned long long offset) {
  const auto halves = static_cast<unsigned>(static_cast<double>(probability) * 512.0);
  const unsigned rounded = (halves + 1U) / 2U;
  return with_state({.key = {}, .offset = 0, .threshold = rounded < 255U ? rounded : 255U}, seed, offset);
}

// One block serves a patch of four queries by four keys, of each {a, a + 1, a + 8, a + 9}.

/// The number of a query's or key's patch along its axis, and its place in it.
constexpr unsigned dropout_patch(unsigned position) { return position / 16 * 4 + position / 2 % 4; }
constexpr unsigned dropout_place(unsigned position) { return position / 8 % 2 * 2 + position % 2; }

/// Counter of the block that serves a query and a key; `head` counts through the whole batch.
constexpr PhiloxBlock dropout_counter(const DropoutKey& dropout, unsigned head, unsigned query, unsigned key) {
  return {{dropout_patch(key), dropout_patch(query), head, dropout.offset}};
}

/// Their slice of the block.
constexpr unsigned dropout_slice(const PhiloxBlock& block, unsigned query, unsigned key) {
  return block.word[dropout_place(query)] >> (8 * dropout_place(key)) & 0xFFU;
}

}  // namespace strobe
