// SPDX-License-Identifier: Apache-2.0
// The bias's gradient: dS, summed over the sequences and heads that share a bias. A CTA holds a tile of it, 128 keys by
// block_m queries, in registers, and walks over those who share it, computing S and dP of the tile again. So sums are
// added in the same order every time, need no atomics, and every element is written once, zeros included.
//
// Warpgroup 0 produces: one thread brings Q, K and LSE, then dO, V and D. The two after it hold 64 keys each.
#pragma once

#include "kernels/hopper/backward/barriers.h"
#include "kernels/hopper/backward/bias_gradient_config.h"
#include "kernels/hopper/backward/coordinates.h"
#include "kernels/hopper/backward/products.h"
#include "kernels/hopper/backward/scores.h"
#include "kernels/hopper/backward/visible_blocks.h"
#include "kernels/hopper/ptx/cuda_ptx.h"
#include "kernels/hopper/ptx/grid.h"

namespace strobe::hopper::backward {

/// Which tile of which plane of the gradient a CTA computes.
struct BiasTile {
  int sequence, head;  // of the first who shares it
  int sequences, heads;
  int n, m;  // blocks of 128 keys and of block_m queries

  __device__ __forceinline__ static BiasTile of(const Params& params, const BiasGradientParams& bias, int number) {
    const int key_tiles = bias_key_tiles(params.n_blocks);
    const int plane = number / (key_tiles * params.m_blocks);
    const int within = number - plane * key_tiles * params.m_blocks;
    BiasTile tile{};
    tile.sequence = plane / bias.heads;
    tile.head = plane - tile.sequence * bias.heads;
    tile.sequences = bias.per_batch != 0 ? 1 : params.sequences.sequences;
    tile.heads = bias.per_head != 0 ? 1 : params.heads;
    tile.m = within / key_tiles;
    tile.n = within - tile.m * key_tiles;
    return tile;
  }

  /// visit(sequence, head) for all who share the tile.
  template <typename Visit>
  __device__ __forceinline__ void for_each(const Visit& visit) const {
    for (int b = 0; b < sequences; ++b) {
      for (int h = 0; h < heads; ++h) {
        visit(sequence + b, head + h);
      }
    }
  }
};

/// The pairs of one sequence and head that a warpgroup looks at.
template <Config C>
struct BiasStep {
  Work work;
  int head;
  bool visible;  // some of the pairs are

