// SPDX-License-Identifier: Apache-2.0
#include "runtime/pack/common_variants.h"

#include "hopper/forward_plan.h"
#include "hopper/forward_variant.h"
#include "kernels/hopper/forward/smem.h"

namespace strobe::runtime {
namespace {

/// The calls that the pack answers without a compiler: what most models ask for. Training and prefill of any length,
/// batched and packed, and few queries of ungrouped heads and groups of 4 and 8.
std::vector<AttentionProblem> common_problems() {
  std::vector<AttentionProblem> problems;
  AttentionProblem problem;
  problem.batch = problem.heads_kv = 1;
  problem.scale = 1.0F;
  const auto add = [&](std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t group, bool packed) {
    problem.heads_q = group;
    problem.seqlen_q = problem.total_q = seqlen_q;
    problem.seqlen_k = problem.total_k = seqlen_k;
    problem.packed_q = problem.packed_k = packed;
    problems.push_back(problem);
  };
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
        problem.dtype = dtype;
        problem.head_dim = problem.head_dim_v = head_dim;
        problem.causal = causal;
        for (const std::int64_t seqlen : {512, 16384}) {  // short and long calls may take different tiles
          for (const bool packed : {false, true}) add(seqlen, seqlen, 1, packed);
        }
        for (const std::int64_t group : {1, 4, 8}) {
          if (head_dim <= 128) add(2, 4096, group, false);
        }
      }
    }
  }
  return problems;
}

}  // namespace

std::vector<CommonVariant> common_variants() {
  constexpr hopper::DeviceShape kH200{.multiprocessors = 132, .l2_bytes = 60 << 20};
  std::vector<hopper::forward::Config> configs;
  for (const AttentionProblem& problem : common_problems()) {
    const Result<hopper::forward::Config> config = hopper::forward_config(problem, kH200);
    bool known = !config.ok();
    for (const hopper::forward::Config& other : configs) known = known || other == *config;
    if (!known) configs.push_back(*config);
  }
  std::vector<CommonVariant> variants;
  for (const hopper::forward::Config& config : configs) {
    variants.push_back(
        {hopper::forward_variant(config), static_cast<unsigned>(hopper::forward::smem_plan(config).total_bytes)});
  }
  return variants;
}

}  // namespace strobe::runtime
