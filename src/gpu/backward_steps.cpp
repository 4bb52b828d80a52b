// SPDX-License-Identifier: Apache-2.0
#include "gpu/backward_steps.h"

#include <cstdint>

#include "gpu/score_params.h"
#include "gpu/tensor_rows.h"

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

AttentionProblem without_headless_queries(AttentionProblem problem) {
  if (problem.heads_q > 0) return problem;
  problem.packed_q = problem.has_seqused_q = false;
  problem.seqlen_q = problem.total_q = 0;
  return problem;
}

Sequences backward_sequences(const AttentionProblem& problem, const BackwardArguments& arguments) {
  Sequences sequences = arguments.sequences;
  if (problem.heads_q == 0) sequences.cu_seqlens_q = sequences.seqused_q = {};
  return sequences;
}

steps::PrepareBackwardParams prepare_params(const AttentionProblem& problem, const BackwardArguments& arguments) {
  steps::PrepareBackwardParams prepare{};
  prepare.o = rows_of({"o", arguments.o});
  prepare.d_o = rows_of({"d_o", arguments.d_o});
  const auto head_stride = [&](const ConstTensorView& view) { return view.strides[problem.packed_q ? 0 : 1]; };
  const auto batch_stride = [&](const ConstTensorView& view) { return problem.packed_q ? 0 : view.strides[0]; };
  prepare.lse = static_cast<const float*>(arguments.lse.data);
  prepare.lse_batch_stride = batch_stride(arguments.lse);
  prepare.lse_head_stride = head_stride(arguments.lse);
  prepare.d_lse = static_cast<const float*>(arguments.d_lse.data);
  prepare.d_lse_batch_stride = batch_stride(arguments.d_lse);
  prepare.d_lse_head_stride = head_stride(arguments.d_lse);
  prepare.sequences = sequence_params(problem, backward_sequences(problem, arguments));
  prepare.heads = static_cast<int>(problem.heads_q);
  prepare.head_dim_v = static_cast<int>(problem.head_dim_v);
  return prepare;
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
