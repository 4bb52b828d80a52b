// SPDX-License-Identifier: Apache-2.0
// A call planned once and run many times.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "strobe/attention.h"
#include "strobe/jvp.h"

namespace strobe {

/// An immutable plan of a call: engine, tiles, workspace. Copies share it, and threads may run it concurrently, each
/// with its own workspace. On a GPU a run can be captured in a CUDA graph; keep the plan, and the workspace if the
/// run brought one, as long as the graph. @stable, but for kernels
class STROBE_API Plan {
 public:
  /// Bytes of workspace that run() needs; O(seqlen), never O(seqlen^2). On a GPU a run with a workspace allocates
  /// nothing.
  std::size_t workspace_size() const;

  Engine engine() const;

  /// GPU: the family of kernels that computes the call, "sm90" or "sm80", after the least compute capability that they
  /// need. Empty on the CPU.
  std::string_view kernels() const;

  /// The dtype that P and dS are rounded to before the second product; float32 if they are not rounded.
  DType probability_dtype() const;

  /// A few lines for a reader: engine, tiles, workspace, and why.
  std::string explain() const;

  /// Runs on new data. Shapes and dtypes must be those of the plan; pointers, strides and the contents of sequences may
  /// differ, and so may the shapes of captures, unless those of the plan could be a call's bias or slopes: then others
  /// must fit that option, too. Ignores `execution.engine`, `kernels` and `threads`, which are part of the plan.
  /// Running another pass is an error.
  Status run(const ForwardArguments& arguments, const Execution& execution = {}) const;
  Status run(const BackwardArguments& arguments, const Execution& execution = {}) const;
  Status run(const JvpArguments& arguments, const Execution& execution = {}) const;

  struct State;
  explicit Plan(std::shared_ptr<const State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<const State> state_;
};

/// Plans a call from shapes, strides and dtypes alone: data pointers may be null. On a GPU it also loads the kernel.
/// @stable
STROBE_API Result<Plan> make_plan(const ForwardArguments& arguments, const AttentionOptions& options = {},
                                  const Execution& execution = {});
STROBE_API Result<Plan> make_plan(const BackwardArguments& arguments, const AttentionOptions& options = {},
                                  const Execution& execution = {});
STROBE_API Result<Plan> make_plan(const JvpArguments& arguments, const AttentionOptions& options = {},
                                  const Execution& execution = {});

}  // namespace strobe
