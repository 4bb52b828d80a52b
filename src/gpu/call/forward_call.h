// SPDX-License-Identifier: Apache-2.0
// A planned forward of any family.
#pragma once

#include <cstddef>

#include "gpu/auxiliary/combine.h"
#include "gpu/call/call.h"
#include "gpu/plan/few_queries.h"

namespace strobe::gpu {

/// What a family's plan says of its launches.
struct ForwardLaunch {
  runtime::Kernel kernel;
  int workers = 0;  // CTAs
  int threads = 0;  // of each
  int smem_bytes = 0;
  int cluster = 1;                  // CTAs of a cluster, of which workers is a multiple
  bool overlaps_previous = false;   // the kernel may start while the one before it in the stream ends
  CombinedTiles tiles;              // tiles.tiles == 0: there is nothing to compute
  SplitPlan split;                  // total_bytes == 0: a tile's keys are one CTA's
  std::size_t workspace_bytes = 0;  // the split's, and what segments leave
  runtime::Kernel combine = {};     // of split keys; ForwardCall's maker finds it
};

/// One problem on one device with its kernel, and where keys are split the kernel that puts their parts together.
class ForwardCall : public Call {
 public:
  DType probability_dtype() const final;

  /// Enqueues the kernels; waits for nothing, and allocates nothing where the call brings what workspace it needs.
  using PlannedCall::run;
  Status run(const ForwardArguments& arguments, const Execution& execution) const final;

 protected:
  ForwardCall(const Request& request, const ForwardLaunch& launch);

  /// Enqueues the family's kernel by launch_main(), with parameters of the call, and then combine().
  virtual Status enqueue(const ForwardArguments& arguments, const CallStream& stream, std::byte* workspace) const = 0;

  bool splits() const { return launch_.split.total_bytes > 0; }
  SplitParams split_params(std::byte* workspace) const { return gpu::split_params(launch_.split, workspace); }

  template <class... Parameters>
  Status launch_main(const CallStream& stream, const Parameters&... parameters) const {
    runtime::LaunchShape shape =
        runtime::row_of_blocks(launch_.workers, launch_.threads, launch_.smem_bytes, launch_.overlaps_previous);
    shape.cluster.x = static_cast<unsigned>(launch_.cluster);
    return launch(launch_.kernel, shape, stream, parameters...);
  }

  /// Enqueues what puts the parts of split keys together. `params`: the forward kernel's.
  template <class Params>
  Status combine(const Params& params, const SplitParams& split, const CallStream& stream) const {
    return launch_combine(device(), launch_.combine, stream.context, stream.handle, launch_.split.combine,
                          combine_params(params, split, launch_.tiles));
  }

 private:
  ForwardLaunch launch_;
};

/// Finds the kernel that puts parts together, where keys are split, and makes the call: its constructor takes the
/// request, the launch and `plan`.
template <class FamilyCall, class Plan>
engine::PlannedCallResult make_forward(const Request& request, ForwardLaunch launch, Plan plan) {
  if (launch.split.total_bytes > 0) {
    const Result<runtime::Kernel> combine = find_combine(launch.split.combine, request.device);
    if (!combine.ok()) return combine.status();
    launch.combine = *combine;
  }
  return engine::make_planned<FamilyCall>(request, launch, std::move(plan));
}

}  // namespace strobe::gpu
