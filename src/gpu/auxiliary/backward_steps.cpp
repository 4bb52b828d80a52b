// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/backward_steps.h"

#include <functional>

#include "call/checked.h"
#include "gpu/params/rows.h"
#include "gpu/params/score.h"
#include "gpu/plan/backward_plan.h"
#include "kernels/score/params.h"

namespace strobe::gpu {
namespace {

/// The gradient of sinks that no row has.
Status clear_sink_gradient(const runtime::Driver& driver, const AttentionProblem& problem,
                           const BackwardArguments& arguments, runtime::CUstream stream) {
  if (!problem.wants_d_sink || problem.heads_q == 0) return {};
  return driver.check(driver.MemsetD32Async(reinterpret_cast<runtime::CUdeviceptr>(arguments.d_sink.data), 0,
                                            static_cast<std::size_t>(problem.heads_q), stream),
                      "clearing d_sink");
}

}  // namespace

Sequences backward_sequences(const AttentionProblem& problem, const BackwardArguments& arguments) {
  Sequences sequences = arguments.sequences;
  if (problem.heads_q == 0) sequences.cu_seqlens_q = sequences.seqused_q = {};
  return sequences;
}

void set_tensors(const AttentionProblem& problem, const BackwardArguments& a, BackwardParams& params) {
  params.q = rows_of({"q", a.q}, problem.dtype);
  params.k = rows_of({"k", a.k}, problem.dtype);
  params.v = rows_of({"v", a.v}, problem.dtype);
  params.d_o = rows_of({"d_o", a.d_o}, problem.dtype);
  params.dq = rows_of({"dq", a.dq}, problem.dtype);
  params.dk = rows_of({"dk", a.dk}, problem.dtype);
  params.dv = rows_of({"dv", a.dv}, problem.dtype);
  params.sequences = sequence_params(problem, backward_sequences(problem, a));
  params.blocks = block_mask_params(problem, a.modifiers.block_mask);
  params.score = score_params(problem, a.modifiers, a.random);
}

auxiliary::PrepareBackwardParams prepare_params(const AttentionProblem& problem, const BackwardArguments& arguments,
                                                const BackwardParams& params, ScoreRule rule, int block_m) {
  auxiliary::PrepareBackwardParams prepare{};
  if (is_normalized(problem)) prepare.o = rows_of({"o", arguments.o}, problem.dtype);
  const auto head_stride = [&](const ConstTensorView& view) { return view.strides[problem.packed_q ? 0 : 1]; };
  const auto batch_stride = [&](const ConstTensorView& view) { return problem.packed_q ? 0 : view.strides[0]; };
  prepare.lse = static_cast<const float*>(arguments.lse.data);
  prepare.lse_batch_stride = batch_stride(arguments.lse);
  prepare.lse_head_stride = head_stride(arguments.lse);
  prepare.d_lse = static_cast<const float*>(arguments.d_lse.data);
  prepare.d_lse_batch_stride = batch_stride(arguments.d_lse);
  prepare.d_lse_head_stride = head_stride(arguments.d_lse);
  prepare.lse_log2 = const_cast<float*>(params.lse_log2);
  prepare.d_sum = const_cast<float*>(params.d_sum);
  prepare.row_max = const_cast<float*>(params.row_max);
  prepare.large_rows = const_cast<unsigned*>(params.large_rows);
  prepare.block_m = block_m;
  prepare.backward = params;
  prepare.rule = rule;
  prepare.rule.sink = problem.modifiers.has_sink;
  prepare.offsets = offset_params(arguments.sequences);
  return prepare;
}

int prepare_ctas(const AttentionProblem& problem, const auxiliary::PrepareBackwardConfig& config,
                 const auxiliary::PrepareBackwardParams& params) {
  const int groups = prepare_groups(config, params.backward.m_blocks, params.block_m);
  return (Checked(groups) * params.backward.heads * problem.batch).value<int>();
}

BiasGradientParams bias_gradient_params(const AttentionProblem& problem, const BackwardArguments& arguments,
                                        const BackwardParams& params, int key_tiles) {
  const TensorView& d_bias = arguments.d_bias;
  const ModifierShape& shape = problem.modifiers;
  return {.data = static_cast<float*>(d_bias.data),
          .batch_stride = d_bias.strides[0],
          .head_stride = d_bias.strides[1],
          .row_stride = d_bias.strides[2],
          .per_batch = shape.bias_per_batch ? 1 : 0,
          .per_head = shape.bias_per_head ? 1 : 0,
          .heads = shape.bias_per_head ? params.heads : 1,
          .tiles = (Checked(bias_planes(problem)) * params.m_blocks * key_tiles).value<int>()};
}

auxiliary::SinkGradientParams sink_gradient_params(const BackwardArguments& arguments, const BackwardParams& params,
                                                   const ScoreRule& rule, int block_m) {
  return {.lse_log2 = params.lse_log2,
          .row_max = params.row_max,
          .score_scale = score::remaining_scale(rule, params.score),
          .d_sum = params.d_sum,
          .sink = params.score.sink,
          .d_sink = static_cast<float*>(arguments.d_sink.data),
          .rows = static_cast<long long>(params.query_blocks) * block_m};
}

BiasGradientParams capture_tiles(const AttentionProblem& problem, const BackwardParams& params, Checked of_head) {
  return {.data = nullptr,
          .batch_stride = 0,
          .head_stride = 0,
          .row_stride = 0,
          .per_batch = 1,
          .per_head = 1,
          .heads = params.heads,
          .tiles = (of_head * problem.batch * params.heads).value<int>()};
}

Status clear_capture_gradients(const runtime::Driver& driver, std::span<const TensorView> gradients,
                               runtime::CUstream stream) {
  Status status;
  // Axis by axis from the first; a run of elements that lie one behind another is one call.
  const std::function<void(const TensorView&, int, float*)> clear = [&](const TensorView& view, int axis, float* at) {
    std::int64_t run = 1;
    bool dense = true;
    for (int inner = view.rank - 1; inner >= axis; --inner) {
      dense = dense && (view.shape[inner] == 1 || view.strides[inner] == run);
      run *= view.shape[inner];
    }
    if (run == 0 || !status.ok()) return;
    if (dense) {
      status = driver.check(
          driver.MemsetD32Async(reinterpret_cast<runtime::CUdeviceptr>(at), 0, static_cast<std::size_t>(run), stream),
          "clearing d_captures");
      return;
    }
    for (std::int64_t i = 0; i < view.shape[axis]; ++i) clear(view, axis + 1, at + i * view.strides[axis]);
  };
  for (const TensorView& view : gradients) {
    if (view.given()) clear(view, 0, static_cast<float*>(view.data));
  }
  return status;
}

Status clear_modifier_gradients(const runtime::Driver& driver, const AttentionProblem& problem,
                                const BackwardArguments& arguments, runtime::CUstream stream) {
  Status status = clear_sink_gradient(driver, problem, arguments, stream);
  const TensorView& d_bias = arguments.d_bias;
  if (!problem.wants_d_bias || d_bias.shape[3] == 0) return status;
  const std::int64_t rows = d_bias.shape[0] * d_bias.shape[1] * d_bias.shape[2];
  for (std::int64_t row = 0; row < rows && status.ok(); ++row) {
    const std::int64_t plane = row / d_bias.shape[2];
    float* const first = static_cast<float*>(d_bias.data) + plane / d_bias.shape[1] * d_bias.strides[0] +
                         plane % d_bias.shape[1] * d_bias.strides[1] + row % d_bias.shape[2] * d_bias.strides[2];
    status = driver.check(driver.MemsetD32Async(reinterpret_cast<runtime::CUdeviceptr>(first), 0,
                                                static_cast<std::size_t>(d_bias.shape[3]), stream),
                          "clearing d_bias");
  }
  return status;
}

}  // namespace strobe::gpu
