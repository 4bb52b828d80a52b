// SPDX-License-Identifier: Apache-2.0
// Inputs on which 8-bit attention is measured.
#pragma once

#include <cstdint>
#include <vector>

namespace strobe::reference {

enum class EightBitInputs : std::uint8_t {
  normal,           // N(0, 1)
  outliers,         // N(0, 1) + N(0, 100) * Bernoulli(0.001): FlashAttention-3 (2024), section 4.3
  biased_channels,  // four channels of K far from zero, as those of real models
  sink,             // a first key that all queries see best, with a small value
  peaked,           // each query sees one key best
  unequal_values,   // values of unequal norm
};

inline constexpr EightBitInputs kEightBitInputs[] = {EightBitInputs::normal,          EightBitInputs::outliers,
                                                     EightBitInputs::biased_channels, EightBitInputs::sink,
                                                     EightBitInputs::peaked,          EightBitInputs::unequal_values};

const char* name_of(EightBitInputs inputs);

/// Each [1, seqlen, heads, head_dim], row-major, rounded to what float16 holds. The same on every machine.
struct EightBitTensors {
  std::vector<float> q, k, v;
};
EightBitTensors make_eight_bit_inputs(EightBitInputs inputs, std::int64_t seqlen, std::int64_t heads,
                                      std::int64_t head_dim, std::uint64_t seed);

/// Queries [1, queries, heads, head_dim] that each look for one of seqlen_k keys, at depths evenly spread: the product
/// of the two gives it a weight of about 0.7 among normal keys. All values are normal.
struct Needles {
  std::int64_t seqlen_k = 0;
  std::int64_t queries = 0;
  EightBitTensors tensors;                 // q has `queries` rows
  std::vector<std::int64_t> key_of_query;  // [heads, queries]
};
Needles make_needles(std::int64_t seqlen_k, std::int64_t queries, std::int64_t heads, std::int64_t head_dim,
                     std::uint64_t seed);

/// Queries whose row of o [1, queries, heads, head_dim] holds more than half of their key's value: the projection on
/// it.
std::int64_t needles_found(const Needles& needles, const float* o, std::int64_t heads, std::int64_t head_dim);

}  // namespace strobe::reference
