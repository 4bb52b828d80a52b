// SPDX-License-Identifier: Apache-2.0
// How the walks cut a sequence into blocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "bench/io_walk.h"

namespace strobe::bench {

/// What a walk keeps in fast memory at once: matrices of head_dim columns and vectors, by the side that they belong to,
/// and tiles of scores, outer x inner.
struct Residents {
  std::int64_t outer_matrices = 1;
  std::int64_t outer_vectors = 0;
  std::int64_t inner_matrices = 1;
  std::int64_t inner_vectors = 0;
  std::int64_t score_tiles = 1;
};

struct BlockSizes {
  std::int64_t outer = 1;
  std::int64_t inner = 1;
};

/// FlashAttention's rule, algorithm 1 line 1: what stays takes half of the fast memory (block_n = M / 4d for K and V),
/// what streams past has at most as many rows, and at most head_dim. The paper counts up to constants; here the second
/// is lowered until all fits. invalid_argument when not even one row of each does.
Result<BlockSizes> block_sizes(const IoProblem& problem, const Residents& residents);

/// Calls visit(Range) for each block of at most `step` rows.
template <class Visit>
void for_blocks(Range rows, std::int64_t step, const Visit& visit) {
  for (std::int64_t begin = rows.begin; begin < rows.end; begin += step) {
    visit(Range{begin, std::min(begin + step, rows.end)});
  }
}

enum class Side : std::uint8_t { queries, keys };

/// Calls visit(Range) for each inner block of at most `step` rows that some row of `outer` sees, or is seen by; `side`
/// is the side that `outer` counts.
template <class Visit>
void for_visible_blocks(const IoProblem& problem, Side side, Range outer, std::int64_t step, const Visit& visit) {
  const BlockMask& mask = problem.mask;
  if (mask.block_size == 0) return for_blocks({0, problem.seqlen}, step, visit);
  for (std::int64_t inner = 0; inner < mask.blocks; ++inner) {
    bool visible = false;
    for (std::int64_t block = outer.begin / mask.block_size; block * mask.block_size < outer.end; ++block) {
      visible |= side == Side::queries ? mask.sees(block, inner) : mask.sees(inner, block);
    }
    const std::int64_t begin = inner * mask.block_size;
    if (visible) for_blocks({begin, std::min(begin + mask.block_size, problem.seqlen)}, step, visit);
  }
}

/// row_max += ln(row_sum): the log-sum-exp of each row.
void add_log(const Tile& row_sum, Tile& row_max);

/// A tile's place in S.
struct Pair {
  Range queries;
  Range keys;
};

/// scores = -inf where the mask hides the key.
void hide(const BlockMask& mask, const Pair& pair, Tile& scores);

/// delta_i = sum_c dO_ic O_ic, row by row: what replaces the sum over a row of P dP.
void add_row_products(const Tile& d_o, const Tile& o, Tile& delta);

/// dS = P (dP - delta), in place of dP.
void softmax_gradient(const Tile& p, const Tile& delta, Tile& dp);

/// Stores `value` everywhere in a matrix, by tiles that fill the fast memory.
void initialize(FastMemory& memory, SlowMatrix& matrix, double value);

/// delta from O and dO, in a pass over both.
void store_delta(FastMemory& memory, const IoProblem& problem, SlowMemory& slow);

inline double scale_of(const IoProblem& problem) { return 1.0 / std::sqrt(static_cast<double>(problem.head_dim)); }

/// One walk each: the block sizes that it used, or why there are none.
Result<BlockSizes> standard_forward(const IoProblem& problem, FastMemory& fast, SlowMemory& slow);
Result<BlockSizes> standard_backward(const IoProblem& problem, FastMemory& fast, SlowMemory& slow);
Result<BlockSizes> flash_attention_forward(const IoProblem& problem, FastMemory& fast, SlowMemory& slow);
Result<BlockSizes> flash_attention_backward(const IoProblem& problem, FastMemory& fast, SlowMemory& slow);
Result<BlockSizes> flash_attention_2_forward(const IoProblem& problem, FastMemory& fast, SlowMemory& slow);
Result<BlockSizes> flash_attention_2_backward(const IoProblem& problem, FastMemory& fast, SlowMemory& slow);

}  // namespace strobe::bench
