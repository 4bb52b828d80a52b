// SPDX-License-Identifier: Apache-2.0
#include "sm90/backward.h"

#include <algorithm>
#include <string>
#include <utility>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "gpu/call/aligned_or_any.h"
#include "gpu/call/backward_call.h"
#include "gpu/call/find_kernel.h"
#include "gpu/call/override.h"
#include "gpu/params/captures.h"
#include "gpu/params/score.h"
#include "gpu/plan/backward_plan.h"
#include "kernels/sm90/backward/capture_gradient/config.h"
#include "kernels/sm90/backward/wide/smem.h"
#include "sm90/backward_kernels.h"
#include "sm90/backward_plan.h"
#include "sm90/bias_map.h"
#include "sm90/tensor_maps.h"
#include "sm90/times.h"

namespace strobe::sm90 {
namespace {

using gpu::RowsView;

struct AllMaps {
  backward::TensorMaps main;
  backward::QueryGradientMaps query;
  backward::TensorMaps bias;  // of the kernel of its gradient
};

Status encode_all(const runtime::Driver& driver, const AttentionProblem& problem, const BackwardPlan& plan,
                  const BackwardArguments& a, AllMaps& maps) {
  const backward::Config& config = plan.config;
  const VarlenBound q_bound{config.rule.varlen, problem.seqlen_q};
  const VarlenBound k_bound{config.rule.varlen, problem.seqlen_k};
  const Box queries{.rows = config.block_m};
  const Box keys{.rows = block_n(config)};
  const Box gradients{.rows = kRowsPerWarpgroup};
  const Box tiles{.rows = backward::kScoreTile};
  const void* memory = problem.total_q * problem.heads_q > 0 ? a.dq.data : a.dk.data;
  struct Item {
    RowsView tensor;
    const VarlenBound& bound;
    Box box;
    TensorMap& map;
  };
  for (const Item& item :
       {Item{{"q", a.q}, q_bound, queries, maps.main.q}, Item{{"k", a.k}, k_bound, keys, maps.main.k},
        Item{{"v", a.v}, k_bound, keys, maps.main.v}, Item{{"d_o", a.d_o}, q_bound, queries, maps.main.d_o},
        Item{{"dk", a.dk}, k_bound, gradients, maps.main.dk}, Item{{"dv", a.dv}, k_bound, gradients, maps.main.dv},
        Item{{"k", a.k}, k_bound, tiles, maps.query.k}, Item{{"dq", a.dq}, q_bound, tiles, maps.query.dq}}) {
    Status status = encode(driver, item.tensor, item.bound, item.box, memory, item.map);
    if (!status.ok()) return status;
  }
  if (config.bias_stages > 0) {
    const ConstTensorView& bias = a.modifiers.bias;
    Status status = encode_bias(driver, bias, bias_boxes(problem, bias, config.block_m),
                                kPanelRowBytes / static_cast<int>(size_of(bias.dtype)), runtime::Swizzle::bytes_128,
                                maps.main.bias);
    if (!status.ok()) return status;
  }
  if (!problem.wants_d_bias && problem.expression.gradients == 0) return {};
  maps.bias = maps.main;
  const Box bias_keys{.rows = block_n(bias_gradient_config(config))};
  Status status = encode(driver, {"k", a.k}, k_bound, bias_keys, memory, maps.bias.k);
  return status.ok() ? encode(driver, {"v", a.v}, k_bound, bias_keys, memory, maps.bias.v) : status;
}

using Params = WithTexts<backward::Params>;

/// What a run adds to the plan's parameters: pointers and strides.
Params parameters(const AttentionProblem& problem, const BackwardPlan& plan, const BackwardArguments& a,
                  std::byte* workspace) {
  Params params{{plan.params, gpu::offset_params(a.sequences)}, gpu::captures(a.modifiers.captures)};
  const BackwardWorkspace& offsets = plan.workspace;
  const auto floats = [&](std::size_t offset) { return reinterpret_cast<float*>(workspace + offset); };
  gpu::set_rows(offsets, workspace, params);
  const auto bytes = [&](std::size_t offset) { return reinterpret_cast<unsigned char*>(workspace + offset); };
  params.lse_hi_lo = has_hi_lo_lse(plan.config) ? bytes(offsets.lse_hi_lo) : nullptr;
  params.d_hi_lo = has_hi_lo_d(plan.config) ? bytes(offsets.d_hi_lo) : nullptr;
  params.dq_sum = plan.config.by_roles ? nullptr : floats(offsets.dq_sum);
  params.dq_semaphores = plan.config.ordered ? reinterpret_cast<unsigned*>(workspace + offsets.dq_semaphores) : nullptr;
  params.ds = plan.config.by_roles ? bytes(offsets.ds) : nullptr;
  params.dq_before = plan.config.by_roles ? floats(offsets.dq_before) : nullptr;
  params.dk_sums = plan.config.shares_keys ? floats(offsets.dk_sums) : nullptr;
  params.dv_sums = plan.config.shares_keys ? floats(offsets.dv_sums) : nullptr;
  gpu::set_tensors(problem, a, params);
  if (plan.config.bias_stages > 0) {
    params.bias_boxes = bias_boxes(problem, a.modifiers.bias, plan.config.block_m);
  }
  return params;
}

/// Adds to LSE and D what the kernels read of them, and zeros where dQ will be summed.
void set_prepared(const BackwardPlan& plan, const backward::Params& params, auxiliary::PrepareBackwardParams& prepare) {
  prepare.lse_hi_lo = const_cast<unsigned char*>(params.lse_hi_lo);
  prepare.d_hi_lo = const_cast<unsigned char*>(params.d_hi_lo);
  prepare.lse_shift = backward::kProbabilityLog2;
  prepare.lse_factor = has_hi_lo_lse(plan.config) ? 1.0F / params.score.scale_log2 : 0.0F;
  const auto clear = [&](void* from, long long bytes) {
    prepare.zeros = from;
    prepare.zeros_16_bytes = round_up(bytes, 16) / 16;
  };
  if (params.dq_semaphores != nullptr) {
    clear(params.dq_semaphores, 4 * backward::semaphore_count(params.heads, params.query_blocks));
  } else if (params.dq_sum != nullptr) {
    clear(params.dq_sum, 4 * backward::query_gradient_floats(params.heads, params.query_blocks, plan.config.block_m,
                                                             plan.config.head_dim));
  }
}

class Backward final : public gpu::BackwardCall {
 public:
  Backward(const gpu::Request& request, const gpu::SharedBackwardLaunches& shared, BackwardPlan plan,
           const BackwardKernels& kernels)
      : BackwardCall(request, shared), plan_(std::move(plan)), kernels_(kernels) {}

