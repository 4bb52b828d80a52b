// SPDX-License-Identifier: Apache-2.0
// A case drawn from a seed: every option in any combination, shapes small but nasty.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "attention_case.h"

namespace strobe::test {

/// What an engine takes: nothing beyond it is drawn. The defaults are the CPU engine's.
struct EngineLimits {
  std::vector<DType> dtypes{DType::float32, DType::float16, DType::bfloat16};
  // head_dim and head_dim_v, or each up to 24 less: where a kernel serves a range of them and is compiled on first use.
  // Empty: any.
  std::vector<std::array<std::int64_t, 2>> head_dims;
  std::int64_t longest = 400;     // sequence; beyond 400 half of the cases are drawn up to it
  std::int64_t most_queries = 0;  // above 0: sequences have so many queries at most, and keys up to `longest`
  std::int64_t alignment = 1;     // elements: head_dims, strides and first elements are multiples of it
  bool any_scale = true;          // not only positive ones
  bool alibi = true;
  bool bias = true;
  bool sink = true;
  bool block_mask = true;
  bool chunk = true;
  bool dropout = true;
  bool max_logits = true;
  bool row_invariant = true;
  bool tree_mask = true;
  bool offsets = true;
  bool qv = true;
  bool text = true;       // score and mask expressions
  bool normalize = true;  // scores that are not normalized, too
  bool backward = true;
};

AttentionCase random_case(std::uint64_t seed, const EngineLimits& limits = {});

/// Makes the case's sequences parts of longer ones, of which the queries see all keys, some or none.
void draw_offsets(AttentionCase& attention, Random& random);

/// Takes the softmax from the case, and what belongs to it. Half of such cases have a text of their own where `limits`
/// allow texts, others what they have drawn or none: linear attention.
void draw_unnormalized(AttentionCase& attention, const EngineLimits& limits, Random& random);

/// Whether random_case() never draws the two together: by their names in options_of().
bool contradict(const std::string& one, const std::string& other);

/// A case whose rows have the same bits in parts of it: row-invariant, and without what parts of a sequence have
/// otherwise.
AttentionCase as_row_invariant(AttentionCase attention);

}  // namespace strobe::test
