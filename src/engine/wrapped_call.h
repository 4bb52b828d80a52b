// SPDX-License-Identifier: Apache-2.0
// Planned calls around another one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/engine.h"

namespace strobe::engine {

/// A planned call that runs another: with other arguments, beside kernels of its own, or where a condition holds.
/// Workspace, dtype, kernels and explanation are the other's, unless a class says otherwise. It has no run(): a pass
/// that a class does not run as it should must not pass through.
class WrappedCall : public PlannedCall {
 public:
  std::size_t workspace_bytes() const override { return call_->workspace_bytes(); }
  DType probability_dtype() const override { return call_->probability_dtype(); }
  std::string_view kernels() const override { return call_->kernels(); }
  std::string explain() const override { return call_->explain(); }

 protected:
  explicit WrappedCall(std::shared_ptr<const PlannedCall> call) : call_(std::move(call)) {}

  const PlannedCall& wrapped() const { return *call_; }

 private:
  std::shared_ptr<const PlannedCall> call_;
};

}  // namespace strobe::engine
