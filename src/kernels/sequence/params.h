// SPDX-License-Identifier: Apache-2.0
// What the host hands to a kernel for it to find rows and the keys that they see: lengths and windows. Plain C++
// without std headers, shared by host and device.
#pragma once

#include "kernels/expression/captures.h"

namespace strobe {

/// Where sequences lie and how long they are.
struct SequenceParams {
  // Varlen rules only; null where that side has none.
  const int* cu_seqlens_q;  // [batch + 1]
  const int* cu_seqlens_k;
  const int* seqused_q;  // [batch]
  const int* seqused_k;

  int batch;  // sequences, and one more when rows of a packed q may lie behind the last sequence
  int sequences;
  int seqlen_q, seqlen_k;  // batched: every sequence's length; packed: the bound on the longest
  int total_q;             // rows of a packed q

  const int* leftpad_k;  // leftpad rules: [batch]
};

/// Offset rules: where the first query and the first key of each sequence are in the whole of it, [batch]; null: zeros.
struct OffsetParams {
  const int* q;
  const int* k;
};

/// What kernels of offset rules take in the place of `Params`.
template <typename Params>
struct WithOffsets : Params {
  OffsetParams offsets;
};

/// What kernels of rules with texts take.
template <typename Params>
struct WithTexts : WithOffsets<Params> {
  expression::Captures captures;
};

/// Positions are below it: sums and differences of two fit 32 bits.
inline constexpr int kPositions = 1 << 30;

/// Which keys a query sees.
struct VisibilityParams {
  int window_left, window_right;  // keys visible on either side of the diagonal, where the rule has that mask
  int bottom_right;               // 1: query i's diagonal is i + seqlen_k - seqlen_q, 0: i
  int chunk;                      // chunked rules
};

}  // namespace strobe
