// SPDX-License-Identifier: Apache-2.0
// What the planned calls of every family and pass have in common: the device, the workspace and launches.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "gpu/call/request.h"
#include "gpu/call/with_workspace.h"
#include "gpu/plan/times.h"
#include "runtime/kernel.h"
#include "runtime/launch.h"

namespace strobe::gpu {

/// Where a run enqueues its kernels.
struct CallStream {
  runtime::CUstream handle;
  runtime::CUcontext context;  // the current one
};

/// One problem on one device. Immutable but for its pool, which synchronises itself.
class Call : public engine::PlannedCall {
 public:
  std::size_t workspace_bytes() const final { return workspace_bytes_; }
  std::string_view kernels() const final { return family_; }
  std::string explain() const final;

 protected:
  Call(const Request& request, std::size_t workspace_bytes);

  const AttentionProblem& problem() const { return problem_; }
  const runtime::CudaDevice& device() const { return device_; }
  const DeviceShape& shape() const { return shape_; }  // what the plan is for

  /// The plan in a few lines, between those of the engine and of the workspace.
  virtual std::string explain_plan() const = 0;

  /// What the kernels have to do, for the time that the plan's text predicts.
  virtual PlannedWork work() const = 0;

  /// enqueue(workspace) with the call's workspace: the caller's, or the plan's own.
  template <class Enqueue>
  Status with_workspace(const Execution& execution, const CallStream& stream, const Enqueue& enqueue) const {
    return gpu::with_workspace(pool_, workspace_bytes_, execution, stream.handle, enqueue);
  }

  /// `follows`: a kernel of this call comes before it, and where the device can, this one starts while that one ends.
  template <class... Parameters>
  Status launch(const runtime::Kernel& kernel, int blocks, int threads, int smem_bytes, bool follows,
                const CallStream& stream, const Parameters&... parameters) const {
    return launch(kernel, runtime::row_of_blocks(blocks, threads, smem_bytes, follows), stream, parameters...);
  }

  template <class... Parameters>
  Status launch(const runtime::Kernel& kernel, runtime::LaunchShape shape, const CallStream& stream,
                const Parameters&... parameters) const {
    shape.overlaps_previous &= device_.compute_major >= 9;
    return runtime::launch(*device_.driver, kernel.launched_in(stream.context), shape, stream.handle, parameters...);
  }

 private:
  AttentionProblem problem_;
  const runtime::CudaDevice& device_;
  DeviceShape shape_;
  std::string_view family_;
  std::string reason_;
  PlannedChoice choice_;
  std::size_t workspace_bytes_;
  mutable runtime::WorkspacePool pool_;
};

}  // namespace strobe::gpu
