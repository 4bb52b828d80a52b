// SPDX-License-Identifier: Apache-2.0
#include "runtime/pack/common_variants.h"

#include <algorithm>
#include <utility>

#include "ampere/backward_plan.h"
#include "ampere/backward_variant.h"
#include "ampere/forward_plan.h"
#include "ampere/forward_variant.h"
#include "gpu/backward_variant.h"
#include "kernels/ampere/backward/smem.h"
#include "kernels/ampere/forward/smem.h"

namespace strobe::runtime {
namespace {

// One of each amount of shared memory among the devices that run machine code for 8.0.
constexpr ampere::DeviceShape kA100{
    .compute_major = 8, .compute_minor = 0, .multiprocessors = 108, .l2_bytes = 40 << 20, .shared_bytes = 163 << 10};
constexpr ampere::DeviceShape kL40{
    .compute_major = 8, .compute_minor = 9, .multiprocessors = 142, .l2_bytes = 96 << 20, .shared_bytes = 99 << 10};

/// Different problems share kernels.
class VariantList {
 public:
  void add(Variant variant, int dynamic_shared_bytes) {
    const auto same = [&](const CommonVariant& other) {
      return other.variant.expression == variant.expression && other.variant.architecture == variant.architecture;
    };
    if (std::ranges::any_of(variants_, same)) return;
    variants_.push_back({std::move(variant), static_cast<unsigned>(dynamic_shared_bytes)});
  }

  std::vector<CommonVariant> take() { return std::move(variants_); }

 private:
  std::vector<CommonVariant> variants_;
};

void add_forward(const AttentionProblem& problem, const ampere::DeviceShape& shape, VariantList& variants) {
  const Result<ampere::forward::Config> config = ampere::forward_config(problem, shape);
  if (config.ok()) variants.add(ampere::forward_variant(*config, shape), smem_plan(*config).total_bytes);
}

void add_backward(const AttentionProblem& problem, const ampere::DeviceShape& shape, VariantList& variants) {
  const Result<ampere::backward::Config> config = ampere::backward_config(problem, shape);
  if (!config.ok()) return;
  const ampere::BackwardPlan plan = ampere::backward_plan(problem, shape, *config);
  variants.add(gpu::prepare_variant(plan.prepare, ampere::architecture_of(shape)), 0);
  variants.add(ampere::backward_variant(*config, shape), smem_plan(*config).total_bytes);
  variants.add(ampere::finish_variant(*config, shape), finish_smem_bytes(*config));
}

}  // namespace

/// Training and prefill, as most models ask for them.
std::vector<CommonVariant> ampere_variants() {
  VariantList variants;
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
          add_forward(problem, shape, variants);
          add_backward(problem, shape, variants);
        }
      }
    }
  }
  return variants.take();
}

}  // namespace strobe::runtime
