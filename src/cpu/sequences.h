// Where each sequence of a batch lies and what of it exists.
#pragma once

#include <cstdint>

#include "call/problem.h"
#include "strobe/attention.h"

namespace strobe::cpu {

/// Query heads that share a key head.
inline std::int64_t heads_per_key_head(const AttentionProblem& problem) {
  return problem.heads_k == 0 ? 1 : problem.heads_q / problem.heads_k;
}

/// Query heads whose rows are interleaved and computed together: those that share a key head, unless each has a block
/// mask of its own.
inline std::int64_t group_of(const AttentionProblem& problem) {
  return problem.modifiers.blocks_per_head ? 1 : heads_per_key_head(problem);
}

/// Such groups in all.
inline std::int64_t groups_of(const AttentionProblem& problem) { return problem.heads_q / group_of(problem); }

/// One side of a sequence: in a packed tensor a range of rows, in a batched one a batch entry.
struct SequenceSide {
  std::int64_t begin = 0;   // packed: its first row; batched: its index in the batch
  std::int64_t slots = 0;   // rows that belong to it
  std::int64_t length = 0;  // rows that exist: seqused, or slots
};

struct Sequence {
  SequenceSide q;
  SequenceSide k;
  std::int64_t first_row_block = 0;  // blocks of query rows of all sequences before this one, over one group
  std::int64_t first_key_block = 0;  // blocks of keys likewise
};

/// Where `side` begins in a tensor, in elements.
template <class Pointer>
std::int64_t sequence_offset(const BasicTensorView<Pointer>& tensor, const SequenceSide& side) {
  return side.begin * tensor.strides[0];
}

}  // namespace strobe::cpu
