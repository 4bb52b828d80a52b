// SPDX-License-Identifier: Apache-2.0
#include "sm90/forward.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>
#include <utility>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/eight_bit.h"
#include "gpu/call/aligned_or_any.h"
#include "gpu/call/find_kernel.h"
#include "gpu/call/forward_call.h"
#include "gpu/call/override.h"
#include "gpu/call/shared_or_any.h"
#include "gpu/params/cache.h"
#include "gpu/params/forward.h"
#include "gpu/params/row_format.h"
#include "gpu/params/scales.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/bias_map.h"
#include "sm90/forward_plan.h"
#include "sm90/forward_variant.h"
#include "sm90/pages.h"
#include "sm90/rows_in_format.h"
#include "sm90/tensor_maps.h"
#include "sm90/times.h"

namespace strobe::sm90 {
namespace {

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

/// Rows of all pages, or of a packed tensor.
int rows_of_pages(const ConstTensorView& k) {
  const auto at = static_cast<std::size_t>(k.rank - 3);
  return (Checked(k.rank == 4 ? k.shape[0] : 1) * k.shape[at]).value<int>();
}

/// What a call knows beside the problem and the plan: pointers and strides.
WithTexts<forward::Params> parameters(const AttentionProblem& problem, const ForwardPlan& plan,
                                      const ForwardArguments& arguments) {
  auto params = gpu::forward_params<forward::Params>(problem, arguments);
  params.tiles = plan.tiles;
  params.by_heads_per_kv = Divisor::of(params.tiles.heads / static_cast<int>(problem.heads_kv));
  params.cache = gpu::cache_params(problem, arguments, page_box_rows(problem, plan.config));
  if (plan.rows.given()) {
    params.format.cache = gpu::stored_cache(arguments.k, plan.rows);
    if (has_scales_apart(plan.config.format)) {
      params.format.scales = gpu::scale_params(arguments.k_descale, problem.seqlen_k);
    } else {
      params.cache.count = rows_of_pages(arguments.k);
    }
  } else {
    params.eight_bit = eight_bit_params(problem, arguments);
  }
  if (plan.config.bias_stages > 0) {
    params.bias_boxes = bias_boxes(problem, arguments.modifiers.bias, kRowsPerWarpgroup);
  }
  return params;
}

struct TensorMaps {
  TensorMap q, k, v, o;
  TensorMap other;  // the bias's, or the second query's
};

Status encode_all(const runtime::Driver& driver, const AttentionProblem& problem, const forward::Config& config,
                  const ForwardArguments& arguments, TensorMaps& maps) {
  // Where each key is read once, by all multiprocessors at once, reading ahead costs 7%.
  // log: sm90-forward-split-keys-table
  const Box keys{.rows = in_page_boxes(config) ? page_box_rows(problem, config) : config.block_n,
                 .reads_ahead = config.schedule != Schedule::split};
  const Box queries{.rows = kRowsPerWarpgroup, .heads = config.packed_heads};
  const Box outputs{.rows = kRowsPerWarp, .heads = std::min(config.packed_heads, kRowsPerWarp)};
  const VarlenBound q_bound{config.rule.varlen, problem.seqlen_q};
  // A page is what a sequence is otherwise. Where threads copy rows, K's and V's maps are not used.
  const VarlenBound k_bound{config.rule.varlen, in_pages(config) ? problem.page_size : problem.seqlen_k};
  const void* memory = arguments.o.data;
  Status status = encode(driver, {"q", arguments.q}, q_bound, queries, memory, maps.q);
  const bool in_format = config.keys == forward::KeySource::rows_in_format;  // of which there are no maps
  if (in_format) maps.k = maps.v = maps.q;
  if (status.ok() && !in_format) status = encode(driver, {"k", arguments.k}, k_bound, keys, memory, maps.k);
  // Rows of an 8-bit V are its columns: none lies behind a sequence's end. A packed one's keys do.
  const Box values = eight_bit(config) ? Box{.rows = config.head_dim_v} : keys;
  const VarlenBound columns{.rows = round_up(problem.seqlen_k, kValueKeys), .columns = problem.packed_k};
  const VarlenBound v_bound = eight_bit(config) ? columns : k_bound;
  if (status.ok() && !in_format)
    status = encode(driver, {"v", gpu::rows_of_v(problem, arguments.v)}, v_bound, values, memory, maps.v);
  if (status.ok()) status = encode(driver, {"o", arguments.o}, q_bound, outputs, memory, maps.o);
  if (status.ok() && config.bias_stages > 0) {
    const ConstTensorView& bias = arguments.modifiers.bias;
    status = encode_bias(driver, bias, bias_boxes(problem, bias, kRowsPerWarpgroup), bias_columns(config),
                         runtime::Swizzle::none, maps.other);
  }
  if (status.ok() && problem.has_qv) {
    status = encode(driver, {"qv", arguments.qv}, q_bound, queries, memory, maps.other);
  }
  return status;
}

class Forward final : public gpu::ForwardCall {
 public:
  Forward(const gpu::Request& request, const gpu::ForwardLaunch& launch, ForwardPlan plan)
      : ForwardCall(request, launch), plan_(std::move(plan)) {}

