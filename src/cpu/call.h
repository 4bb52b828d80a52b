// SPDX-License-Identifier: Apache-2.0
// What the forward and the backward share around their kernels: sequences, rows of heads, masks, unused positions.
#pragma once

#include <cstdint>
#include <span>

#include "call/heads.h"
#include "cpu/kernels/task.h"
#include "cpu/passes.h"
#include "cpu/workspace.h"

namespace strobe::cpu {

/// The batch of one call: its sequences and the blocks they are cut into, over one group of heads or key head.
struct Batch {
  std::span<const Sequence> sequences;
  std::int64_t row_blocks = 0;
  std::int64_t key_blocks = 0;
};

/// Fills `sequences` from the lengths that the caller gave.
Batch make_batch(const Call& call, const Sequences& given, Sequence* sequences);

/// The query rows of one sequence and group of heads, group * length of them: heads interleaved with positions.
template <class Pointer>
GroupRows<Pointer> query_rows(const AttentionProblem& problem, const BasicTensorView<Pointer>& tensor,
                              const Sequence& sequence, std::int64_t group);

/// The rows of one sequence and head of k or v.
template <class Pointer>
GroupRows<Pointer> key_rows(const AttentionProblem& problem, const BasicTensorView<Pointer>& tensor,
                            const Sequence& sequence, std::int64_t head_kv);

/// The same of a forward's k or v, which may be a pool of pages.
ConstRows cache_rows(const AttentionProblem& problem, const ConstTensorView& tensor, const ConstTensorView& page_table,
                     const Sequence& sequence, std::int64_t head_kv);

/// The elements of lse or d_lse that belong to query_rows; data is null when the tensor is not given.
GroupRows<float*> lse_rows(const AttentionProblem& problem, const TensorView& tensor, const Sequence& sequence,
                           std::int64_t group);
GroupRows<const float*> lse_rows(const AttentionProblem& problem, const ConstTensorView& tensor,
                                 const Sequence& sequence, std::int64_t group);

enum class Side : std::uint8_t { query, key };

/// Writes zeros to the positions of `tensor` ([.., heads, columns], laid out like q or k) that no sequence uses.
void clear_unused(const AttentionProblem& problem, const Batch& batch, Side side, const TensorView& tensor);

/// Writes `value` to the positions of lse that no sequence uses.
void clear_unused_lse(const AttentionProblem& problem, const Batch& batch, const TensorView& lse,
                      float value = -kInfinity);

/// Where item `index` of the blocks of all sequences lies: sequence, group of heads (for key blocks key head), block.
struct BlockPlace {
  const Sequence& sequence;
  std::int64_t head;
  std::int64_t block;
};

/// The last sequence whose first block (by `member`) is not after `block`.
const Sequence& sequence_of(std::span<const Sequence> sequences, std::int64_t Sequence::* member, std::int64_t block);

/// Row blocks are handed out last block first: with a causal mask the longest.
BlockPlace row_block_place(const AttentionProblem& problem, const Batch& batch, std::int64_t index);

/// Key blocks are handed out in the order of the keys, heads side by side, so that blocks rarely wait for their turn.
BlockPlace key_block_place(const AttentionProblem& problem, const Batch& batch, std::int64_t index);

}  // namespace strobe::cpu