 private:
  std::string explain_plan() const override { return sm90::explain(problem(), plan_); }

  gpu::PlannedWork work() const override { return backward_work(problem(), shape(), plan_); }

  Status enqueue(const BackwardArguments& arguments, const gpu::CallStream& stream,
                 std::byte* workspace) const override {
    AllMaps maps{};
    if (Status status = encode_all(*device().driver, problem(), plan_, arguments, maps); !status.ok()) return status;
    const Params params = parameters(problem(), plan_, arguments, workspace);
    auxiliary::PrepareBackwardParams prepare = prepare_params(arguments, params);
    set_prepared(plan_, params, prepare);
    return enqueue_around(
        arguments, prepare, stream, [&](bool follows) { return launch_parts(maps, params, stream, follows); },
        [&] { return launch_bias(maps, arguments, params, stream); },
        [&] { return launch_captures(maps, arguments, params, stream); });
  }

  /// The gradient of the bias, whose planes other heads or sequences may share.
  Status launch_bias(const AllMaps& maps, const BackwardArguments& arguments, Params params,
                     const gpu::CallStream& stream) const {
    const backward::Config config = bias_gradient_config(plan_.config);
    params.n_blocks = static_cast<int>(gpu::backward_blocks(problem().seqlen_k, block_n(config)));
    const BiasGradientParams bias =
        gpu::bias_gradient_params(problem(), arguments, params, backward::bias_key_tiles(params.n_blocks));
    return launch(kernels_.bias, std::min(bias.tiles, device().multiprocessors), backward::kBiasGradientThreads,
                  bias_gradient_smem_plan(config).total_bytes, true, stream, maps.bias, params, bias);
  }