  __device__ __forceinline__ BiasStep(const Params& params, const BiasTile& tile, int sequence, int head_in,
                                      int warpgroup)
      : work{sequence_of<C.rule>(params, sequence)}, head(head_in) {
    work.sequence = sequence;
    work.head_kv = head / params.heads_per_kv;
    work.n = tile.n * kKeyWarpgroups + warpgroup;
    find_query_blocks<C>(params, work);
    visible = tile.m >= work.m_begin && tile.m < work.m_end &&
              shows_pair<C.rule>(params, sequence, head, tile.m * C.block_m, work.n * block_n(C));
  }
};

struct BiasGradientBarriers {
  uint64_t scores_full, scores_empty;        // Q, K, LSE
  uint64_t gradients_full, gradients_empty;  // dO, V, D
};

template <Config C>
__device__ __forceinline__ void feed_bias_gradient(const TensorMaps& maps, const Params& params, const BiasTile& tile,
                                                   unsigned char* smem, BiasGradientBarriers& barriers) {
  constexpr BiasGradientSmemPlan kPlan = bias_gradient_smem_plan(C);
  constexpr int kRowBytes = 4 * C.block_m;
  uint32_t parity = 1;
  tile.for_each([&](int sequence, int head) {
    const BiasStep<C> steps[kKeyWarpgroups] = {{params, tile, sequence, head, 0}, {params, tile, sequence, head, 1}};
    if (!steps[0].visible && !steps[1].visible) {
      return;
    }
    const Work& work = steps[0].work;
    const SequenceStart queries = query_start<C.rule>(params, work, sequence, work.q.used);
    const SequenceStart keys = key_start<C.rule>(params, work, sequence, work.k.used);
    const long long block = first_block_of<C.rule>(params, sequence, head, C.block_m) + tile.m;
    const auto load_rows = [&](const float* rows, int offset, uint64_t& full) {
      cptx::cp_async_bulk(cptx::space_cluster, cptx::space_global, smem + offset, rows + block * C.block_m, kRowBytes,
                          &full);
    };
    wait<C>(barriers.scores_empty, parity);
    expect(barriers.scores_full, kPlan.q_bytes + kKeyWarpgroups * kPlan.k_bytes + kRowBytes);
    load_tile<C.head_dim, C.block_m>(maps.q, queries, tile.m * C.block_m, head, smem + kPlan.q, barriers.scores_full);
    load_rows(params.lse_log2, kPlan.lse, barriers.scores_full);
    wait<C>(barriers.gradients_empty, parity);
    expect(barriers.gradients_full, kPlan.do_bytes + kKeyWarpgroups * kPlan.v_bytes + kRowBytes);
    load_tile<C.head_dim_v, C.block_m>(maps.d_o, queries, tile.m * C.block_m, head, smem + kPlan.d_o,
                                       barriers.gradients_full);
    load_rows(params.d_sum, kPlan.d_sum, barriers.gradients_full);
#pragma unroll
    for (int w = 0; w < kKeyWarpgroups; ++w) {
      const int row = steps[w].work.n * block_n(C);
      load_tile<C.head_dim, block_n(C)>(maps.k, keys, row, work.head_kv, smem + kPlan.k + w * kPlan.k_bytes,
                                        barriers.scores_full);
      load_tile<C.head_dim_v, block_n(C)>(maps.v, keys, row, work.head_kv, smem + kPlan.v + w * kPlan.v_bytes,
                                          barriers.gradients_full);
    }
    parity ^= 1;
  });
}

/// The bias of a thread's pairs, which is the same for all who share it: fetched once, kept in shared memory. A thread's
/// 16 bytes number i lie at [i][thread].
template <Config C>
class KeptBias {
 public:
  __device__ __forceinline__ KeptBias(const Params& params, const BiasTile& tile, int warpgroup, unsigned char* smem)
      : chunks_(reinterpret_cast<uint4*>(smem + warpgroup * kept_bias_bytes(C)) + threadIdx.x % kWarpgroupSize) {
    const BiasParams& bias = params.score.bias;
    const int key = (tile.n * kKeyWarpgroups + warpgroup) * block_n(C) + warpgroup_row(0);
    const int query = tile.m * C.block_m + static_cast<int>(2 * (threadIdx.x % 4));
    const long long first =
        tile.sequence * bias.batch_stride + tile.head * bias.head_stride + query * bias.row_stride + key;
    const auto number = [&](int column, int row) {
      const bool exists = query + column < params.sequences.seqlen_q && key + row < params.sequences.seqlen_k;
      return exists ? score::bias_at<C.rule>(bias, first + column * bias.row_stride + row) : 0.0F;
    };
#pragma unroll
    for (int chunk = 0; chunk < C.block_m / 4 / kPairs; ++chunk) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int index = chunk * kPairs + i;
        const int column = index / 2 * 8;
        const int row = index % 2 * 8;
        if constexpr (C.rule.bias_float32) {
          words[2 * i] = __float_as_uint(number(column, row));
          words[2 * i + 1] = __float_as_uint(number(column + 1, row));
        } else {
          words[i] = pack<C.rule.element>(number(column, row), number(column + 1, row));
        }
      }
      chunks_[chunk * kWarpgroupSize] = {words[0], words[1], words[2], words[3]};
    }
  }

  __device__ __forceinline__ float2 pair(int index) {
    if (index % kPairs == 0) {
      words_ = chunks_[index / kPairs * kWarpgroupSize];
    }
    const uint32_t words[4] = {words_.x, words_.y, words_.z, words_.w};
    if constexpr (C.rule.bias_float32) {
      return {__uint_as_float(words[index % 2 * 2]), __uint_as_float(words[index % 2 * 2 + 1])};
    } else {
      return to_floats<C.rule.element>(words[index % 4]);
    }
  }

 private:
  static constexpr int kPairs = C.rule.bias_float32 ? 2 : 4;  // in 16 bytes

  uint4* chunks_;
  uint4 words_;
};

