// What the host hands to a forward kernel beside the tensor maps. Plain C++ without std headers, shared by host and
// device.
#pragma once

namespace strobe {

/// A CUtensorMap, opaque to the device.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

/// Divides numbers below 2^31 by a divisor that only the host knows, in two instructions.
/// Source: Granlund and Montgomery, "Division by invariant integers using multiplication" (1994).
struct Divisor {
  unsigned divisor, multiplier, shift;

  static constexpr Divisor of(int divisor) {
    unsigned log2 = 0;  // rounded up
    while ((1LL << log2) < divisor) ++log2;
    if (log2 == 0) return {1, 0, 0};
    const unsigned long long power = 1ULL << (31 + log2);
    return {static_cast<unsigned>(divisor), static_cast<unsigned>((power + divisor - 1) / divisor), log2 - 1};
  }

#ifdef __CUDACC_RTC__
  __device__ __forceinline__ int quotient(int value) const {
    return divisor == 1 ? value : static_cast<int>(__umulhi(value, multiplier) >> shift);
  }
  __device__ __forceinline__ int remainder(int value) const { return value - quotient(value) * divisor; }
#endif
};

/// Rows of 16-bit elements; strides in elements. Packed tensors: one batch.
struct Rows {
  unsigned short* data;
  long long batch_stride, row_stride, head_stride;

  constexpr unsigned short* row(long long batch, long long row, long long head) const {
    return data + batch * batch_stride + row * row_stride + head * head_stride;
  }
};

struct ForwardParams {
  Rows q, k, v;  // what the tensor maps describe, for rows recomputed one by one
  Rows o;
  float* lse;  // null: not wanted
  long long lse_batch_stride, lse_head_stride;

  // Varlen variants only; null where that side has none.
  const int* cu_seqlens_q;  // [batch + 1]
  const int* cu_seqlens_k;
  const int* seqused_q;  // [batch]
  const int* seqused_k;

  int batch;  // sequences, and one more when rows of a packed q may lie behind the last sequence
  int sequences;
  int heads;                 // of q, divided by the variant's packed_heads
  int seqlen_q, seqlen_k;    // batched: every sequence's length; packed: the bound on the longest
  int total_q;               // rows of a packed q
  int head_dim, head_dim_v;  // columns that exist

  int m_tiles;  // per sequence and head
  int tiles;    // in all
  Divisor by_m_tiles, by_heads;
  Divisor by_heads_per_kv;  // of `heads`, those that read one key head

  int mask_left, mask_right;  // keys visible on either side of the diagonal, where the variant has that mask
  int bottom_right;           // 1: query i's diagonal is i + seqlen_k - seqlen_q, 0: i
  int chunk;                  // chunked variants

  float scale_log2;     // scores (after softcap) times this are exponents of 2
  float softcap_scale;  // softcap variants: s -> tanh(s * softcap_scale), and scale_log2 holds softcap * log2(e)

  const float* alibi_slopes;  // alibi variants
  long long alibi_batch_stride;
  const float* sink;  // sink variants: [query heads]
  float* max_logits;  // max_logits variants: [batch, query heads], -inf before the kernel
  long long max_logits_batch_stride;
};

/// Listed variants: which tiles each CTA (or cluster) computes, in order. The list repeats every `period_heads` heads.
struct TileList {
  static constexpr int kMaxLanes = 160;
  static constexpr int kMaxTiles = 4096;
  int period_heads;
  int periods;
  unsigned short first[kMaxLanes + 1];  // lane i computes tiles[first[i]] ... tiles[first[i + 1] - 1]
  unsigned short tiles[kMaxTiles];      // head within the period * m_tiles + m
};

/// What the other variants take in its place.
struct NoTileList {};

/// Ordered variants: a table that each CTA makes in shared memory. Sequences by falling length of their tiles; a unit
/// is a tile or a pair of them.
constexpr int kMaxOrderedSequences = 480;
struct SequenceOrder {
  int first_unit[kMaxOrderedSequences + 1];  // of one head, at each place; at last: units in all
  unsigned short sequence[kMaxOrderedSequences];
};

}  // namespace strobe
