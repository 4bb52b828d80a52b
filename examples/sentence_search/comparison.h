// SPDX-License-Identifier: Apache-2.0
// Strobe against standard attention on the attention of a real model: time, memory and error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "encoder.h"
#include "passages.h"
#include "strobe/status.h"
#include "tokenizer.h"

namespace sentence_search {

struct Measurement {
  double seconds = 0.0;
  std::optional<std::int64_t> memory_bytes;  // the process's peak over what it held before; none: the kernel hides it
  double root_mean_square_error = 0.0;       // against float64, over the sampled queries
  double largest_error = 0.0;
};

struct Comparison {
  std::size_t layer = 0;  // whose Q, K and V, from 0
  std::int64_t seqlen = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t sampled_queries = 0;  // per head: float64 is computed for these
  Measurement strobe;
  Measurement standard;
};

/// The longest sequence for which the S and P of one head, which standard attention stores, fit this machine's memory.
std::size_t longest_comparison();

/// Encodes the first `seqlen` tokens of the text, takes one layer's Q, K and V of all of them as one sequence, and runs
/// both attentions on it. A text with fewer tokens gives a shorter sequence.
strobe::Result<Comparison> compare(const Encoder& encoder, const Tokenizer& tokenizer,
                                   const std::vector<Passage>& passages, std::size_t seqlen, int threads);

}  // namespace sentence_search
