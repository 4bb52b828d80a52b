// SPDX-License-Identifier: Apache-2.0
// How what a tile of the bias's gradient needs comes to shared memory: the barriers and the producer.
#pragma once

#include "kernels/sm90/backward/barriers.h"
#include "kernels/sm90/backward/bias_gradient/tile.h"
#include "kernels/sm90/backward/bias_ring.h"
#include "kernels/sm90/backward/coordinates.h"
#include "kernels/sm90/ptx/cuda_ptx.h"

namespace strobe::sm90::backward {

/// Each pair of full and empty: what arrives, by TMA, and that all warps of both warpgroups have read it.
template <Config C>
struct BiasGradientBarriers {
  static constexpr BiasGradientSmemPlan kPlan = bias_gradient_smem_plan(C);

  uint64_t scores_full[kPlan.score_stages], scores_empty[kPlan.score_stages];              // Q, K, LSE
  uint64_t gradients_full[kPlan.gradient_stages], gradients_empty[kPlan.gradient_stages];  // dO, V, D
  uint64_t bias_full, bias_empty;                                                          // where TMA brings it

  /// Initialises the barriers. By one thread, before anyone uses them.
  __device__ void init() {
    static_assert(sizeof(BiasGradientBarriers) <= kBiasGradientBarrierBytes);
    constexpr uint32_t kArrivals = kKeyWarpgroups * kWarpsPerWarpgroup * kWarpArrivals<C.debug>;
    const auto both = [](uint64_t& full, uint64_t& empty) {
      cptx::mbarrier_init(&full, 1);
      cptx::mbarrier_init(&empty, kArrivals);
    };
    for (int s = 0; s < kPlan.score_stages; ++s) {
      both(scores_full[s], scores_empty[s]);
    }
    for (int s = 0; s < kPlan.gradient_stages; ++s) {
      both(gradients_full[s], gradients_empty[s]);
    }
    both(bias_full, bias_empty);
    cptx::fence_mbarrier_init(cptx::sem_release, cptx::scope_cluster);
  }
};

/// The producer's side, by one thread.
template <Config C>
class BiasGradientFeeder {
 public:
  __device__ __forceinline__ BiasGradientFeeder(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                                BiasGradientBarriers<C>& barriers)
      : maps_(maps), params_(params), smem_(smem), barriers_(barriers) {}

  /// `for_each_tile(visit)`: the CTA's tiles, as its consumers have them.
  template <typename ForEachTile>
  __device__ __forceinline__ void run(const ForEachTile& for_each_tile) {
    for_each_tile([&](const BiasGradientTile& tile) {
      bool first = true;
      tile.for_each([&](int sequence, int head) {
        const BiasStep<C> steps[kKeyWarpgroups] = {{params_, tile, sequence, head, 0},
                                                   {params_, tile, sequence, head, 1}};
        if (!steps[0].visible && !steps[1].visible) {
          return;
        }
        feed_scores(tile, steps);
        if constexpr (C.bias_stages > 0) {
          // Behind what the products need first, as there is room for it only when the tile before is done.
          if (first) {
            feed_bias(tile);
          }
          first = false;
        }
        feed_gradients(tile, steps);
      });
    });
  }

 private:
  static constexpr BiasGradientSmemPlan kPlan = bias_gradient_smem_plan(C);
  static constexpr int kRowBytes = 4 * C.block_m;

  /// How many warpgroups' keys are brought. A box that begins behind the last key of a varlen map is not harmless: it
  /// was seen to read memory that is not mapped.
  __device__ __forceinline__ static int visible_steps(const BiasStep<C> (&steps)[kKeyWarpgroups]) {
    return int{steps[0].visible} + int{steps[1].visible};
  }

  __device__ __forceinline__ void load_rows(const BiasGradientTile& tile, const BiasStep<C>& step, const float* rows,
                                            int offset, uint64_t& full) {
    const long long block = score::first_block_of<C.rule>(params_, step.work.sequence, step.head, C.block_m) + tile.m;
    cptx::cp_async_bulk(cptx::space_cluster, cptx::space_global, smem_ + offset, rows + block * C.block_m, kRowBytes,
                        &full);
  }

