// SPDX-License-Identifier: Apache-2.0
// Where each sequence of a batch lies and what of it exists. For host tensors: lengths are read.
#pragma once

#include <cstdint>

#include "strobe/attention.h"

namespace strobe {

/// One side of a sequence, queries or keys: in a packed tensor a range of rows, in a batched one a batch entry.
struct SequenceSide {
  std::int64_t begin = 0;    // packed: its first row; batched: its index in the batch
  std::int64_t slots = 0;    // rows that belong to it
  std::int64_t length = 0;   // rows that exist: seqused, or slots; without the padding
  std::int64_t leftpad = 0;  // rows before the first that exists
  std::int64_t offset = 0;   // position of the first that exists, in the whole sequence
};

/// Element `at` of an int32 tensor [n] in host memory.
inline std::int64_t int32_at(const ConstTensorView& lengths, std::int64_t at) {
  return static_cast<const std::int32_t*>(lengths.data)[at * lengths.strides[0]];
}

/// Side of sequence `index`, without padding. `cu_seqlens` is given for a packed side, `seqlen` is the length of a
/// batched one.
inline SequenceSide sequence_side(std::int64_t index, std::int64_t seqlen, const ConstTensorView& cu_seqlens,
                                  const ConstTensorView& seqused, const ConstTensorView& offset) {
  SequenceSide side{.begin = index, .slots = seqlen, .length = seqlen};
  if (cu_seqlens.given()) {
    side.begin = int32_at(cu_seqlens, index);
    side.slots = int32_at(cu_seqlens, index + 1) - side.begin;
    side.length = side.slots;
  }
  if (seqused.given()) side.length = int32_at(seqused, index);
  if (offset.given()) side.offset = int32_at(offset, index);
  return side;
}

/// Queries of sequence `index`.
inline SequenceSide query_side(std::int64_t index, std::int64_t seqlen_q, const Sequences& sequences) {
  return sequence_side(index, seqlen_q, sequences.cu_seqlens_q, sequences.seqused_q, sequences.offset_q);
}

/// Keys of sequence `index`.
inline SequenceSide key_side(std::int64_t index, std::int64_t seqlen_k, const Sequences& sequences) {
  SequenceSide side = sequence_side(index, seqlen_k, sequences.cu_seqlens_k, sequences.seqused_k, sequences.offset_k);
  if (sequences.cache_batch_idx.given()) side.begin = int32_at(sequences.cache_batch_idx, index);
  if (sequences.leftpad_k.given()) side.leftpad = int32_at(sequences.leftpad_k, index);
  side.length -= side.leftpad;
  return side;
}

/// Where `side` begins in a tensor, in elements.
template <class Pointer>
std::int64_t sequence_offset(const BasicTensorView<Pointer>& tensor, const SequenceSide& side) {
  return side.begin * tensor.strides[0];
}

}  // namespace strobe
