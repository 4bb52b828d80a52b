// SPDX-License-Identifier: Apache-2.0
// Attention executed tile by tile through a fast memory of M elements, in the orders of the literature, to count what
// each moves. One head of one sequence, as many keys as queries.
//
// Sources: Dao et al., "FlashAttention" (2022), algorithms 0 and 1 (forward), 3 and 4 (backward), section 3.3
// (block-sparse); Dao, "FlashAttention-2" (2023), algorithms 1 and 2.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/io_memory.h"
#include "strobe/status.h"

namespace strobe::bench {

enum class Order : std::uint8_t {
  standard,           // S and P whole in slow memory
  flash_attention,    // K and V outside, Q inside; O, l and m are read and written at every visit
  flash_attention_2,  // Q outside, K and V inside; in the backward K and V outside
};

/// Which blocks of keys a block of queries sees; block_size 0: all.
struct BlockMask {
  std::int64_t block_size = 0;
  std::int64_t blocks = 1;  // ceil(seqlen / block_size), of queries and of keys
  std::vector<std::uint8_t> visible{1};

  bool sees(std::int64_t query_block, std::int64_t key_block) const {
    return visible[static_cast<std::size_t>(query_block * blocks + key_block)] != 0;
  }
  /// The share of visible blocks.
  double density() const;
};

struct IoProblem {
  std::int64_t seqlen = 1;
  std::int64_t head_dim = 1;
  std::int64_t fast_memory = 1;  // M, in elements
  BlockMask mask;                // of flash_attention_2 alone
};

/// What lies in slow memory: all that some order needs. q, k, v, o and their gradients are [seqlen, head_dim], s, p, dp
/// and ds [seqlen, seqlen], the rest [seqlen, 1].
struct SlowMemory {
  SlowMatrix q, k, v, o;
  SlowMatrix d_o, dq, dk, dv;
  SlowMatrix s, p, dp, ds;      // standard
  SlowMatrix row_max, row_sum;  // flash_attention
  SlowMatrix lse;               // flash_attention_2
  SlowMatrix delta;
};

/// Zeros, or extents alone when the walk is only to be counted.
SlowMemory make_slow_memory(const IoProblem& problem, bool computes);

struct Walk {
  Traffic traffic;
  std::int64_t peak = 0;   // most elements of fast memory in use at once
  std::int64_t outer = 0;  // rows of the blocks that stay in fast memory, and of those that stream past
  std::int64_t inner = 0;
};

/// O and what the backward of this order needs. invalid_argument when the fast memory cannot hold one row of each
/// block.
Result<Walk> walk_forward(Order order, const IoProblem& problem, SlowMemory& memory);

/// dQ, dK and dV, after a forward of the same order.
Result<Walk> walk_backward(Order order, const IoProblem& problem, SlowMemory& memory);

}  // namespace strobe::bench