/// S becomes P. `masked`: some of the pairs may be hidden, or of queries that do not exist. Of these P would be NaN
/// where a key is.
template <Config C>
__device__ __forceinline__ void bias_probabilities(const ScoreBlock<C>& block, bool masked, Scores<C>& s,
                                                   const unsigned char* lse, KeptBias<C>& bias) {
  if constexpr (C.rule.softcap) {
#pragma unroll
    for (int i = 0; i < C.block_m / 2; ++i) {
      s[i] = score::softcapped<C.rule>(block.params.score, s[i]);
    }
  }
  RowNumbers<C> lse_log2;
  load_row_numbers<C>(lse_log2, reinterpret_cast<const float*>(lse));
  plain_probabilities<C>(block, masked, s, lse_log2, bias);
  if (masked) {
    const int left = block.work.q.used - block.query();
#pragma unroll
    for (int i = 0; i < C.block_m / 2; ++i) {
      s[i] = i / 4 * 8 + i % 2 < left ? s[i] : 0.0F;
    }
  }
}

/// sums += P (dP - D), dP without what is dropped.
template <Config C>
__device__ __forceinline__ void add_score_gradients(const ScoreBlock<C>& block, bool masked, const Scores<C>& p,
                                                    const Scores<C>& dp, const unsigned char* d_rows, Scores<C>& sums) {
  RowNumbers<C> d_sum;
  load_row_numbers<C>(d_sum, reinterpret_cast<const float*>(d_rows));
  const auto add = [&](int i, float gradient, float d) {
    // Of a pair that is hidden, dP may be anything.
    sums[i] += masked && p[i] == 0.0F ? 0.0F : p[i] * (gradient - d);
  };
  if constexpr (C.rule.dropout) {
    const DropoutParams& dropout = block.params.score.dropout;
#pragma unroll
    for (int first = 0; first < C.block_m; first += kDropoutColumns) {
      const auto slices = draw_dropout<kDropoutColumns>(block, first);
#pragma unroll
      for (int j = 0; j < kDropoutColumns / 8; ++j) {
        const float2 d = row_numbers<C>(d_sum, first / 8 + j);
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          const unsigned dropped = slices.dropped(j / 2, j % 2, r);
          const int i = first / 2 + 4 * j + 2 * r;
          add(i, (dropped & 1U) != 0 ? 0.0F : dp[i] * dropout.keep_factor, d.x);
          add(i + 1, (dropped >> 31) != 0 ? 0.0F : dp[i + 1] * dropout.keep_factor, d.y);
        }
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < C.block_m / 8; ++j) {
      const float2 d = row_numbers<C>(d_sum, j);
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const int i = 4 * j + 2 * r;
        add(i, dp[i], d.x);
        add(i + 1, dp[i + 1], d.y);
      }
    }
  }
}

