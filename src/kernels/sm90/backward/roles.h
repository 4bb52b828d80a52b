// SPDX-License-Identifier: Apache-2.0
// The consumers' side by roles: two warpgroups share 64 keys. The first computes P and holds dV, the second computes dS
// and holds dK. P goes from one to the other through shared memory, as float16: it is at most 1, and what float16 loses
// of it is an eighth of what bfloat16 would.
//
// One step:
//   first:  S^T = K Q^T; P = exp2(S - LSE), to the second; dV += P^T dO
//   second: dP^T = V dO^T; dS = P (dP - D); dK += dS^T Q; under it dS to global memory
// The first runs ahead by up to two steps: what each computes between its products is done under the other's.
#pragma once

#include "kernels/sm90/backward/barriers.h"
#include "kernels/sm90/backward/bias_ring.h"
#include "kernels/sm90/backward/epilogue.h"
#include "kernels/sm90/backward/producer.h"
#include "kernels/sm90/backward/products.h"
#include "kernels/sm90/backward/scores.h"
#include "kernels/sm90/backward/visible_blocks.h"

namespace strobe::sm90::backward {

/// What both roles have in common.
template <Config C>
class Role {
 public:
  static constexpr SmemPlan kPlan = smem_plan(C);

  __device__ __forceinline__ Role(const Params& params, unsigned char* smem, Barriers<C>& barriers)
      : params_(params), smem_(smem), barriers_(barriers) {}

 protected:
  __device__ __forceinline__ const float* rows_of(int offset, int bytes, int stage) const {
    return reinterpret_cast<const float*>(smem_ + offset + stage * bytes);
  }

  /// This thread's part of a stage of P: 16 bytes at [i][thread], so that a warp's accesses lie in a row.
  __device__ __forceinline__ uint4* exchanged(int stage) const {
    return reinterpret_cast<uint4*>(smem_ + kPlan.p + stage * kPlan.ds_bytes) + threadIdx.x % kWarpgroupSize;
  }

  /// Calls body(head, m) for every step.
  template <typename Body>
  __device__ __forceinline__ void for_each_step(const Work& work, Body body) {
    if constexpr (C.rule.block_mask != 0) {
      VisibleSteps<C> steps(params_, work);
      for (int head = 0; head < params_.heads_per_kv; ++head) {
        for (int m = steps.from(head, work.m_begin); m < work.m_end; m = steps.from(head, m + 1)) {
          body(head, m);
          advance();
        }
      }
      return;
    }
    int m = work.m_begin;
    int head = 0;
    for (int remaining = work.steps() * params_.heads_per_kv; remaining > 0; --remaining) {
      body(head, m);
      if (++m == work.m_end) {
        m = work.m_begin;
        ++head;
      }
      advance();
    }
  }

  __device__ __forceinline__ void advance() {
    q_.advance();
    do_.advance();
    p_.advance();
    ds_.advance();
    started_ = true;
  }

  const Params& params_;
  unsigned char* smem_;
  Barriers<C>& barriers_;
  RingPosition<C.q_stages> q_;
  RingPosition<C.do_stages> do_;
  RingPosition<C.p_stages> p_;
  RingPosition<C.ds_stages> ds_;
  bool started_ = false;
};

template <Config C>
class ProbabilityRole : Role<C> {
  using Base = Role<C>;
  using Base::barriers_, Base::params_, Base::smem_, Base::q_, Base::do_, Base::p_, Base::ds_, Base::started_,
      Base::kPlan;

 public:
  using Base::Base;

