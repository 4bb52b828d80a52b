// SPDX-License-Identifier: Apache-2.0
// A planned backward of any family.
#pragma once

#include <cstddef>
#include <string>

#include "gpu/auxiliary/backward_steps.h"
#include "gpu/auxiliary/backward_variant.h"
#include "gpu/call/call.h"

namespace strobe::gpu {

/// The kernels around a family's own.
struct SharedBackwardKernels {
  runtime::Kernel large_rows;
  runtime::Kernel prepare;
  runtime::Kernel sink;  // where the gradient of sinks is wanted
};

/// visit(configuration, bytes of dynamic shared memory, what makes the variant, the kernel's place in `kernels`) for
/// each of them that the call needs.
template <class Visit>
void for_each_shared_kernel(const AttentionProblem& problem, const auxiliary::PrepareBackwardConfig& prepare,
                            const std::string& architecture, SharedBackwardKernels& kernels, Visit& visit) {
  const auxiliary::PrepareBackwardConfig large = large_rows_config(prepare);
  if (prepare.normalized) visit(large, 0, [=] { return large_rows_variant(large, architecture); }, kernels.large_rows);
  visit(prepare, 0, [=] { return prepare_variant(prepare, architecture); }, kernels.prepare);
  constexpr int kOnly = 0;  // it has one variant
  if (problem.wants_d_sink) visit(kOnly, 0, [=] { return sink_variant(architecture); }, kernels.sink);
}

/// What a family's plan says of the kernels around its own.
struct SharedBackwardLaunches {
  bool computes = false;  // else there is nothing to compute
  ScoreRule rule;         // of the family's kernels
  int block_m = 0;
  auxiliary::PrepareBackwardConfig prepare;
  std::size_t workspace_bytes = 0;
  SharedBackwardKernels kernels;
};

/// The launches that a family's plan shares with the others'.
template <class Plan>
SharedBackwardLaunches shared_launches(const Plan& plan, bool computes, const SharedBackwardKernels& kernels) {
  return {.computes = computes,
          .rule = plan.config.rule,
          .block_m = plan.config.block_m,
          .prepare = plan.prepare,
          .workspace_bytes = plan.workspace.total_bytes,
          .kernels = kernels};
}

/// One problem on one device with its kernels.
class BackwardCall : public Call {
 public:
  DType probability_dtype() const final { return problem().dtype; }

  /// Enqueues the kernels; waits for nothing, and allocates nothing where the call brings a workspace.
  using PlannedCall::run;
  Status run(const BackwardArguments& arguments, const Execution& execution) const final;

 protected:
  BackwardCall(const Request& request, const SharedBackwardLaunches& launch);

  /// Enqueues the family's kernels, with parameters of the call, by enqueue_around().
  virtual Status enqueue(const BackwardArguments& arguments, const CallStream& stream, std::byte* workspace) const = 0;

  /// LSE and D of every row; what a family adds is still to be set.
  auxiliary::PrepareBackwardParams prepare_params(const BackwardArguments& arguments,
                                                  const BackwardParams& params) const;

  /// Enqueues what comes before the family's kernels, those by main(follows), the gradients of the bias by bias() and
  /// of captures by captures() where they are wanted, and what comes after them. `follows`: a kernel of this call comes
  /// before.
  template <class Main, class Bias, class Captures>
  Status enqueue_around(const BackwardArguments& arguments, const auxiliary::PrepareBackwardParams& prepare,
                        const CallStream& stream, const Main& main, const Bias& bias, const Captures& captures) const {
    const BackwardParams& params = prepare.backward;
    const bool prepared = params.heads * params.sequences.sequences > 0 && problem().total_q > 0;
    Status status = prepared ? launch_prepare(prepare, stream) : Status();
    if (status.ok()) status = main(prepared);
    if (!status.ok()) return status;
    if (!prepared) return clear_modifier_gradients(arguments, stream);
    if (problem().wants_d_bias) status = bias();
    if (status.ok() && problem().expression.gradients != 0) status = captures();
    if (status.ok() && problem().wants_d_sink) status = launch_sink(arguments, params, stream);
    return status;
  }

 private:
  Status launch_prepare(const auxiliary::PrepareBackwardParams& params, const CallStream& stream) const;
  Status launch_sink(const BackwardArguments& arguments, const BackwardParams& params, const CallStream& stream) const;
  Status clear_modifier_gradients(const BackwardArguments& arguments, const CallStream& stream) const;

  SharedBackwardLaunches launch_;
};

}  // namespace strobe::gpu
