// SPDX-License-Identifier: Apache-2.0
#include "sm90/forward.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "call/arithmetic.h"
#include "call/eight_bit.h"
#include "gpu/auxiliary/combine.h"
#include "gpu/auxiliary/max_logits.h"
#include "gpu/call/with_workspace.h"
#include "gpu/params/cache.h"
#include "gpu/params/forward.h"
#include "gpu/params/rows.h"
#include "gpu/params/scales.h"
#include "gpu/plan/supported.h"
#include "gpu/variant/kernel_table.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/smem.h"
#include "runtime/device.h"
#include "runtime/kernel.h"
#include "runtime/workspace_pool.h"
#include "sm90/bias_map.h"
#include "sm90/engine.h"
#include "sm90/few_rows.h"
#include "sm90/forward_plan.h"
#include "sm90/forward_variant.h"
#include "sm90/pages.h"
#include "sm90/tensor_maps.h"

namespace strobe::sm90 {
namespace {

using gpu::RowsView;

VariantScope::Change& variant_change() {
  thread_local VariantScope::Change change;
  return change;
}

forward::EightBitParams eight_bit_params(const AttentionProblem& problem, const ForwardArguments& arguments) {
  const EightBitShape& shape = problem.eight_bit;
  forward::EightBitParams params{};
  if (problem.stored.given()) {
    params.k = gpu::scale_params(arguments.k_descale, problem.stored.k_rows);
    params.v = gpu::scale_params(arguments.v_descale, problem.stored.v_rows);
  }
  if (!shape.given()) return params;
  params.q = gpu::scale_params(arguments.q_descale, shape.q_rows);
  params.k = gpu::scale_params(arguments.k_descale, shape.k_rows);
  params.v = gpu::scale_params(arguments.v_descale, shape.v_rows);
  if (shape.has_q_shift) {
    params.q_shift = gpu::scale_params(arguments.q_shift, 1);
    params.q_shift.shift = 0;
  }
  for (std::size_t i = 0; i < std::size(params.v_signs); ++i) {
    params.v_signs[i] = rotation_signs(arguments.v_rotation.seed, static_cast<std::int64_t>(64 * i));
  }
  return params;
}

/// 8-bit V lies transposed: its columns are rows of keys.
ConstTensorView rows_of_v(const AttentionProblem& problem, const ConstTensorView& v) {
  if (!problem.eight_bit.given()) return v;
  ConstTensorView rows = v;
  if (problem.packed_k) {
    std::swap(rows.shape[0], rows.shape[1]);
    std::swap(rows.strides[0], rows.strides[1]);
    return rows;
  }
  rows.shape = {v.shape[0], v.shape[2], v.shape[1], v.shape[3]};
  rows.strides = {v.strides[0], v.strides[2], v.strides[1], v.strides[3]};
  return rows;
}

/// What a call knows beside the problem and the plan: pointers and strides.
forward::Params parameters(const AttentionProblem& problem, const ForwardPlan& plan,
                           const ForwardArguments& arguments) {
  auto params = gpu::forward_params<forward::Params>(problem, arguments);
  params.tiles = plan.tiles;
  params.by_heads_per_kv = Divisor::of(params.tiles.heads / static_cast<int>(problem.heads_kv));
  params.eight_bit = eight_bit_params(problem, arguments);
  params.cache = gpu::cache_params(problem, arguments, page_box_rows(problem, plan.config));
  if (plan.config.bias_stages > 0) {
    params.bias_boxes = bias_boxes(problem, arguments.modifiers.bias, kRowsPerWarpgroup);
  }
  if (in_pages(plan.config)) {  // copies of nothing name an address all the same
    if (params.k.data == nullptr) params.k.data = params.o.data;
    if (params.v.data == nullptr) params.v.data = params.o.data;
  }
  return params;
}

struct TensorMaps {
  TensorMap q, k, v, o, bias;
};

Status encode_all(const runtime::Driver& driver, const AttentionProblem& problem, const forward::Config& config,
                  const ForwardArguments& arguments, TensorMaps& maps) {
  // Where each key is read once, by all multiprocessors at once, reading ahead costs 7%:
  // docs/performance-log-hopper.md.
  const bool boxes = config.keys == forward::KeySource::page_boxes;
  const Box keys{.rows = boxes ? page_box_rows(problem, config) : config.block_n,
                 .reads_ahead = config.schedule != Schedule::split};
  const Box queries{.rows = kRowsPerWarpgroup, .heads = config.packed_heads};
  const Box outputs{.rows = kRowsPerWarp, .heads = std::min(config.packed_heads, kRowsPerWarp)};
  const VarlenBound q_bound{config.rule.varlen, problem.seqlen_q};
  // A page is what a sequence is otherwise. Where threads copy rows, K's and V's maps are not used.
  const VarlenBound k_bound{config.rule.varlen, in_pages(config) ? problem.page_size : problem.seqlen_k};
  const void* memory = arguments.o.data;
  Status status = encode(driver, {"q", arguments.q}, q_bound, queries, memory, maps.q);
  if (status.ok()) status = encode(driver, {"k", arguments.k}, k_bound, keys, memory, maps.k);
  // Rows of an 8-bit V are its columns: none lies behind a sequence's end. A packed one's keys do.
  const Box values = eight_bit(config) ? Box{.rows = config.head_dim_v} : keys;
  const VarlenBound columns{.rows = round_up(problem.seqlen_k, kValueKeys), .columns = problem.packed_k};
  const VarlenBound v_bound = eight_bit(config) ? columns : k_bound;
  if (status.ok()) status = encode(driver, {"v", rows_of_v(problem, arguments.v)}, v_bound, values, memory, maps.v);
  if (status.ok()) status = encode(driver, {"o", arguments.o}, q_bound, outputs, memory, maps.o);
  if (status.ok() && config.bias_stages > 0) {
    const ConstTensorView& bias = arguments.modifiers.bias;
    status = encode_bias(driver, bias, bias_boxes(problem, bias, kRowsPerWarpgroup), bias_columns(config),
                         runtime::Swizzle::none, maps.bias);
  }
  return status;
}

Status check_alignments(const AttentionProblem& problem, const ForwardArguments& arguments) {
  for (const RowsView& tensor : {RowsView{"q", arguments.q}, RowsView{"k", arguments.k},
                                 RowsView{"v", rows_of_v(problem, arguments.v)}, RowsView{"o", arguments.o}}) {
    if (Status status = gpu::check_alignment(tensor, kEngine); !status.ok()) return status;
  }
  return {};
}

/// One problem on one device with its kernel, and where keys are split the kernel that puts their parts together.
class ForwardCall final : public engine::PlannedCall {
 public:
  ForwardCall(const AttentionProblem& problem, const runtime::CudaDevice& device, ForwardPlan plan,
              const runtime::Kernel& kernel, const runtime::Kernel& combine)
      : problem_(problem),
        device_(device),
        plan_(std::move(plan)),
        kernel_(kernel),
        combine_(combine),
        pool_(device, std::max<std::size_t>(sm90::workspace_bytes(plan_), 1)) {}