  /// `has_large_rows`: some of the queries may be rows of a large LSE.
  template <bool has_large_rows>
  __device__ __forceinline__ void run(const Work& work, float (&dv)[C.head_dim_v / 2]) {
    wait<C>(barriers_.k_full, 0);
    this->for_each_step(work, [&](int head, int m) __attribute__((always_inline)) {
      Scores<C> s;
      const int head_in_batch = work.sequence * params_.heads + work.head_kv * params_.heads_per_kv + head;
      const ScoreBlock<C> block(params_, work, head_in_batch, work.n * block_n(C), m);
      StepBias<C> bias;
      if constexpr (C.bias_stages == 0) {
        bias.fetch(block);
      }
      wait<C>(barriers_.q_full[q_.stage], q_.parity);
      ptx::wgmma_fence();
      const Descriptor queries = descriptor_k_major(smem_ + kPlan.q) + q_.stage * (kPlan.q_bytes >> 4);
      RowNumbers<C> lse_log2;
      if constexpr (splits_lse(C)) {
        multiply_transposed_and_add<C, C.head_dim>(
            s, descriptor_k_major(smem_ + kPlan.k), queries,
            descriptor_of_rows(smem_ + kPlan.lse) + q_.stage * (kPlan.lse_bytes >> 4));
        ptx::wgmma_commit_group();
      } else {
        multiply_transposed<C, C.head_dim>(s, descriptor_k_major(smem_ + kPlan.k), queries);
        ptx::wgmma_commit_group();
        load_row_numbers<C>(lse_log2, this->rows_of(kPlan.lse, kPlan.lse_bytes, q_.stage));
        scale_probabilities<C>(lse_log2);
      }
      ptx::wgmma_wait_group<0>(s);
      Operand<C> p;
      const bool masked = !work.template sees_all<C.rule>(m);
      if constexpr (splits_lse(C)) {
        difference_probabilities<C>(block, masked, has_large_rows && block.has_large_rows(), s);
      } else {
        if constexpr (C.bias_stages > 0) {
          wait<C>(barriers_.bias_full[bias_.stage], bias_.parity);
          if (const int queries = work.q.used - block.query_first; queries < C.block_m && params_.bias_boxes.rows > 1) {
            clear_bias<C>(smem_ + kPlan.bias + bias_.stage * bias_bytes(C), queries);
          }
          SharedBias<C> shared(smem_address(kPlan.bias + bias_.stage * bias_bytes(C)), params_.bias_boxes.rows == 1);
          probabilities<C>(block, masked, has_large_rows && block.has_large_rows(), s, p, lse_log2, shared);
        } else {
          probabilities<C>(block, masked, has_large_rows && block.has_large_rows(), s, p, lse_log2, bias);
        }
        __syncwarp();  // all lanes have read LSE
      }
      arrive<C>(barriers_.q_empty[q_.stage]);
      if constexpr (C.rule.dropout) {
        const score::DropoutSlices<C.block_m> slices = draw_dropout<C.block_m>(block, 0);
        hand_over(s, [&](uint32_t halves, int i, int j) { return mark_dropped(halves, slices, i, j); });
        to_operand(p, s);
        drop(p, slices);
      } else {
        hand_over(s, [](uint32_t halves, int, int) { return halves; });
        to_operand(p, s);
      }
      if constexpr (C.bias_stages > 0) {  // which has arrived, as P was stored
        arrive<C>(barriers_.bias_empty[bias_.stage]);
        bias_.advance();
      }
      wait<C>(barriers_.do_full[do_.stage], do_.parity);
      ptx::wgmma_fence();
      accumulate_keys<C>(dv, p, descriptor_mn_major(smem_ + kPlan.d_o, C.block_m) + do_.stage * (kPlan.do_bytes >> 4),
                         started_ ? 1 : 0);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>(dv);
      arrive<C>(barriers_.do_empty[do_.stage]);
    });
  }

 private:
  /// P as operand, where probabilities() has not made it one.
  __device__ __forceinline__ static void to_operand(Operand<C>& p, const Scores<C>& s) {
    if constexpr (!C.rule.softcap) {
      score::to_operand<C.rule.element>(p, s);
    }
  }

  /// Zeros in the place of dropped probabilities.
  __device__ __forceinline__ void drop(Operand<C>& p, const score::DropoutSlices<C.block_m>& slices) const {
#pragma unroll
    for (int i = 0; i < C.block_m / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        p[i][j] &= ~slices.dropped(i, j / kRowsPerThread, j % kRowsPerThread);
      }
    }
  }

