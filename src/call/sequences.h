// SPDX-License-Identifier: Apache-2.0
// Where each sequence of a batch lies and what of it exists. For host tensors: lengths are read.
#pragma once

#include <cstdint>

#include "strobe/attention.h"

namespace strobe {

/// One side of a sequence, queries or keys: in a packed tensor a range of rows, in a batched one a batch entry.
struct SequenceSide {
  std::int64_t begin = 0;   // packed: its first row; batched: its index in the batch
  std::int64_t slots = 0;   // rows that belong to it
  std::int64_t length = 0;  // rows that exist: seqused, or slots
};

/// Side of sequence `index`. `cu_seqlens` is given for a packed side, `seqlen` is the length of a batched one.
inline SequenceSide sequence_side(std::int64_t index, std::int64_t seqlen, const ConstTensorView& cu_seqlens,
                                  const ConstTensorView& seqused) {
  const auto element = [](const ConstTensorView& lengths, std::int64_t at) -> std::int64_t {
    return static_cast<const std::int32_t*>(lengths.data)[at * lengths.strides[0]];
  };
  SequenceSide side{.begin = index, .slots = seqlen, .length = seqlen};
  if (cu_seqlens.given()) {
    side.begin = element(cu_seqlens, index);
    side.slots = element(cu_seqlens, index + 1) - side.begin;
    side.length = side.slots;
  }
  if (seqused.given()) side.length = element(seqused, index);
  return side;
}

/// Where `side` begins in a tensor, in elements.
template <class Pointer>
std::int64_t sequence_offset(const BasicTensorView<Pointer>& tensor, const SequenceSide& side) {
  return side.begin * tensor.strides[0];
}

}  // namespace strobe