  std::size_t workspace_bytes() const override { return sm90::workspace_bytes(plan_); }
  DType probability_dtype() const override { return problem_.dtype == DType::int8 ? DType::uint8 : problem_.dtype; }
  std::string explain() const override { return sm90::explain(problem_, plan_); }

  /// Enqueues the kernels; waits for nothing, and allocates nothing where the call brings what workspace it needs.
  using PlannedCall::run;
  Status run(const ForwardArguments& arguments, const Execution& execution) const override {
    const runtime::Driver& driver = *device_.driver;
    auto* const stream = static_cast<runtime::CUstream>(execution.stream);
    const runtime::ContextScope context(device_);
    if (!context.status().ok()) return context.status();
    if (Status status = gpu::clear_max_logits(driver, arguments.max_logits, stream); !status.ok()) return status;
    if (plan_.tiles.tiles == 0) return {};
    if (Status status = check_alignments(problem_, arguments); !status.ok()) return status;
    TensorMaps maps{};
    if (Status status = encode_all(driver, problem_, plan_.config, arguments, maps); !status.ok()) return status;
    forward::Params params = parameters(problem_, plan_, arguments);
    return gpu::with_workspace(pool_, workspace_bytes(), execution, stream, [&](std::byte* workspace) {
      params.kept = reinterpret_cast<float*>(workspace);
      return launch(context.current(), stream, maps, params, workspace);
    });
  }

