// SPDX-License-Identifier: Apache-2.0
// Passages as vectors, and the nearest of them to a query.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "encoder.h"
#include "passages.h"
#include "strobe/status.h"
#include "tokenizer.h"

namespace sentence_search {

struct Hit {
  std::size_t passage;
  float score;  // cosine of the angle between query and passage: 1 means the same
};

/// What has been encoded of a text.
struct Index {
  std::vector<std::size_t> passages;  // in the order in which they were encoded
  std::vector<float> embeddings;      // [passages, hidden_size], rows of length 1
  std::size_t tokens = 0;
  double seconds = 0.0;

  /// The `count` best passages, best first. `query` is a vector of length 1.
  std::vector<Hit> nearest(const std::vector<float>& query, std::size_t count) const;
};

/// The passage that is encoded as number `visit`, from 0: every passage has its turn, and whatever the first ones are,
/// they are spread evenly over the text.
std::size_t encoding_order(std::size_t visit, std::size_t passages);

/// Encodes passages in varlen batches in encoding_order until `budget_seconds` are used up; at least one batch.
strobe::Result<Index> build_index(const Encoder& encoder, const Tokenizer& tokenizer,
                                  const std::vector<Passage>& passages, double budget_seconds);

/// Every passage, encoded before: float32 [passages, hidden_size] in the text's order, from a .npy file as
/// gpu_encoder.py writes it. invalid_argument when the file holds something else.
strobe::Result<Index> load_index(const std::filesystem::path& path, std::size_t passages, std::size_t hidden_size);

}  // namespace sentence_search
