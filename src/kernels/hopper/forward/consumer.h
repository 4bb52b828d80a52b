// The consumer's side: each warpgroup holds 64 rows of Q and walks over the key blocks from right to left.
//
// One step of the two-stage pipeline, for block n while block n + 1 waits for its P V:
//   1. take the turn; issue S = Q K(n)^T and O += P(n + 1) V(n + 1); pass the turn
//   2. when S is there: release K(n); softmax of S, under P V and under the other warpgroups' GEMMs
//   3. when P V is done: release V(n + 1); P = S as operand; rescale O if a maximum grew
// Masked blocks are at either end of the walk; the loop is one step function, peeled by trip count.
#pragma once

#include "kernels/common/mask.h"
#include "kernels/common/online_softmax.h"
#include "kernels/common/smem_plan.h"
#include "kernels/hopper/forward/barriers.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/hopper/tile/gemm.h"

namespace strobe::hopper {

template <KernelConfig C>
class Consumer {
 public:
  using Scores = float[C.block_n / 2];
  using Output = float[C.head_dim_v / 2];
  using Operand = uint32_t[C.block_n / 16][4];

  __device__ __forceinline__ Consumer(const ForwardParams& params, unsigned char* smem, Barriers<C>& barriers, int warpgroup)
      : params_(params), barriers_(barriers), warpgroup_(warpgroup) {
    q_ = descriptor_k_major(smem + kPlan.q + warpgroup * kPlan.q_bytes);
    k_ = descriptor_k_major(smem + kPlan.k);
    v_ = descriptor_mn_major(smem + kPlan.v, C.block_n);
    Turns<C>::open(warpgroup);
  }

  /// O (unnormalised) and the softmax's sums of one tile with at least one key block.
  __device__ __forceinline__ void attend(const TileWork& work, Output& o, OnlineSoftmax<C>& softmax) {
    const Mask<C> mask(params_, work, warpgroup_);
    Operand p;
    int n = work.n_end - 1;
    wait<C>(barriers_.q_full[warpgroup_], q_parity_);
    q_parity_ ^= 1;

    first_step(o, p, softmax, mask, n, n == work.n_begin);
    bool accumulate = false;
    for (--n; n >= max(mask.last_full(), work.n_begin); --n) {
      step<true>(o, p, softmax, mask, n, work.n_begin, accumulate);
    }
    for (; n >= max(mask.first_full(), work.n_begin); --n) {
      step<false>(o, p, softmax, mask, n, work.n_begin, accumulate);
    }
    if constexpr (C.mask_left) {
      for (; n >= work.n_begin; --n) {
        step<true>(o, p, softmax, mask, n, work.n_begin, accumulate);
      }
    }
    last_output(o, p, accumulate);
    softmax.finish();
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);

  __device__ __forceinline__ void issue_scores(Scores& s) {
    gemm_scores<C>(s, q_, k_ + k_at_.stage * (kPlan.k_bytes >> 4));
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void issue_output(Output& o, const Operand& p, bool accumulate) {
    gemm_output<C>(o, p, v_ + v_at_.stage * (kPlan.v_bytes >> 4), accumulate ? 1 : 0);
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void wait_k() { wait<C>(barriers_.k_full[k_at_.stage], k_at_.parity); }
  __device__ __forceinline__ void wait_v() { wait<C>(barriers_.v_full[v_at_.stage], v_at_.parity); }

  /// S is in registers: K's stage is free, and after the tile's last block so is Q.
  __device__ __forceinline__ void scores_done(bool last) {
    release<C>(barriers_.k_empty[k_at_.stage]);
    k_at_.advance();
    if (last && threadIdx.x % kWarpSize == 0) {
      cuda::ptx::mbarrier_arrive(&barriers_.q_empty[warpgroup_]);
    }
  }

  __device__ __forceinline__ void output_done() {
    release<C>(barriers_.v_empty[v_at_.stage]);
    v_at_.advance();
  }

  __device__ __forceinline__ void transform(Scores& s) const {
    if constexpr (C.softcap) {
#pragma unroll
      for (float& x : s) {
        x = tanh_exact(x * params_.softcap_scale);
      }
    }
  }

  /// tanh(x) = 1 - 2 / (e^2x + 1): absolute error near 1e-7, where tanh.approx has 5e-4.
  __device__ static __forceinline__ float tanh_exact(float x) {
    constexpr float kTwoLog2E = 2.885390081777926815F;
    return 1.0F - 2.0F * ptx::rcp_approx(ptx::ex2_approx(x * kTwoLog2E) + 1.0F);
  }

  __device__ __forceinline__ void first_step(Output& o, Operand& p, OnlineSoftmax<C>& softmax, const Mask<C>& mask, int n,
                                             bool last) {
    Scores s;
    wait_k();
    Turns<C>::wait(warpgroup_);
    ptx::wgmma_fence();
    issue_scores(s);
    Turns<C>::pass(warpgroup_);
    ptx::wgmma_wait_group<0>(s);
    scores_done(last);
    transform(s);
    if (n >= mask.last_full() || (C.mask_left && n < mask.first_full())) {
      mask.apply(s, n);
    }
    softmax.template step<true>(s, params_.scale_log2);
    to_operand<C.element>(p, s);
    if (!last) {
      wait_k();
    }
  }

  template <bool masked>
  __device__ __forceinline__ void step(Output& o, Operand& p, OnlineSoftmax<C>& softmax, const Mask<C>& mask, int n,
                                       int n_begin, bool& accumulate) {
    Scores s;
    Turns<C>::wait(warpgroup_);
    ptx::wgmma_fence();
    issue_scores(s);
    wait_v();
    ptx::wgmma_fence();
    issue_output(o, p, accumulate);
    accumulate = true;
    Turns<C>::pass(warpgroup_);

    ptx::wgmma_wait_group<1>(s);
    scores_done(n == n_begin);
    transform(s);
    if constexpr (masked) {
      mask.apply(s, n);
    }
    const bool grew = softmax.template step<masked>(s, params_.scale_log2);

    // Waiting for the next K here, not when it is used, ends a basic block: else ptxas moves the wait for P V up, above
    // the exponentials that it should run under, and the additions of the sums down.
    if (n > n_begin || softmax.sums_are_negative()) {
      wait_k();
    }
    ptx::wgmma_wait_group<0>(o);
    output_done();
    to_operand<C.element>(p, s);
    if (grew) {
      rescale(o, softmax);
    }
  }

  __device__ __forceinline__ void last_output(Output& o, const Operand& p, bool accumulate) {
    wait_v();
    ptx::wgmma_fence();
    issue_output(o, p, accumulate);
    ptx::wgmma_wait_group<0>(o);
    output_done();
  }

  __device__ static __forceinline__ void rescale(Output& o, const OnlineSoftmax<C>& softmax) {
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 2; ++i) {
      o[i] *= softmax.correction[(i / 2) % kRowsPerThread];
    }
  }

  const ForwardParams& params_;
  Barriers<C>& barriers_;
  const int warpgroup_;
  uint64_t q_, k_, v_;  // descriptors; of stage 0 for the rings
  RingPosition<C.stages> k_at_, v_at_;
  uint32_t q_parity_ = 0;
};

}  // namespace strobe::hopper