 private:
  Status launch(runtime::CUcontext context, runtime::CUstream stream, const TensorMaps& maps,
                const forward::Params& params, std::byte* workspace) const {
    const runtime::Driver& driver = *device_.driver;
    const runtime::CUfunction function = kernel_.launched_in(context);
    const runtime::LaunchShape shape =
        runtime::row_of_blocks(plan_.workers, threads_per_block(plan_.config), smem_plan(plan_.config).total_bytes);
    const auto launched_with = [&](const auto& tiles) {
      const auto launched = [&](const auto& bias) {
        return runtime::launch(driver, function, shape, stream, maps.q, maps.k, maps.v, maps.o, params, tiles, bias);
      };
      return plan_.config.bias_stages > 0 ? launched(maps.bias) : launched(forward::NoBiasMap{});
    };
    if (plan_.config.schedule != Schedule::split) {
      return plan_.list != nullptr ? launched_with(*plan_.list) : launched_with(NoTileList{});
    }
    const SplitParams split = gpu::split_params(plan_.split, workspace);
    if (Status status = launched_with(split); !status.ok()) return status;
    const gpu::CombinedTiles tiles{.heads = plan_.tiles.heads,
                                   .packed_heads = plan_.config.packed_heads,
                                   .m_tiles = plan_.tiles.m_tiles,
                                   .tiles = plan_.tiles.tiles,
                                   .block_m = block_m(plan_.config)};
    return gpu::launch_combine(device_, combine_, context, stream, plan_.split.combine,
                               gpu::combine_params(params, split, tiles));
  }

  AttentionProblem problem_;
  const runtime::CudaDevice& device_;
  ForwardPlan plan_;
  runtime::Kernel kernel_;
  runtime::Kernel combine_;              // split schedules
  mutable runtime::WorkspacePool pool_;  // synchronises itself
};

/// A plan whose bias comes by TMA, and what takes its place where a call's bias is not aligned for that.
class BiasedCall final : public engine::PlannedCall {
 public:
  using Part = std::shared_ptr<const engine::PlannedCall>;
  BiasedCall(Part aligned, Part any) : aligned_(std::move(aligned)), any_(std::move(any)) {}

  std::size_t workspace_bytes() const override {
    return std::max(aligned_->workspace_bytes(), any_->workspace_bytes());
  }
  DType probability_dtype() const override { return aligned_->probability_dtype(); }
  std::string explain() const override { return aligned_->explain(); }

  using PlannedCall::run;
  Status run(const ForwardArguments& arguments, const Execution& execution) const override {
    return (bias_is_aligned(arguments.modifiers.bias) ? aligned_ : any_)->run(arguments, execution);
  }

 private:
  Part aligned_, any_;
};

Result<runtime::Kernel> find_kernel(const forward::Config& config, const runtime::CudaDevice& device) {
  static gpu::KernelTable<forward::Config>& table = *new gpu::KernelTable<forward::Config>;
  return table.find_or_load(config, device, [&] {
    return runtime::load_kernel(runtime::kernel_store(), forward_variant(config), device,
                                static_cast<unsigned>(smem_plan(config).total_bytes));
  });
}

engine::PlannedCallResult plan_call(const AttentionProblem& problem, const runtime::CudaDevice& device,
                                    const DeviceShape& shape, forward::Config config) {
  if (variant_change()) variant_change()(config);
  const Result<runtime::Kernel> kernel = find_kernel(config, device);
  if (!kernel.ok()) return kernel.status();
  ForwardPlan plan = forward_plan(problem, shape, config);
  Result<runtime::Kernel> combine = runtime::Kernel{};
  if (plan.split.total_bytes > 0) combine = gpu::find_combine(plan.split.combine, device, "sm_90a");
  if (!combine.ok()) return combine.status();
  return engine::make_planned<ForwardCall>(problem, device, std::move(plan), *kernel, *combine);
}

}  // namespace

engine::PlannedCallResult plan_forward(const AttentionProblem& problem) {
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(problem.device.index);
  if (!device.ok()) return device.status();
  const DeviceShape shape{(*device)->multiprocessors, (*device)->l2_bytes};
  const Result<forward::Config> config = forward_config(problem, shape);
  if (!config.ok()) return config.status();
  if (reads_stored_page_rows(problem)) return sm80::plan_forward(problem, stored_page_rows_caller());
  if (!variant_change() && has_few_rows(problem)) return sm80::plan_forward(problem, few_rows_caller());
  const std::optional<forward::Config> aligned = aligned_bias_config(problem, shape, *config);
  engine::PlannedCallResult any = plan_call(problem, **device, shape, *config);
  if (!aligned.has_value() || !any.ok()) return any;
  engine::PlannedCallResult call = plan_call(problem, **device, shape, *aligned);
  if (!call.ok()) return call;
  return engine::make_planned<BiasedCall>(*call, *any);
}

VariantScope::VariantScope(Change change) : previous_(std::exchange(variant_change(), std::move(change))) {}

VariantScope::~VariantScope() { variant_change() = std::move(previous_); }

}  // namespace strobe::sm90