template <Config C, int warpgroup>
__device__ __forceinline__ void sum_bias_gradient(const Params& params, const BiasGradientParams& bias_gradient,
                                                  const BiasTile& tile, unsigned char* smem,
                                                  BiasGradientBarriers& barriers) {
  constexpr BiasGradientSmemPlan kPlan = bias_gradient_smem_plan(C);
  Scores<C> sums;
#pragma unroll
  for (int i = 0; i < C.block_m / 2; ++i) {
    sums[i] = 0.0F;
  }
  KeptBias<C> bias(params, tile, warpgroup, smem + kPlan.bias);
  uint32_t parity = 0;
  tile.for_each([&](int sequence, int head) {
    const BiasStep<C> own(params, tile, sequence, head, warpgroup);
    const bool loaded = own.visible || BiasStep<C>(params, tile, sequence, head, 1 - warpgroup).visible;
    if (!loaded) {
      return;
    }
    wait<C>(barriers.scores_full, parity);
    if (!own.visible) {
      arrive<C>(barriers.scores_empty);
      wait<C>(barriers.gradients_full, parity);
      arrive<C>(barriers.gradients_empty);
      parity ^= 1;
      return;
    }
    const ScoreBlock<C> block(params, own.work, sequence * params.heads + head, own.work.n * block_n(C), tile.m);
    const bool masked = !own.work.template sees_all<C>(tile.m) || block.query_first + C.block_m > own.work.q.used;
    Scores<C> p;
    ptx::wgmma_fence();
    multiply_transposed<C, C.head_dim>(p, descriptor_k_major(smem + kPlan.k + warpgroup * kPlan.k_bytes),
                                       descriptor_k_major(smem + kPlan.q));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(p);
    bias_probabilities<C>(block, masked, p, smem + kPlan.lse, bias);
    __syncwarp();  // all lanes have read LSE
    arrive<C>(barriers.scores_empty);
    wait<C>(barriers.gradients_full, parity);
    Scores<C> dp;
    ptx::wgmma_fence();
    multiply_transposed<C, C.head_dim_v>(dp, descriptor_k_major(smem + kPlan.v + warpgroup * kPlan.v_bytes),
                                         descriptor_k_major(smem + kPlan.d_o));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(dp);
    add_score_gradients<C>(block, masked, p, dp, smem + kPlan.d_sum, sums);
    __syncwarp();  // all lanes have read D
    arrive<C>(barriers.gradients_empty);
    parity ^= 1;
  });
  const int key_first = (tile.n * kKeyWarpgroups + warpgroup) * block_n(C) + warpgroup_row(0);
  const int query_first = tile.m * C.block_m + static_cast<int>(2 * (threadIdx.x % 4));
  float* plane =
      bias_gradient.data + tile.sequence * bias_gradient.batch_stride + tile.head * bias_gradient.head_stride;
#pragma unroll
  for (int i = 0; i < C.block_m / 2; ++i) {
    const int query = query_first + i / 4 * 8 + i % 2;
    const int key = key_first + 8 * (i / 2 % kRowsPerThread);
    if (query < params.sequences.seqlen_q && key < params.sequences.seqlen_k) {
      plane[query * bias_gradient.row_stride + key] = sums[i];
    }
  }
}

/// Grid: planes of the gradient * m_blocks * bias_key_tiles().
template <Config C>
__global__ void __launch_bounds__(kBiasGradientThreads, 1)
    bias_gradient(const __grid_constant__ TensorMaps maps, const __grid_constant__ Params params,
                  const __grid_constant__ BiasGradientParams bias) {
  static_assert(C.by_roles && C.rule.bias);
  extern __shared__ __align__(1024) unsigned char smem[];
  auto& barriers = *reinterpret_cast<BiasGradientBarriers*>(smem + bias_gradient_smem_plan(C).barriers);
  if (threadIdx.x == 0) {
    constexpr uint32_t kArrivals = kKeyWarpgroups * kWarpsPerWarpgroup * kWarpArrivals<C>;
    cptx::mbarrier_init(&barriers.scores_full, 1);
    cptx::mbarrier_init(&barriers.scores_empty, kArrivals);
    cptx::mbarrier_init(&barriers.gradients_full, 1);
    cptx::mbarrier_init(&barriers.gradients_empty, kArrivals);
    cptx::fence_mbarrier_init(cptx::sem_release, cptx::scope_cluster);
  }
  poison<C.debug>(smem, bias_gradient_smem_plan(C).barriers);
  ptx::griddepcontrol_launch_dependents();
  __syncthreads();
  ptx::griddepcontrol_wait();
  const auto tile = BiasTile::of(params, bias, blockIdx.x);
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<40>();
    if (threadIdx.x == 0) {
      feed_bias_gradient<C>(maps, params, tile, smem, barriers);
    }
  } else if (warpgroup == 1) {
    ptx::setmaxnreg_inc<232>();
    sum_bias_gradient<C, 0>(params, bias, tile, smem, barriers);
  } else {
    ptx::setmaxnreg_inc<232>();
    sum_bias_gradient<C, 1>(params, bias, tile, smem, barriers);
  }
}

}  // namespace strobe::hopper::backward
