// SPDX-License-Identifier: Apache-2.0
// Wide loops: the rings of Q and K as the warpgroup of the scores reads them.
#pragma once

#include "kernels/sm90/forward/consume/rings.h"
#include "kernels/sm90/forward/consume/wide_values.h"

namespace strobe::sm90::forward {

/// K's columns in the order in which they are loaded, in pieces of one stage each.
template <Config C>
struct KeyPieces {
  static constexpr int kCount = C.head_dim / kPanelColumns;

  static constexpr int first(int piece) { return piece * kPanelColumns; }
  static constexpr int columns(int) { return kPanelColumns; }
};

template <Config C>
  requires(C.values_in_keys)
struct KeyPieces<C> {
  static constexpr int kBehind = C.head_dim - C.head_dim_v;  // columns that are no columns of V: they come first
  static constexpr bool kHasBehind = kBehind > 0;
  static constexpr int kCount = C.head_dim_v / kSharedColumns + (kHasBehind ? 1 : 0);
  static_assert(kBehind == 0 || kBehind == kPanelColumns);

  static constexpr bool is_behind(int piece) { return kHasBehind && piece == 0; }
  static constexpr int first(int piece) {
    return is_behind(piece) ? C.head_dim_v : (piece - (kHasBehind ? 1 : 0)) * kSharedColumns;
  }
  static constexpr int columns(int piece) { return is_behind(piece) ? kBehind : kSharedColumns; }
};

/// What the scores' warpgroup reads but the ring of K.
template <Config C>
class WideScoreRings {
 public:
  __device__ __forceinline__ WideScoreRings(const Context<C>& context, int warpgroup)
      : barriers_(context.barriers), warpgroup_(warpgroup), bias_(context.smem, context.params, warpgroup) {
    q_ = descriptor_k_major(context.smem + smem_plan(C).q);
  }

  __device__ __forceinline__ int warpgroup() const { return warpgroup_; }

  /// Q's columns that lie in shared memory.
  __device__ __forceinline__ Descriptor queries() const { return q_; }
  __device__ __forceinline__ void wait_q() { wait<C>(barriers_.q_full[warpgroup_][0], q_at_.parity); }
  __device__ __forceinline__ void release_q() {
    arrive<C>(barriers_.q_empty[warpgroup_][0]);
    q_at_.advance();
  }

  __device__ __forceinline__ SharedBias<C> wait_bias() { return bias_.wait_tile(barriers_, warpgroup_); }
  __device__ __forceinline__ void bias_done() { bias_.release(barriers_, warpgroup_); }

 protected:
  Barriers<C>& barriers_;

 private:
  const int warpgroup_;
  BiasRing<C> bias_;
  Descriptor q_;
  RingPosition<C.q_stages> q_at_;
  static_assert(C.q_stages == 1 && C.consumer_warpgroups == 1 && C.bias_stages == 0);
};

/// The scores' warpgroup in the rings of Q and K, whose stages are panels of 64 columns.
template <Config C>
  requires(is_wide(C) && !C.values_in_keys)
class Rings<C> : public WideScoreRings<C> {
 public:
  __device__ __forceinline__ Rings(const Context<C>& context, int warpgroup) : WideScoreRings<C>(context, warpgroup) {
    k_ = descriptor_k_major(context.smem + kPlan.k);
  }

  /// A tile's next columns of Q are there, of which so many bytes into shared memory.
  __device__ __forceinline__ int wait_query_piece() {
    wait_piece(0);
    return kPlan.k + k_at_.stage * kPlan.k_bytes;
  }
  __device__ __forceinline__ void release_query_piece() {
    next_piece(0);
    release_piece(0);
  }

  __device__ __forceinline__ bool has_piece(int) const {
    return has_completed(barriers_.k_full[k_at_.stage], k_at_.parity);
  }
  __device__ __forceinline__ void wait_piece(int) {
    wait<C>(barriers_.k_full[k_at_.stage], k_at_.parity);
    see_copies<C>();
  }
  __device__ __forceinline__ Descriptor keys(int) const { return k_ + k_at_.stage * (kPlan.k_bytes >> 4); }
  __device__ __forceinline__ void next_piece(int) { k_at_.advance(); }

  /// The oldest piece that was not given back.
  __device__ __forceinline__ void release_piece(int) {
    arrive<C>(barriers_.k_empty[k_done_.stage]);
    k_done_.advance();
  }

 protected:
  using WideScoreRings<C>::barriers_;

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);

  Descriptor k_;  // of stage 0
  RingPosition<C.key_panels> k_at_, k_done_;
};

/// The same where V is K's first columns.
template <Config C>
  requires(is_wide(C) && C.values_in_keys)
class Rings<C> : public WideScoreRings<C> {
 public:
  __device__ __forceinline__ Rings(const Context<C>& context, int warpgroup) : WideScoreRings<C>(context, warpgroup) {
    behind_ = descriptor_k_major(context.smem + kPlan.k);
    shared_ = descriptor_k_major(context.smem + kPlan.v);
  }

  __device__ __forceinline__ int wait_query_piece() {
    wait<C>(barriers_.v_full[shared_at_.stage], shared_at_.parity);
    return kPlan.v + shared_at_.stage * kPlan.v_bytes;
  }
  __device__ __forceinline__ void release_query_piece() {
    arrive<C>(barriers_.v_empty[shared_at_.stage]);
    shared_at_.advance();
  }

  __device__ __forceinline__ bool has_piece(int piece) const {
    return Pieces::is_behind(piece) ? has_completed(barriers_.k_full[behind_at_.stage], behind_at_.parity)
                                    : has_completed(barriers_.v_full[shared_at_.stage], shared_at_.parity);
  }
  __device__ __forceinline__ void wait_piece(int piece) {
    if (Pieces::is_behind(piece)) {
      wait<C>(barriers_.k_full[behind_at_.stage], behind_at_.parity);
    } else {
      wait<C>(barriers_.v_full[shared_at_.stage], shared_at_.parity);
    }
    see_copies<C>();
  }
  __device__ __forceinline__ Descriptor keys(int piece) const {
    return Pieces::is_behind(piece) ? behind_ + behind_at_.stage * (kPlan.k_bytes >> 4)
                                    : shared_ + shared_at_.stage * (kPlan.v_bytes >> 4);
  }
  __device__ __forceinline__ void next_piece(int piece) {
    if (!Pieces::is_behind(piece)) {
      shared_at_.advance();
    }
  }

  /// Stages that P V reads are given back by those who compute it.
  __device__ __forceinline__ void release_piece(int piece) {
    if (Pieces::is_behind(piece)) {
      release<C>(barriers_.k_empty[behind_at_.stage]);
      behind_at_.advance();
    }
  }

 protected:
  using WideScoreRings<C>::barriers_;

 private:
  using Pieces = KeyPieces<C>;
  static constexpr SmemPlan kPlan = smem_plan(C);

  Descriptor behind_, shared_;  // of stage 0
  RingPosition<C.key_panels> behind_at_;
  RingPosition<C.stages> shared_at_;
};

}  // namespace strobe::sm90::forward
