// SPDX-License-Identifier: Apache-2.0
// Sentences packed one after another: no padding is stored, and none is computed on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sentence_search {

struct TokenBatch {
  std::vector<std::int32_t> token_ids;         // [total tokens]
  std::vector<std::int32_t> cu_seqlens = {0};  // [sentences + 1]: where each sentence starts, and the total
  std::int32_t max_seqlen = 0;

  std::size_t sentences() const { return cu_seqlens.size() - 1; }
  std::size_t tokens() const { return token_ids.size(); }

  void append(std::span<const std::int32_t> sentence) {
    token_ids.insert(token_ids.end(), sentence.begin(), sentence.end());
    cu_seqlens.push_back(static_cast<std::int32_t>(token_ids.size()));
    max_seqlen = std::max(max_seqlen, static_cast<std::int32_t>(sentence.size()));
  }
};

}  // namespace sentence_search
