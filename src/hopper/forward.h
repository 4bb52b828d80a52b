// The Hopper engine's forward: a plan made into a launch.
#pragma once

#include <memory>
#include <string>

#include "hopper/forward_plan.h"
#include "runtime/device.h"
#include "runtime/kernel.h"
#include "strobe/attention.h"

namespace strobe::hopper {

/// Whether the device is of the generation that this engine is written for: compute capability 9.0.
bool serves(const runtime::CudaDevice& device);

/// One problem on one device, ready to run: immutable, so threads and streams may run it at once. It needs no
/// workspace.
class Forward {
 public:
  /// Chooses the kernel and loads it, compiling it first where neither the pack nor the cache has it.
  static Result<std::shared_ptr<const Forward>> make(const AttentionProblem& problem);

  /// The same with a given variant that fits the problem.
  static Result<std::shared_ptr<const Forward>> make(const AttentionProblem& problem, const KernelConfig& config);

  /// Enqueues the kernel on the stream. `arguments` are checked and those of the problem; neither allocates nor waits.
  Status run(const ForwardArguments& arguments, runtime::CUstream stream) const;

  std::string explain() const { return hopper::explain(problem_, plan_); }
  const HopperForwardPlan& plan() const { return plan_; }

 private:
  Forward(const AttentionProblem& problem, const runtime::CudaDevice& device, HopperForwardPlan plan,
          runtime::Kernel kernel)
      : problem_(problem), device_(device), plan_(std::move(plan)), kernel_(kernel) {}

  static Result<std::shared_ptr<const Forward>> load(const AttentionProblem& problem, const runtime::CudaDevice& device,
                                                     HopperForwardPlan plan);
  Result<ForwardParams> parameters(const ForwardArguments& arguments) const;

  AttentionProblem problem_;
  const runtime::CudaDevice& device_;
  HopperForwardPlan plan_;
  runtime::Kernel kernel_;
};

}  // namespace strobe::hopper
