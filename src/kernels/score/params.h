// SPDX-License-Identifier: Apache-2.0
// What the host hands to a kernel for the scores' sake: lengths, masks, transform. Plain C++ without std headers,
// shared by host and device.
#pragma once

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
};

/// Which keys a query sees.
struct VisibilityParams {
  int window_left, window_right;  // keys visible on either side of the diagonal, where the rule has that mask
  int bottom_right;               // 1: query i's diagonal is i + seqlen_k - seqlen_q, 0: i
  int chunk;                      // chunked rules
};

/// What happens to a score.
struct ScoreParams {
  float scale_log2;     // scores (after softcap) times this are exponents of 2
  float softcap_scale;  // softcap rules: s -> tanh(s * softcap_scale), and scale_log2 holds softcap * log2(e)

  const float* alibi_slopes;  // alibi rules: [batch or 1, query heads]
  long long alibi_batch_stride;
  const float* sink;  // sink rules: [query heads]
};

}  // namespace strobe
