// SPDX-License-Identifier: Apache-2.0
#include "runtime/pack/common_variants.h"

#include <algorithm>

#include "ampere/forward_plan.h"
#include "ampere/forward_variant.h"
#include "kernels/ampere/forward/smem.h"

namespace strobe::runtime {
namespace {

// One of each amount of shared memory among the devices that run machine code for 8.0.
constexpr ampere::DeviceShape kA100{
    .compute_major = 8, .compute_minor = 0, .multiprocessors = 108, .l2_bytes = 40 << 20, .shared_bytes = 163 << 10};
constexpr ampere::DeviceShape kL40{
    .compute_major = 8, .compute_minor = 9, .multiprocessors = 142, .l2_bytes = 96 << 20, .shared_bytes = 99 << 10};

}  // namespace

/// Training and prefill, as most models ask for them.
std::vector<CommonVariant> ampere_variants() {
  std::vector<CommonVariant> variants;
  AttentionProblem problem;
  problem.batch = problem.heads_q = problem.heads_kv = 1;
  problem.seqlen_q = problem.seqlen_k = problem.total_q = problem.total_k = 4096;
  problem.scale = 1.0F;
  for (const ampere::DeviceShape& shape : {kA100, kL40}) {
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      for (const std::int64_t head_dim : {64, 128, 256}) {
        for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
          problem.dtype = dtype;
          problem.head_dim = problem.head_dim_v = head_dim;
          problem.causal = causal;
          const Result<ampere::forward::Config> config = ampere::forward_config(problem, shape);
          if (!config.ok()) continue;
          Variant variant = ampere::forward_variant(*config, shape);
          const auto same = [&](const CommonVariant& other) { return other.variant.expression == variant.expression; };
          if (std::ranges::any_of(variants, same)) continue;
          variants.push_back({std::move(variant), static_cast<unsigned>(smem_plan(*config).total_bytes)});
        }
      }
    }
  }
  return variants;
}

}  // namespace strobe::runtime