  __device__ __forceinline__ void feed_scores(const BiasGradientTile& tile,
                                              const BiasStep<C> (&steps)[kKeyWarpgroups]) {
    const Work& work = steps[0].work;
    const int stage = scores_.stage;
    uint64_t& full = barriers_.scores_full[stage];
    wait<C>(barriers_.scores_empty[stage], scores_.parity);
    expect(full, kPlan.q_bytes + visible_steps(steps) * kPlan.k_bytes + kRowBytes);
    const SequenceStart queries = query_start<C.rule>(params_, work, work.sequence, work.q.used);
    const SequenceStart keys = key_start<C.rule>(params_, work, work.sequence, work.k.used);
    load_tile<C.head_dim, C.block_m>(maps_.q, queries, tile.m * C.block_m, steps[0].head,
                                     smem_ + kPlan.q + stage * kPlan.q_bytes, full);
#pragma unroll
    for (int w = 0; w < kKeyWarpgroups; ++w) {
      if (steps[w].visible) {
        load_tile<C.head_dim, block_n(C)>(maps_.k, keys, steps[w].work.n * block_n(C), work.head_kv,
                                          smem_ + kPlan.k + (stage * kKeyWarpgroups + w) * kPlan.k_bytes, full);
      }
    }
    load_rows(tile, steps[0], params_.lse_log2, kPlan.lse + stage * kRowBytes, full);
    scores_.advance();
  }

  __device__ __forceinline__ void feed_gradients(const BiasGradientTile& tile,
                                                 const BiasStep<C> (&steps)[kKeyWarpgroups]) {
    const Work& work = steps[0].work;
    const int stage = gradients_.stage;
    uint64_t& full = barriers_.gradients_full[stage];
    wait<C>(barriers_.gradients_empty[stage], gradients_.parity);
    expect(full, kPlan.do_bytes + visible_steps(steps) * kPlan.v_bytes + kRowBytes);
    const SequenceStart queries = query_start<C.rule>(params_, work, work.sequence, work.q.used);
    const SequenceStart keys = key_start<C.rule>(params_, work, work.sequence, work.k.used);
    load_tile<C.head_dim_v, C.block_m>(maps_.d_o, queries, tile.m * C.block_m, steps[0].head,
                                       smem_ + kPlan.d_o + stage * kPlan.do_bytes, full);
#pragma unroll
    for (int w = 0; w < kKeyWarpgroups; ++w) {
      if (steps[w].visible) {
        load_tile<C.head_dim_v, block_n(C)>(maps_.v, keys, steps[w].work.n * block_n(C), work.head_kv,
                                            smem_ + kPlan.v + (stage * kKeyWarpgroups + w) * kPlan.v_bytes, full);
      }
    }
    load_rows(tile, steps[0], params_.d_sum, kPlan.d_sum + stage * kRowBytes, full);
    gradients_.advance();
  }

  __device__ __forceinline__ void feed_bias(const BiasGradientTile& tile) {
    const BiasBoxParams& boxes = params_.bias_boxes;
    uint64_t& full = barriers_.bias_full;
    const int warpgroups = min(kKeyWarpgroups, params_.n_blocks - tile.n * kKeyWarpgroups);
    wait<C>(barriers_.bias_empty, bias_parity_);
    bias_parity_ ^= 1;
    const auto first_key = [&](int w) { return (tile.n * kKeyWarpgroups + w) * block_n(C); };
    const int last_panels = existing_panels<C>(params_.sequences.seqlen_k - first_key(warpgroups - 1));
    expect(full, ((warpgroups - 1) * bias_panels(C) + last_panels) * boxes.rows * kPanelRowBytes);
    for (int w = 0; w < warpgroups; ++w) {
#pragma unroll
      for (int panel = 0; panel < bias_panels(C); ++panel) {
        if (w == warpgroups - 1 && panel >= last_panels) {
          break;
        }
        const int key = first_key(w) + panel * (kRowsPerWarpgroup / bias_panels(C));
        const int32_t box[4] = {key, boxes.rows == 1 ? 0 : tile.m * C.block_m, tile.head * boxes.per_head,
                                tile.sequence * boxes.per_batch};
        cptx::cp_async_bulk_tensor(cptx::space_cluster, cptx::space_global,
                                   smem_ + kPlan.bias + w * bias_bytes(C) + panel * C.block_m * kPanelRowBytes,
                                   &maps_.bias, box, &full);
      }
    }
  }

  const TensorMaps& maps_;
  const Params& params_;
  unsigned char* smem_;
  BiasGradientBarriers<C>& barriers_;
  RingPosition<kPlan.score_stages> scores_{0, 1};
  RingPosition<kPlan.gradient_stages> gradients_{0, 1};
  uint32_t bias_parity_ = 1;
};

}  // namespace strobe::sm90::backward
