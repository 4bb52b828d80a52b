// A decision made once and run many times.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "strobe/attention.h"

namespace strobe {

/// An immutable decision about one call: engine, tiles, workspace. Copies share it; threads may run it at once, each
/// with its own workspace.
class STROBE_API Plan {
 public:
  /// Bytes of workspace that run() needs; O(seqlen), never O(seqlen^2).
  std::size_t workspace_size() const;

  Engine engine() const;

  /// What P and dS are rounded to before they are multiplied by V, dO, K and Q: float32 where nothing is.
  DType probability_dtype() const;

  /// Why this engine and these tiles, in a few lines of text.
  std::string explain() const;

  /// Runs on new data. Shapes and dtypes must be those that the plan was made for; pointers, strides and the contents
  /// of sequences may differ. `execution.engine` and `execution.threads` are the plan's own and are not read here.
  Status run(const ForwardArguments& arguments, const Execution& execution = {}) const;
  Status run(const BackwardArguments& arguments, const Execution& execution = {}) const;

  struct State;
  explicit Plan(std::shared_ptr<const State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<const State> state_;
};

/// Plans a call from shapes, strides and dtypes alone: data pointers are not read and may be null.
STROBE_API Result<Plan> make_plan(const ForwardArguments& arguments, const AttentionOptions& options = {},
                                  const Execution& execution = {});
STROBE_API Result<Plan> make_plan(const BackwardArguments& arguments, const AttentionOptions& options = {},
                                  const Execution& execution = {});

}  // namespace strobe
