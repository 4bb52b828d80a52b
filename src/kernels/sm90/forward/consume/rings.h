// SPDX-License-Identifier: Apache-2.0
// A consumer's places in the rings of Q, K and V: what it waits for, what it multiplies and what it gives back.
#pragma once

#include "kernels/sm90/forward/consume/bias.h"
#include "kernels/sm90/forward/context.h"
#include "kernels/sm90/forward/tile/assignment.h"
#include "kernels/sm90/tile/descriptor.h"

namespace strobe::sm90::forward {

template <Config C>
class Rings {
 public:
  __device__ __forceinline__ Rings(const Context<C>& context, int warpgroup)
      : barriers_(context.barriers), warpgroup_(warpgroup), bias_(context.smem, context.params, warpgroup) {
    q_ = descriptor_k_major(context.smem + kPlan.q + warpgroup * C.q_stages * kPlan.q_bytes);
    k_ = descriptor_k_major(context.smem + kPlan.k);
    unsigned char* const values = context.smem + kPlan.v;
    v_ = eight_bit(C) ? descriptor_k_major(values) : descriptor_mn_major(values, C.block_n);
  }

  __device__ __forceinline__ int warpgroup() const { return warpgroup_; }

  __device__ __forceinline__ Descriptor queries() const { return q_ + q_at_.stage * (kPlan.q_bytes >> 4); }
  __device__ __forceinline__ Descriptor keys() const { return k_ + k_at_.stage * (kPlan.k_bytes >> 4); }
  __device__ __forceinline__ Descriptor values() const { return v_ + v_at_.stage * (kPlan.v_bytes >> 4); }

  __device__ __forceinline__ void wait_q() { wait<C>(barriers_.q_full[warpgroup_][q_at_.stage], q_at_.parity); }
  __device__ __forceinline__ void wait_k() { wait<C>(barriers_.k_full[k_at_.stage], k_at_.parity); }
  __device__ __forceinline__ void wait_v() { wait<C>(barriers_.v_full[v_at_.stage], v_at_.parity); }

  /// What its producer says of the next K, which has arrived.
  __device__ __forceinline__ KeyTag key_tag() const {
    return reinterpret_cast<const KeyTag*>(shared_memory() + kPlan.tags)[k_at_.stage];
  }

  /// The bits of the next K's block, of this thread's first row of two: of a block that is shown in part.
  __device__ __forceinline__ const unsigned* key_bits() const {
    const int row = warpgroup_ * kRowsPerWarpgroup + warpgroup_row(0);
    return reinterpret_cast<const unsigned*>(shared_memory() + kPlan.bits + k_at_.stage * block_bits_bytes(C)) +
           row * kBlockWordsOfRow;
  }

  /// The next block's bias, to be read before bias_done().
  __device__ __forceinline__ SharedBias<C> wait_bias() { return bias_.wait_tile(barriers_, warpgroup_); }
  __device__ __forceinline__ void bias_done() { bias_.release(barriers_, warpgroup_); }

  /// Waits for the V of `blocks` blocks after the next, and says in which stage it is.
  __device__ __forceinline__ int wait_v_after(int blocks) {
    RingPosition<C.stages> at = v_at_;
    if (blocks > 0) {
      at.advance();
    }
    wait<C>(barriers_.v_full[at.stage], at.parity);
    return at.stage;
  }

  __device__ __forceinline__ void scores_done() {
    arrive<C>(barriers_.k_empty[k_at_.stage]);
    k_at_.advance();
  }

  /// After the wait for P V: of 8-bit operands, all lanes have made P of the stage's scales by then.
  __device__ __forceinline__ void output_done() {
    arrive<C>(barriers_.v_empty[v_at_.stage]);
    v_at_.advance();
  }

  __device__ __forceinline__ void release_q() {
    arrive<C>(barriers_.q_empty[warpgroup_][q_at_.stage]);
    q_at_.advance();
  }

  /// Blocks that other warpgroups work on and this one does not: their K.
  __device__ __forceinline__ void pass_keys(int count) {
    for (int passed = 0; passed < count; ++passed) {
      WarpgroupOrder<C>::skip(warpgroup_);
      wait_k();
      scores_done();
    }
  }

  /// Such blocks at the end of a tile: their V is let pass with those of the next.
  __device__ __forceinline__ void pass_last_keys(int count) {
    passed_k_ = count;
    pass_keys(count);
  }

  /// V of `count` such blocks, behind those at the end of the tile before.
  __device__ __forceinline__ void pass_values(int count) {
    if constexpr (C.own_begins) {
      count += passed_k_;
      passed_k_ = 0;
    }
    for (int passed = 0; passed < count; ++passed) {
      wait_v();
      output_done();
    }
  }

  /// K and V of `count` such blocks.
  __device__ __forceinline__ void pass_blocks(int count) {
    for (; count > 0; --count) {
      WarpgroupOrder<C>::skip(warpgroup_);
      wait_k();
      scores_done();
      wait_v();
      output_done();
    }
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);

  __device__ __forceinline__ static const unsigned char* shared_memory() {
    extern __shared__ __align__(1024) unsigned char smem[];
    return smem;
  }

  Barriers<C>& barriers_;
  const int warpgroup_;
  BiasRing<C> bias_;
  int passed_k_ = 0;      // blocks at the end of a tile of which this warpgroup let K pass and V not yet
  Descriptor q_, k_, v_;  // of stage 0
  RingPosition<C.q_stages> q_at_;
  RingPosition<C.stages> k_at_, v_at_;
};

}  // namespace strobe::sm90::forward