  /// `mark(halves, i, j)`: what becomes of the pair at [i][j] of an operand.
  template <typename Mark>
  __device__ __forceinline__ void hand_over(const Scores<C>& p, const Mark& mark) {
    wait<C>(barriers_.handed_empty[p_.stage], p_.parity ^ 1);
    uint4* chunks = this->exchanged(p_.stage);
#pragma unroll
    for (int i = 0; i < C.block_m / 16; ++i) {
      const auto pair = [&](int j) { return mark(ptx::cvt_f16x2(p[8 * i + 2 * j], p[8 * i + 2 * j + 1]), i, j); };
      chunks[i * kWarpgroupSize] = {pair(0), pair(1), pair(2), pair(3)};
    }
    __syncwarp();
    arrive<C>(barriers_.handed_full[p_.stage]);
  }

  __device__ __forceinline__ uint32_t smem_address(int offset) const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(smem_ + offset));
  }

  RingPosition<(C.bias_stages > 0 ? C.bias_stages : 1)> bias_;
};

template <Config C>
class GradientRole : Role<C> {
  using Base = Role<C>;
  using Base::barriers_, Base::params_, Base::smem_, Base::q_, Base::do_, Base::p_, Base::ds_, Base::started_,
      Base::kPlan;

 public:
  using Base::Base;

  __device__ __forceinline__ void run(const Work& work, float (&dk)[C.head_dim / 2]) {
    wait<C>(barriers_.v_full, 0);
    this->for_each_step(work, [&](int head, int m) __attribute__((always_inline)) {
      Scores<C> dp;
      wait<C>(barriers_.do_full[do_.stage], do_.parity);
      ptx::wgmma_fence();
      multiply_transposed<C, C.head_dim_v>(dp, descriptor_k_major(smem_ + kPlan.v),
                                           descriptor_k_major(smem_ + kPlan.d_o) + do_.stage * (kPlan.do_bytes >> 4));
      ptx::wgmma_commit_group();
      RowNumbers<C> d_sum;
      load_row_numbers<C>(d_sum, this->rows_of(kPlan.d_sum, kPlan.d_bytes, do_.stage));
      scale_sums<C>(d_sum, kProbabilityScale * (C.rule.dropout ? params_.score.dropout.keep_probability : 1.0F));
      ptx::wgmma_wait_group<0>(dp);
      take_over(dp, d_sum);
      arrive<C>(barriers_.do_empty[do_.stage]);
      Operand<C> ds;
      score::to_operand<C.rule.element>(ds, dp);
      wait<C>(barriers_.q_full[q_.stage], q_.parity);
      ptx::wgmma_fence();
      accumulate_keys<C>(dk, ds, descriptor_mn_major(smem_ + kPlan.q, C.block_m) + q_.stage * (kPlan.q_bytes >> 4),
                         started_ ? 1 : 0);
      ptx::wgmma_commit_group();
      send(work, head, m, ds);
      ptx::wgmma_wait_group<0>(dk);
      arrive<C>(barriers_.q_empty[q_.stage]);
    });
    if (threadIdx.x % kWarpgroupSize == 0) {
      cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
    }
  }