  /// Every sequence and head has walks of its own.
  Status launch_captures(const AllMaps& maps, const BackwardArguments& arguments, Params params,
                         const gpu::CallStream& stream) const {
    const backward::Config config = capture_gradient_config(plan_.config, problem().deterministic);
    params.n_blocks = static_cast<int>(gpu::backward_blocks(problem().seqlen_k, block_n(config)));
    const BiasGradientParams walks = gpu::capture_tiles(
        problem(), params, backward::walks_of_head(params.m_blocks, backward::bias_key_tiles(params.n_blocks)));
    return launch(kernels_.captures, std::min(walks.tiles, device().multiprocessors), backward::kBiasGradientThreads,
                  bias_gradient_smem_plan(config).total_bytes, true, stream, maps.bias, params, walks,
                  gpu::captures(arguments.d_captures));
  }

  Status launch_parts(const AllMaps& maps, const Params& params, const gpu::CallStream& stream, bool follows) const {
    Status status;
    for (const BackwardLaunch& part : plan_.launches) {
      if (status.ok()) status = launch_part(maps, params, part, stream, follows);
      follows = true;
    }
    if (!status.ok() || !plan_.config.shares_keys) return status;
    return launch(
        kernels_.keys,
        params.n_blocks * (block_n(plan_.config) / kRowsPerWarpgroup) * params.heads_kv * params.sequences.sequences,
        backward::kFinishKeysThreads, 0, true, stream, params);
  }

  /// dK and dV of some keys, and then what they add to dQ.
  Status launch_part(const AllMaps& maps, Params params, const BackwardLaunch& part, const gpu::CallStream& stream,
                     bool follows) const {
    const backward::Config& config = plan_.config;
    params.first_head_kv = part.first_head_kv;
    params.first_key_block = part.first_key_block;
    params.key_blocks = part.key_blocks;
    params.launch_heads = part.heads_kv;
    const int heads = part.heads_kv * params.key_parts;
    params.items = heads * part.key_blocks;
    params.section_heads = std::min(params.section_heads, heads);
    Status status = launch(kernels_.main, params.items * ctas_per_item(config), threads_per_block(config),
                           main_smem_bytes(config), follows, stream, maps.main, params);
    if (!status.ok() || !plan_.finishes) return status;
    if (config.by_roles) {
      const int groups = query_groups(plan_.query, params.m_blocks) * part.heads_kv * params.heads_per_kv;
      return launch(kernels_.query, groups * plan_.query.column_parts, threads_per_block(plan_.query),
                    smem_plan(plan_.query).total_bytes, true, stream, maps.query, params);
    }
    return launch(kernels_.query, params.m_blocks * params.heads * params.sequences.batch, finish_threads(config), 0,
                  true, stream, params);
  }

  BackwardPlan plan_;
  BackwardKernels kernels_;
};

engine::PlannedCallResult plan_variant(const gpu::Request& request, const backward::Config& chosen) {
  const backward::Config config = gpu::overridden(chosen);
  const BackwardChoices choices{
      .limits = gpu::overridden(ScoreGradientLimits{}),
      .heads = gpu::overridden(part_heads(request.problem, request.shape, config, request.choice.choice.part_heads)),
      .section_heads = request.choice.choice.section_heads,
  };
  BackwardPlan plan = backward_plan(request.problem, request.shape, config, choices);
  BackwardKernels kernels;
  gpu::FindKernels find(request.device);
  for_each_kernel(request.problem, plan, kernels, find);
  if (Status status = find.take(); !status.ok()) return status;
  const gpu::SharedBackwardLaunches shared = gpu::shared_launches(plan, !plan.launches.empty(), kernels.shared);
  return engine::make_planned<Backward>(request, shared, std::move(plan), kernels);
}

}  // namespace

engine::PlannedCallResult plan_backward(const gpu::Request& request) {
  const Result<backward::Config> config = backward_config(request.problem, request.shape, request.choice.choice);
  if (!config.ok()) return config.status();
  return gpu::plan_aligned_or_any(aligned_bias_config(request.problem, *config), *config,
                                  [&](const backward::Config& chosen) { return plan_variant(request, chosen); });
}

}  // namespace strobe::sm90
