// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/exact_captures.h"

#include <fmt/format.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/limits.h"
#include "call/workspace.h"
#include "engine/wrapped_call.h"
#include "expression/formula.h"
#include "gpu/call/find_kernel.h"
#include "gpu/call/with_workspace.h"
#include "gpu/params/captures.h"
#include "gpu/plan/supported.h"
#include "gpu/variant/architecture.h"
#include "kernels/auxiliary/round_gradient_params.h"
#include "kernels/math/exact_sum.h"
#include "runtime/launch.h"

namespace strobe::gpu {
namespace {

Checked sum_bytes(const AttentionProblem& problem) {
  constexpr int kPadding = kMaxCaptures * kExactSumsOfGroup;  // every gradient's begin with a group
  return round_up(Checked(problem.expression.gradient_elements) + kPadding, kExactSumsOfGroup) * kExactSumBytes;
}

/// Terms that one element may get. Where indices follow heads, queries, keys or diagonals, a warp sums those of at
/// least eight pairs first, on average.
Checked most_terms(const AttentionProblem& problem) {
  using expression::Pattern;
  constexpr int kPairsOfTerm = 8;
  Checked terms = 0;
  for (const expression::Read& read : problem.expression.formula->reads()) {
    if ((problem.expression.gradients >> read.capture & 1U) == 0) continue;
    const Checked pairs = Checked(problem.batch) * problem.heads_q * problem.seqlen_q * problem.seqlen_k;
    const bool alone = read.pattern == Pattern::pair || read.pattern == Pattern::scattered;
    terms = terms + (alone ? pairs : ceil_div(pairs, kPairsOfTerm));
  }
  return terms;
}

std::int64_t elements_of(const TensorView& view) {
  std::int64_t elements = 1;
  for (int axis = 0; axis < view.rank; ++axis) elements *= view.shape[axis];
  return elements;
}

/// The sums of a gradient's elements, one behind another.
TensorView sums_of(const TensorView& gradient, std::byte* sums) {
  TensorView view = gradient;
  view.data = sums;
  std::int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.strides[axis] = stride;
    stride *= view.shape[axis];
  }
  return view;
}

class WithExactCaptures final : public engine::WrappedCall {
 public:
  WithExactCaptures(const AttentionProblem& problem, const runtime::CudaDevice& device, const runtime::Kernel& kernel,
                    std::shared_ptr<const engine::PlannedCall> call)
      : WrappedCall(std::move(call)),
        device_(device),
        kernel_(kernel),
        sum_bytes_(sum_bytes(problem).value<std::size_t>()),
        offset_(round_up(Checked(static_cast<std::int64_t>(wrapped().workspace_bytes())), kWorkspaceAlignment)
                    .value<std::size_t>()),
        pool_(device, workspace_bytes()) {}

  std::size_t workspace_bytes() const override { return offset_ + sum_bytes_; }
  std::string explain() const override {
    return wrapped().explain() +
           fmt::format("d_captures    exact sums, the same bits every time: {} bytes an element, {} in all\n",
                       kExactSumBytes, sum_bytes_);
  }

  using PlannedCall::run;
  Status run(const BackwardArguments& given, const Execution& execution) const override {
    const runtime::ContextScope context(device_);
    if (!context.status().ok()) return context.status();
    const auto stream = static_cast<runtime::CUstream>(execution.stream);
    return with_workspace(pool_, workspace_bytes(), execution, stream, [&](std::byte* workspace) {
      std::vector<TensorView> sums;
      std::byte* at = workspace + offset_;
      for (const TensorView& gradient : given.d_captures) {
        sums.push_back(gradient.given() ? sums_of(gradient, at) : TensorView{});
        if (gradient.given()) at += kExactSumBytes * whole_exact_sums(elements_of(gradient));
      }
      Status status = clear(workspace + offset_, stream);
      if (!status.ok()) return status;
      BackwardArguments arguments = given;
      arguments.d_captures = sums;
      status = wrapped().run(arguments, execution_in(workspace, offset_, execution));
      for (std::size_t i = 0; i < sums.size() && status.ok(); ++i) {
        if (sums[i].given()) status = round(sums[i], given.d_captures, i, context.current(), stream);
      }
      return status;
    });
  }

 private:
  Status clear(std::byte* sums, runtime::CUstream stream) const {
    return device_.driver->check(
        device_.driver->MemsetD32Async(reinterpret_cast<runtime::CUdeviceptr>(sums), 0, sum_bytes_ / 4, stream),
        "clearing the sums of d_captures");
  }

  Status round(const TensorView& sums, std::span<const TensorView> gradients, std::size_t capture,
               runtime::CUcontext context, runtime::CUstream stream) const {
    const auxiliary::RoundGradientParams params{.sums = static_cast<const unsigned long long*>(sums.data),
                                                .gradient = captures(gradients).of[capture],
                                                .rank = sums.rank,
                                                .elements = elements_of(sums)};
    if (params.elements == 0) return {};
    const std::int64_t blocks = ceil_div<std::int64_t>(params.elements, auxiliary::kRoundGradientThreads);
    return runtime::launch(*device_.driver, kernel_.launched_in(context),
                           runtime::row_of_blocks(blocks, auxiliary::kRoundGradientThreads), stream, params);
  }

  const runtime::CudaDevice& device_;
  runtime::Kernel kernel_;
  std::size_t sum_bytes_;
  std::size_t offset_;  // of the sums in the workspace
  mutable runtime::WorkspacePool pool_;
};

}  // namespace

Status check_exact_captures(const AttentionProblem& problem) {
  if (!sums_captures_exactly(problem)) return {};
  constexpr std::int64_t kMostBytes = std::int64_t{4} << 30U;
  if (sum_bytes(problem).value() > kMostBytes) {
    return unsupported(
        "d_captures have {} elements and are given with deterministic: the gpu engine then has {} bytes of workspace "
        "for "
        "each, and {} in all at most; the cpu engine takes more",
        problem.expression.gradient_elements, kExactSumBytes, kMostBytes);
  }
  if (!most_terms(problem).at_most(kMostTermsOfExactSum)) {
    return unsupported(
        "d_captures of {} x {} pairs of queries and keys in {} heads are given with deterministic: the gpu engine sums "
        "up to {} terms; the cpu engine sums more",
        problem.seqlen_q, problem.seqlen_k, (Checked(problem.batch) * problem.heads_q).value(), kMostTermsOfExactSum);
  }
  return {};
}

runtime::Variant round_gradient_variant(std::string_view architecture) {
  return {.name = "round gradient",
          .include = "kernels/auxiliary/round_gradient.h",
          .expression = "strobe::auxiliary::round_gradient",
          .architecture = std::string(architecture),
          .options = {}};
}

engine::PlannedCallResult with_exact_captures(const AttentionProblem& problem, const runtime::CudaDevice& device,
                                              const engine::PlannedCallResult& call) {
  if (!call.ok() || !sums_captures_exactly(problem)) return call;
  constexpr int kOnly = 0;  // it has one variant
  const Result<runtime::Kernel> kernel =
      find_kernel(kOnly, device, 0, [&] { return round_gradient_variant(architecture_of(device)); });
  if (!kernel.ok()) return kernel.status();
  return engine::make_planned<WithExactCaptures>(problem, device, *kernel, *call);
}

}  // namespace strobe::gpu