 private:
  std::string explain_plan() const override { return sm90::explain(problem(), plan_); }

  gpu::PlannedWork work() const override { return forward_work(problem(), shape(), plan_); }

  Status enqueue(const ForwardArguments& arguments, const gpu::CallStream& stream,
                 std::byte* workspace) const override {
    TensorMaps maps;  // NOLINT(cppcoreguidelines-pro-type-member-init): 640 bytes to clear in every run
    Status status = encode_all(*device().driver, problem(), plan_.config, arguments, maps);
    if (!status.ok()) return status;
    WithTexts<forward::Params> params = parameters(problem(), plan_, arguments);
    params.kept = reinterpret_cast<float*>(workspace);
    if (plan_.config.schedule == Schedule::taken) {
      return launch_with(maps, params, taken_tiles(arguments), stream);
    }
    if (!splits()) {
      return plan_.list != nullptr ? launch_with(maps, params, *plan_.list, stream)
                                   : launch_with(maps, params, NoTileList{}, stream);
    }
    const SplitParams split = split_params(workspace);
    status = launch_with(maps, params, split, stream);
    return status.ok() ? combine(params, split, stream) : status;
  }

  /// `tiles`: what a CTA computes, as the schedule says it.
  template <class Tiles>
  Status launch_with(const TensorMaps& maps, const WithTexts<forward::Params>& params, const Tiles& tiles,
                     const gpu::CallStream& stream) const {
    if (has_other_map(plan_.config)) {
      return launch_main(stream, maps.q, maps.k, maps.v, maps.o, params, tiles, maps.other);
    }
    return launch_main(stream, maps.q, maps.k, maps.v, maps.o, params, tiles, forward::NoOtherMap{});
  }

  /// Behind the blocks of the mask, which whoever found them has made ready.
  TakenTiles taken_tiles(const ForwardArguments& arguments) const {
    const gpu::TileClaims claims = gpu::tile_claims(problem(), arguments.modifiers.block_mask);
    return {.count = claims.count, .owners = claims.owners};
  }

  ForwardPlan plan_;
};

/// `rows`: their format, where producers convert them.
engine::PlannedCallResult plan_variant(const gpu::Request& request, const forward::Config& chosen,
                                       const RowFormat& rows = {}) {
  const forward::Config config = gpu::overridden(chosen);
  const int smem_bytes = smem_plan(config).total_bytes;
  const Result<runtime::Kernel> kernel =
      gpu::find_kernel(config, request.device, smem_bytes, [&] { return forward_variant(config); });
  if (!kernel.ok()) return kernel.status();
  ForwardPlan plan = forward_plan(request.problem, request.shape, config, request.choice.choice);
  plan.rows = rows;
  const gpu::ForwardLaunch launch{.kernel = *kernel,
                                  .workers = plan.workers,
                                  .threads = threads_per_block(config),
                                  .smem_bytes = smem_bytes,
                                  .cluster = cluster_ctas(config),
                                  .tiles = {.heads = plan.tiles.heads,
                                            .packed_heads = config.packed_heads,
                                            .m_tiles = plan.tiles.m_tiles,
                                            .tiles = plan.tiles.tiles,
                                            .block_m = block_m(config)},
                                  .split = plan.split,
                                  .workspace_bytes = workspace_bytes(plan)};
  return gpu::make_forward<Forward>(request, launch, std::move(plan));
}

}  // namespace

engine::PlannedCallResult plan_forward(const gpu::Request& request) {
  const Result<forward::Config> config = forward_config(request.problem, request.shape, request.choice.choice);
  if (!config.ok()) return config.status();
  const auto plan = [&](const forward::Config& chosen) { return plan_variant(request, chosen); };
  if (const auto shared = shared_values_config(request.problem, *config); shared.has_value()) {
    if (always_shares_values(request.problem, *config)) return plan(*shared);
    return gpu::shared_or_any(plan(*shared), plan(*config));
  }
  return gpu::plan_aligned_or_any(aligned_bias_config(request.problem, request.shape, *config), *config, plan);
}

engine::PlannedCallResult plan_rows(const gpu::Request& request, const RowFormat& format) {
  const Result<forward::Config> config = rows_config(request.problem, request.shape, format, request.choice.choice);
  if (!config.ok()) return config.status();
  return plan_variant(request, *config, format);
}

engine::PlannedCallResult plan_cache_rows(const gpu::Request& request, const forward::Config& config) {
  const AttentionProblem problem = with_rows_of_cache(request.problem);
  const DType stored = request.problem.stored.dtype;
  return plan_variant(request.of(problem), config,
                      gpu::rows_of_cache(stored, static_cast<std::int32_t>(problem.head_dim)));
}

}  // namespace strobe::sm90
