// What the host hands to a forward kernel beside the tensor maps. Plain C++ without std headers, shared by host and
// device.
#pragma once

namespace strobe {

/// A CUtensorMap, opaque to the device.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
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
  int heads;
  int heads_per_kv;          // query heads that read one key head
  int seqlen_q, seqlen_k;    // batched: every sequence's length; packed: the bound on the longest
  int total_q;               // packed: rows of q
  int head_dim, head_dim_v;  // columns that exist

  int m_tiles;  // per sequence and head
  int tiles;    // in all

  int mask_left, mask_right;  // keys visible on either side of the diagonal, where the variant has that mask
  int bottom_right;           // 1: query i's diagonal is i + seqlen_k - seqlen_q, 0: i

  float scale_log2;     // scores (after softcap) times this are exponents of 2
  float softcap_scale;  // softcap variants: s -> tanh(s * softcap_scale), and scale_log2 holds softcap * log2(e)
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

template <bool listed>
struct TileListFor {
  using type = NoTileList;
};
template <>
struct TileListFor<true> {
  using type = TileList;
};

}  // namespace strobe
