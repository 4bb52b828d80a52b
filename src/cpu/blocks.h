// SPDX-License-Identifier: Apache-2.0
// Cutting sequences into blocks: the arithmetic that the CPU engine's tile sizes share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/heads.h"
#include "call/problem.h"

namespace strobe::cpu {

/// The largest multiple of `multiple` up to `value`, but one at least.
inline std::int64_t whole_multiple(std::int64_t value, std::int64_t multiple) {
  return std::max(multiple, round_down(value, multiple));
}

/// Even blocks of at most `most` rows, at least `wanted` of them in `sequences` sequences of `rows` rows; a multiple of
/// `multiple`.
inline std::int64_t even_block(std::int64_t rows, std::int64_t most, std::int64_t sequences, std::int64_t wanted,
                               std::int64_t multiple) {
  const std::int64_t per_sequence = ceil_div(wanted, std::max<std::int64_t>(sequences, 1));
  const std::int64_t blocks = std::max(ceil_div(rows, most), std::min(per_sequence, ceil_div(rows, multiple)));
  return round_up(ceil_div(rows, blocks), multiple);
}

/// Rows of the longest sequence and a group of heads, of which tiles are cut; at least 1.
inline std::int64_t longest_group_rows(const AttentionProblem& problem) {
  return std::max<std::int64_t>((Checked(problem.seqlen_q) * heads_per_group(problem)).value(), 1);
}

/// Key heads over the batch.
inline std::int64_t key_heads(const AttentionProblem& problem) {
  return (Checked(problem.batch) * problem.heads_kv).value();
}

/// Rows of one row of a block mask's blocks, halved while they are more than `most` and stay a multiple of `multiple`:
/// a block of rows then lies in one row of the mask.
inline std::int64_t masked_block(const AttentionProblem& problem, std::int64_t most, std::int64_t multiple) {
  std::int64_t rows = (Checked(problem.modifiers.block_size) * heads_per_group(problem)).value();
  while (rows > most && rows % (2 * multiple) == 0) rows /= 2;
  return rows;
}

}  // namespace strobe::cpu