 private:
  /// dS = P (dP - D), in the place of dP; D comes scaled as P is.
  __device__ __forceinline__ void take_over(Scores<C>& dp, const RowNumbers<C>& d_sum) {
    wait<C>(barriers_.handed_full[p_.stage], p_.parity);
    const uint4* chunks = this->exchanged(p_.stage);
#pragma unroll
    for (int i = 0; i < C.block_m / 16; ++i) {
      const uint4 chunk = chunks[i * kWarpgroupSize];
      const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 d = row_numbers<C>(d_sum, 2 * i + half);
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          const float2 p = ptx::cvt_f32x2_from_f16x2(words[2 * half + r]);
          float* two = &dp[8 * i + 4 * half + 2 * r];
          if constexpr (C.rule.dropout) {
            two[0] = dropped_score_gradient(p.x, two[0] * kProbabilityScale, d.x);
            two[1] = dropped_score_gradient(p.y, two[1] * kProbabilityScale, d.y);
          } else {
            two[0] = p.x * __fmaf_rn(two[0], kProbabilityScale, -d.x);
            two[1] = p.y * __fmaf_rn(two[1], kProbabilityScale, -d.y);
          }
        }
      }
    }
    __syncwarp();
    arrive<C>(barriers_.handed_empty[p_.stage]);
  }

  /// dS to global memory, for the kernel that computes dQ.
  __device__ __forceinline__ void send(const Work& work, int head, int m, const Operand<C>& ds) {
    const bool elected = threadIdx.x % kWarpgroupSize == 0;
    unsigned char* tile = smem_ + kPlan.ds + ds_.stage * kPlan.ds_bytes;
    if (elected) {
      cptx::cp_async_bulk_wait_group_read(cptx::n32_t<C.ds_stages - 1>{});
    }
    ptx::bar_sync(kWarpgroup + 1, kWarpgroupSize);
    store_score_gradients<C>(ds, tile, 0);
    cptx::fence_proxy_async(cptx::space_shared);
    ptx::bar_sync(kWarpgroup + 1, kWarpgroupSize);
    if (elected) {
      constexpr int kQueryTiles = C.block_m / kScoreTile;
      const long long heads = static_cast<long long>(work.launch_head) * params_.heads_per_kv + head;
      const long long index = (heads * params_.key_blocks + work.n - params_.first_key_block) * params_.m_blocks + m;
      constexpr int kBytes = kQueryTiles * kScoreTileBytes;
      constexpr int kCopyBytes = C.debug ? kScoreTileBytes : kBytes;  // initcheck does not see more written by one copy
#pragma unroll
      for (int i = 0; i < kBytes; i += kCopyBytes) {
        cptx::cp_async_bulk(cptx::space_global, cptx::space_shared, params_.ds + index * kBytes + i, tile + i,
                            kCopyBytes);
      }
      cptx::cp_async_bulk_commit_group();
    }
  }
};

/// One item that has steps, of the warpgroup of that number.
template <Config C, int role, bool has_large_rows>
__device__ __forceinline__ void run_role(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                         Barriers<C>& barriers, const Work& work) {
  constexpr SmemPlan kPlan = smem_plan(C);
  const bool elected = threadIdx.x % kWarpgroupSize == 0;
  float sums[(role == 0 ? C.head_dim_v : C.head_dim) / 2];
  unsigned char* rows = smem + (role == 0 ? kPlan.v : kPlan.k);
  if constexpr (role == 0) {
    ProbabilityRole<C>(params, smem, barriers).template run<has_large_rows>(work, sums);
  } else {
    GradientRole<C>(params, smem, barriers).run(work, sums);
  }
  // Each warpgroup's gradients leave through what the other one read.
  ptx::barrier_sync(kLastRead, kWarpgroupSize * kKeyWarpgroups);
  const int row = work.n * block_n(C);
  const bool finite = stage_rows<C.rule, block_n(C)>(sums, role == 0 ? value_gradient_factor<C>(params) : params.scale,
                                                     work.k.used - row, rows);
  cptx::fence_proxy_async(cptx::space_shared);
  const bool repair = ptx::bar_red_or(kWarpgroup + role, kWarpgroupSize, !finite);
  if (elected) {
    const SequenceStart start = key_start<C.rule>(params, work, work.sequence, work.k.owned);
    if constexpr (role == 0) {
      store_rows<C.head_dim_v, block_n(C)>(maps.dv, start, row, work.head_kv, rows);
    } else {
      store_rows<C.head_dim, block_n(C)>(maps.dk, start, row, work.head_kv, rows);
    }
    cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
  }
  if (is_masked(C.rule) && repair) {
    finish_stores(kWarpgroup + role);
    repair_keys<C, role == 0 ? KeySide::v : KeySide::k>(params, work, row);
  }
}

/// One item, of the warpgroup of that number.
template <Config C, int role>
__device__ __forceinline__ void consume_by_role(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                                Barriers<C>& barriers) {
  ptx::griddepcontrol_wait();
  const Work work = work_of<C>(params, blockIdx.x);
  if (!VisibleSteps<C>(params, work).any()) {
    store_no_gradients<C>(params, work, role);
    return;
  }
  if (role == 0 &&
      score::has_large_rows(params, work.sequence, work.head_kv * params.heads_per_kv, params.heads_per_kv)) {
    run_role<C, role, role == 0>(maps, params, smem, barriers, work);
  } else {
    run_role<C, role, false>(maps, params, smem, barriers, work);
  }
}

}  // namespace strobe::sm90::backward
