// SPDX-License-Identifier: Apache-2.0
// What every engine implements: one object that says which devices it serves and plans calls of each pass.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "call/problem.h"
#include "strobe/attention.h"
#include "strobe/cache.h"
#include "strobe/jvp.h"
#include "strobe/merge.h"
#include "strobe/quantize.h"
#include "strobe/row_format.h"
#include "strobe/sparse.h"
#include "strobe/status.h"

namespace strobe::engine {

/// A call that an engine has planned: immutable, so that threads may run it at once. It serves every call of the
/// problem that it was made for.
class PlannedCall {
 public:
  PlannedCall() = default;
  PlannedCall(const PlannedCall&) = delete;
  PlannedCall& operator=(const PlannedCall&) = delete;
  virtual ~PlannedCall() = default;

  /// Bytes of workspace that run() needs.
  virtual std::size_t workspace_bytes() const = 0;

  /// The dtype that P and dS are rounded to before they are multiplied; float32 if they are not rounded.
  virtual DType probability_dtype() const = 0;

  /// The family of kernels that computes the call; empty where the engine has one.
  virtual std::string_view kernels() const { return {}; }

  virtual std::string explain() const = 0;

  /// Runs a checked call of the planned problem. A plan serves one pass; the others return an error.
  virtual Status run(const ForwardArguments& arguments, const Execution& execution) const;
  virtual Status run(const BackwardArguments& arguments, const Execution& execution) const;
  virtual Status run(const JvpArguments& arguments, const Execution& execution) const;
};

using PlannedCallResult = Result<std::shared_ptr<const PlannedCall>>;

template <class Call, class... Arguments>
PlannedCallResult make_planned(Arguments&&... arguments) {
  return std::shared_ptr<const PlannedCall>(std::make_shared<const Call>(std::forward<Arguments>(arguments)...));
}

/// The engine that a name means: those of releases before are families of gpu's kernels now.
constexpr Engine current(Engine engine) {
  return engine == Engine::ampere || engine == Engine::hopper ? Engine::gpu : engine;
}

/// The family of kernels that a call is to take; empty: the engine's choice.
constexpr std::string_view wanted_kernels(const Execution& execution) {
  return execution.kernels.empty() && execution.engine == Engine::ampere ? "sm80" : execution.kernels;
}

class Implementation {
 public:
  Implementation() = default;
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  virtual Engine id() const = 0;

  /// The kind of device whose tensors it takes.
  virtual DeviceType device_type() const = 0;

  /// Whether it serves this device of that kind; the Status says why not.
  virtual Status serves(const Device& device) const = 0;

  /// A plan for a problem of that pass on a device that it serves. unsupported, naming what the engine lacks, where it
  /// cannot: by default the whole pass.
  virtual PlannedCallResult plan_forward(const AttentionProblem& problem, const Execution& execution) const;
  virtual PlannedCallResult plan_backward(const AttentionProblem& problem, const Execution& execution) const;
  virtual PlannedCallResult plan_jvp(const AttentionProblem& problem, const Execution& execution) const;

  /// Runs a checked quantisation on a device that it serves; by default unsupported.
  virtual Status quantize(const QuantizeArguments& arguments, const QuantizeOptions& options,
                          const Execution& execution) const;

  /// Runs a checked merge on a device that it serves; by default unsupported.
  virtual Status merge(const MergeArguments& arguments, const Execution& execution) const;
  virtual Status merge_backward(const MergeBackwardArguments& arguments, const Execution& execution) const;

  /// Runs a checked append on a device that it serves; by default unsupported.
  virtual Status append(const AppendArguments& arguments, const Execution& execution) const;

  /// Runs a checked conversion of rows on a device that it serves; by default unsupported.
  virtual Status encode_rows(const ConstTensorView& rows, const TensorView& cache, const RowFormat& format,
                             const Execution& execution) const;
  virtual Status decode_rows(const ConstTensorView& cache, const TensorView& rows, const RowFormat& format,
                             const Execution& execution) const;
  virtual Status append_rows(const AppendRowsArguments& arguments, const RowFormat& format,
                             const Execution& execution) const;

  /// Runs a checked call of sparse attention, says what it would do, or runs its backward, on a device that it serves;
  /// by default unsupported.
  virtual Status sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options,
                                const Execution& execution) const;
  virtual Result<std::string> explain_sparse_forward(const SparseForwardArguments& arguments,
                                                     const SparseOptions& options, const Execution& execution) const;
  virtual Status sparse_backward(const SparseBackwardArguments& arguments, const SparseOptions& options,
                                 const Execution& execution) const;

  /// Copies memory of a device that it serves to the host, behind what is queued on execution.stream, and waits for it.
  /// By default unsupported.
  virtual Status read_back(const Device& device, void* to, const void* from, std::size_t bytes,
                           const Execution& execution) const;

 protected:
  ~Implementation() = default;  // engines live as long as the program
};

}  // namespace strobe::engine
