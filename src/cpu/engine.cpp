// SPDX-License-Identifier: Apache-2.0
#include "cpu/engine.h"

#include <fmt/format.h>

#include <memory>
#include <new>

#include "call/text_options.h"
#include "call/workspace.h"
#include "cpu/append.h"
#include "cpu/merge.h"
#include "cpu/passes.h"
#include "cpu/plan.h"
#include "cpu/quantize.h"
#include "cpu/sparse/rows.h"
#include "cpu/sparse/sparse.h"
#include "engine/captured_options.h"

namespace strobe::cpu {
namespace {

struct AlignedFree {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t(kWorkspaceAlignment)); }
};
using OwnedWorkspace = std::unique_ptr<std::byte, AlignedFree>;

Status check_no_stream(const Execution& execution) {
  if (execution.stream == nullptr) return {};
  return {StatusCode::invalid_argument, "stream is given for tensors on the cpu: it must be null"};
}

/// The caller's workspace, checked, or one of our own in `owned`.
Result<std::byte*> workspace_for(std::size_t bytes, const Execution& execution, OwnedWorkspace& owned) {
  if (execution.workspace == nullptr) {
    owned.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kWorkspaceAlignment), std::nothrow)));
    if (owned == nullptr && bytes > 0) {
      return Status(StatusCode::out_of_memory, fmt::format("a workspace of {} bytes could not be allocated", bytes));
    }
    return owned.get();
  }
  if (Status status = check_workspace(execution, bytes); !status.ok()) return status;
  return static_cast<std::byte*>(execution.workspace);
}

/// A planned call of any pass: `Arguments` says which.
template <class Arguments>
class CpuCall final : public engine::PlannedCall {
 public:
  CpuCall(const AttentionProblem& problem, int threads)
      : problem_(problem), plan_(make_call_plan(problem, this_machine(), worker_count(threads))) {}

  std::size_t workspace_bytes() const override { return plan_.workspace_bytes; }
  DType probability_dtype() const override {
    if (problem_.eight_bit.given()) return problem_.dtype == DType::int8 ? DType::uint8 : problem_.dtype;
    return plan_.bfloat16_serves() ? DType::bfloat16 : DType::float32;
  }
  std::string explain() const override { return cpu::explain(problem_, this_machine(), plan_); }

  using PlannedCall::run;
  Status run(const Arguments& arguments, const Execution& execution) const override {
    if (Status status = check_no_stream(execution); !status.ok()) return status;
    OwnedWorkspace owned;
    const Result<std::byte*> workspace = workspace_for(plan_.workspace_bytes, execution, owned);
    if (!workspace.ok()) return workspace.status();
    run_pass({problem_, plan_, execution.parallel_for, *workspace}, arguments);
    return {};
  }

 private:
  static void run_pass(const Call& call, const ForwardArguments& arguments) { forward(call, arguments); }
  static void run_pass(const Call& call, const BackwardArguments& arguments) { backward(call, arguments); }
  static void run_pass(const Call& call, const JvpArguments& arguments) { jvp(call, arguments); }

  AttentionProblem problem_;
  CallPlan plan_;
};

template <class Arguments>
engine::PlannedCallResult plan_with_texts(const AttentionProblem& problem, int threads) {
  const AttentionProblem planned = with_implied_options(with_built_in_options(problem));
  return engine::with_captured_options(problem, engine::make_planned<CpuCall<Arguments>>(planned, threads));
}

class CpuEngine final : public engine::Implementation {
 public:
  Engine id() const override { return Engine::cpu; }
  DeviceType device_type() const override { return DeviceType::cpu; }
  Status serves(const Device&) const override { return {}; }

  engine::PlannedCallResult plan_forward(const AttentionProblem& problem, const Execution& execution) const override {
    return plan_with_texts<ForwardArguments>(problem, execution.threads);
  }
  engine::PlannedCallResult plan_backward(const AttentionProblem& problem, const Execution& execution) const override {
    return plan_with_texts<BackwardArguments>(problem, execution.threads);
  }
  engine::PlannedCallResult plan_jvp(const AttentionProblem& problem, const Execution& execution) const override {
    return engine::make_planned<CpuCall<JvpArguments>>(problem, execution.threads);
  }

  Status quantize(const QuantizeArguments& arguments, const QuantizeOptions& options,
                  const Execution& execution) const override {
    cpu::quantize(arguments, options, execution);
    return {};
  }

  Status merge(const MergeArguments& arguments, const Execution& execution) const override {
    if (Status status = check_no_stream(execution); !status.ok()) return status;
    cpu::merge(arguments, execution);
    return {};
  }

  Status merge_backward(const MergeBackwardArguments& arguments, const Execution& execution) const override {
    if (Status status = check_no_stream(execution); !status.ok()) return status;
    cpu::merge_backward(arguments, execution);
    return {};
  }

  Status append(const AppendArguments& arguments, const Execution& execution) const override {
    if (Status status = check_no_stream(execution); !status.ok()) return status;
    cpu::append(arguments, execution);
    return {};
  }

  Status encode_rows(const ConstTensorView& rows, const TensorView& cache, const RowFormat& format,
                     const Execution& execution) const override {
    if (Status status = check_no_stream(execution); !status.ok()) return status;
    cpu::encode_rows(rows, cache, format, execution);
    return {};
  }

  Status decode_rows(const ConstTensorView& cache, const TensorView& rows, const RowFormat& format,
                     const Execution& execution) const override {
    if (Status status = check_no_stream(execution); !status.ok()) return status;
    cpu::decode_rows(cache, rows, format, execution);
    return {};
  }

  Status append_rows(const AppendRowsArguments& arguments, const RowFormat& format,
                     const Execution& execution) const override {
    if (Status status = check_no_stream(execution); !status.ok()) return status;
    cpu::append_rows(arguments, format, execution);
    return {};
  }

  Status sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options,
                        const Execution& execution) const override {
    if (Status status = check_no_stream(execution); !status.ok()) return status;
    cpu::sparse_forward(arguments, options, execution);
    return {};
  }

  Result<std::string> explain_sparse_forward(const SparseForwardArguments& arguments, const SparseOptions&,
                                             const Execution& execution) const override {
    if (Status status = check_no_stream(execution); !status.ok()) return status;
    return cpu::explain_sparse_forward(arguments);
  }

  Status sparse_backward(const SparseBackwardArguments& arguments, const SparseOptions& options,
                         const Execution& execution) const override {
    if (Status status = check_no_stream(execution); !status.ok()) return status;
    cpu::sparse_backward(arguments, options, execution);
    return {};
  }
};

}  // namespace

const engine::Implementation& engine() {
  static const CpuEngine engine;
  return engine;
}

}  // namespace strobe::cpu
