// Where each sequence of a batch lies and what of it exists.
#pragma once

#include <cstdint>

#include "strobe/attention.h"

namespace strobe::cpu {

/// One side of a sequence: in a packed tensor a range of rows, in a batched one a batch entry.
struct SequenceSide {
  std::int64_t begin = 0;   // packed: its first row; batched: its index in the batch
  std::int64_t slots = 0;   // rows that belong to it
  std::int64_t length = 0;  // rows that exist: seqused, or slots
};

struct Sequence {
  SequenceSide q;
  SequenceSide k;
  std::int64_t first_row_block = 0;  // blocks of query rows of all sequences before this one, over one key head
  std::int64_t first_key_block = 0;  // blocks of keys likewise
};

/// Where `side` begins in a tensor, in elements.
template <class Pointer>
std::int64_t sequence_offset(const BasicTensorView<Pointer>& tensor, const SequenceSide& side) {
  return side.begin * tensor.strides[0];
}

}  // namespace strobe::cpu
