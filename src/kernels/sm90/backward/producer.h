// SPDX-License-Identifier: Apache-2.0
// The producer: one thread, or of a warp that walks past hidden blocks its first, brings K and V of every item, then Q
// with LSE and dO with D block by block, to shared memory.
//
// See tile/tensor_map.h for the axes of the maps.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sm90/backward/barriers.h"
#include "kernels/sm90/backward/coordinates.h"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/smem.h"
#include "kernels/sm90/backward/visible_blocks.h"
#include "kernels/sm90/backward/work.h"
#include "kernels/sm90/ptx/cuda_ptx.h"

namespace strobe::sm90::backward {

template <Config C>
class Producer {
 public:
  __device__ __forceinline__ Producer(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                      Barriers<C>& barriers)
      : maps_(maps), params_(params), smem_(smem), barriers_(barriers) {}

  __device__ __forceinline__ void run() {
    ptx::griddepcontrol_wait();
    const Work work = work_of<C>(params_, blockIdx.x);
    VisibleSteps<C> steps(params_, work);
    if (!steps.any()) {
      return;
    }
    if constexpr (C.rule.block_mask != 0) {
      load_visible(work, steps);
      return;
    }
    load_keys(work);
    bool v_loaded = false;
    for (int group = 0; group < work.template query_heads<C>(params_); ++group) {
      const int head = work.template first_query_head<C>(params_) + group;
      for (int m = work.template first<C>(); work.template goes_on<C>(m); m += work.template step<C>()) {
        load_queries(work, head, m);
        if (!v_loaded) {
          load_values(work);
          v_loaded = true;
        }
        load_output_gradients(work, head, m);
      }
    }
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);

  __device__ __forceinline__ void load_visible(const Work& work, VisibleSteps<C>& steps) {
    bool keys_loaded = false;
    for (int group = 0; group < params_.heads_per_kv; ++group) {
      for (int m = steps.from(group, work.m_begin); m < work.m_end; m = steps.from(group, m + 1)) {
        if (threadIdx.x % kWarpSize != 0) {
          continue;
        }
        if (!keys_loaded) {
          load_keys(work);
          load_values(work);
          keys_loaded = true;
        }
        const int head = work.head_kv * params_.heads_per_kv + group;
        load_queries(work, head, m);
        load_output_gradients(work, head, m);
      }
    }
  }

  __device__ __forceinline__ SequenceStart keys_of(const Work& work) const {
    return key_start<C.rule>(params_, work, work.sequence, work.k.used);
  }
  __device__ __forceinline__ SequenceStart queries_of(const Work& work) const {
    return query_start<C.rule>(params_, work, work.sequence, work.q.used);
  }

  __device__ __forceinline__ void load_keys(const Work& work) {
    uint64_t& full = barriers_.k_full;
    expect(full, kPlan.k_bytes);
    load_tile<C.head_dim, block_n(C)>(maps_.k, keys_of(work), work.n * block_n(C), work.head_kv, smem_ + kPlan.k, full);
  }

  __device__ __forceinline__ void load_values(const Work& work) {
    uint64_t& full = barriers_.v_full;
    expect(full, kPlan.v_bytes);
    load_tile<C.head_dim_v, block_n(C)>(maps_.v, keys_of(work), work.n * block_n(C), work.head_kv, smem_ + kPlan.v,
                                        full);
  }

  /// LSE or D of a block.
  __device__ __forceinline__ void load_rows(const void* rows, int offset, int bytes, const Work& work, int head, int m,
                                            uint64_t& full) {
    const long long block = score::first_block_of<C.rule>(params_, work.sequence, head, C.block_m) + m;
    cptx::cp_async_bulk(cptx::space_cluster, cptx::space_global, smem_ + offset,
                        static_cast<const unsigned char*>(rows) + block * bytes, bytes, &full);
  }

  __device__ __forceinline__ void load_queries(const Work& work, int head, int m) {
    uint64_t& full = barriers_.q_full[q_.stage];
    wait<C>(barriers_.q_empty[q_.stage], q_.parity);
    expect(full, kPlan.q_bytes + kPlan.lse_bytes);
    load_tile<C.head_dim, C.block_m>(maps_.q, queries_of(work), m * C.block_m, head,
                                     smem_ + kPlan.q + q_.stage * kPlan.q_bytes, full);
    const void* lse = params_.lse_log2;
    if constexpr (has_hi_lo_lse(C)) {
      lse = params_.lse_hi_lo;
    }
    load_rows(lse, kPlan.lse + q_.stage * kPlan.lse_bytes, kPlan.lse_bytes, work, head, m, full);
    q_.advance();
  }

  __device__ __forceinline__ void load_output_gradients(const Work& work, int head, int m) {
    uint64_t& full = barriers_.do_full[do_.stage];
    wait<C>(barriers_.do_empty[do_.stage], do_.parity);
    expect(full, kPlan.do_bytes + kPlan.d_bytes);
    load_tile<C.head_dim_v, C.block_m>(maps_.d_o, queries_of(work), m * C.block_m, head,
                                       smem_ + kPlan.d_o + do_.stage * kPlan.do_bytes, full);
    const void* d_sum = params_.d_sum;
    if constexpr (has_hi_lo_d(C)) {
      d_sum = params_.d_hi_lo;
    }
    load_rows(d_sum, kPlan.d_sum + do_.stage * kPlan.d_bytes, kPlan.d_bytes, work, head, m, full);
    do_.advance();
  }

  const TensorMaps& maps_;
  const Params& params_;
  unsigned char* smem_;
  Barriers<C>& barriers_;
  RingPosition<C.q_stages> q_{0, 1};
  RingPosition<C.do_stages> do_{0, 1};
};

}  // namespace strobe::sm90::backward
