// SPDX-License-Identifier: Apache-2.0
#include "cpu/bfloat16_tiles.h"

#include "call/heads.h"
#include "cpu/bfloat16/scratch.h"
#include "cpu/blocks.h"

namespace strobe::cpu {

using bf16::kBlock;

bool takes_bfloat16(const AttentionProblem& problem) {
  const bool has_gradient_of_qv = problem.has_qv && problem.pass == Pass::backward;
  return problem.dtype == DType::bfloat16 && is_normalized(problem) && !has_gradient_of_qv;
}

Tiles bfloat16_forward_tiles(const AttentionProblem& problem, const Machine& machine, int threads) {
  Tiles tiles;
  // K and V tile in a quarter of L2. The more keys a tile has, the more rarely O is rescaled, loaded and stored.
  // log: amx-tile-keys, bf16-forward-tile-keys
  constexpr std::int64_t kMostKeys = 1024;
  const std::int64_t key_bytes = 2 * (problem.head_dim + qv_columns(problem) + problem.head_dim_v);
  const std::int64_t keys = std::max<std::int64_t>(problem.seqlen_k, 1);
  tiles.block_n =
      std::min({kMostKeys, whole_multiple(machine.l2_bytes / 4 / key_bytes, kBlock), round_up(keys, kBlock)});
  // Under a block mask a tile is a column of blocks, and the rows of a panel lie in one row of them.
  const bool masked = problem.modifiers.block_size != 0;
  if (masked) tiles.block_n = problem.modifiers.block_size;
  // As many rows as the vector kernels, for the same reasons, but fewer blocks: their keys' packing is dearer here,
  // since the products are faster. Two a worker still balance a causal mask, the longest coming first.
  // log: amx-forward-tiles
  constexpr std::int64_t kMostRows = 1024;
  // log: amx-two-blocks-a-worker
  constexpr std::int64_t kBlocksPerWorker = 2;
  const std::int64_t part = masked ? masked_block(problem, kMostRows, kBlock) : kBlock;
  tiles.block_m = even_block(longest_group_rows(problem), round_up(kMostRows, part),
                             (Checked(problem.batch) * head_groups(problem)).value(), kBlocksPerWorker * threads, part);
  tiles.part_m = masked ? part : tiles.block_m;
  return tiles;
}

Tiles bfloat16_backward_tiles(const AttentionProblem& problem, const Machine&) {
  // The more keys a task has, the more rarely Q and dO are packed, which costs as much as what 80 keys do with them; 64
  // blocks in all keep any machine busy. The more queries a block has, the more rarely dK and dV are loaded and stored;
  // its P and dS stay in L2.
  constexpr std::int64_t kMostKeys = 512;
  // log: amx-backward-128-keys
  constexpr std::int64_t kLeastKeys = 128;
  constexpr std::int64_t kBlocks = 64;
  constexpr std::int64_t kMostRows = 192;
  if (problem.modifiers.block_size != 0) {
    const std::int64_t part = masked_block(problem, kMostRows, kBlock);
    return {.block_m = part, .block_n = problem.modifiers.block_size, .part_m = part};
  }
  const std::int64_t keys = std::max<std::int64_t>(problem.seqlen_k, 1);
  return {.block_m = std::min(round_up(longest_group_rows(problem), kBlock), kMostRows),
          .block_n = even_block(keys, kMostKeys, key_heads(problem), kBlocks, kLeastKeys)};
}

}  // namespace strobe::cpu
