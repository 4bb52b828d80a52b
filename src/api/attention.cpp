#include "strobe/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "api/problem.h"
#include "api/tensor_checks.h"
#include "api/variant_plan.h"
#include "cpu/engine.h"
#include "cpu/plan.h"
#include "hopper/forward.h"
#include "strobe/plan.h"

namespace strobe {

/// What a plan remembers: the problem and the engine's decisions. Strides are the caller's own in every run.
struct Plan::State {
  AttentionProblem problem;
  AttentionOptions options;
  cpu::CallPlan cpu;
  std::shared_ptr<const hopper::Forward> hopper;  // null: the CPU engine runs the plan
};

namespace {

constexpr std::size_t kWorkspaceAlignment = 64;
constexpr int kMaxThreads = 4096;

struct AlignedFree {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t(kWorkspaceAlignment)); }
};
using OwnedWorkspace = std::unique_ptr<std::byte, AlignedFree>;

/// The engine for the tensors' device, or why there is none.
Result<Engine> choose_engine(const AttentionProblem& problem, Engine wanted) {
  if (wanted == Engine::ampere) {
    return api::unsupported("the ampere engine is not in this build: engine must be automatic, cpu or hopper");
  }
  const bool on_cpu = problem.device.type == DeviceType::cpu;
  if (wanted != Engine::automatic && on_cpu != (wanted == Engine::cpu)) {
    return api::unsupported("q is on {}: the {} engine takes tensors on {}", api::device_text(problem.device),
                            on_cpu ? "hopper" : "cpu", on_cpu ? "a CUDA device" : "the cpu");
  }
  if (on_cpu) return Engine::cpu;
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(problem.device.index);
  if (!device.ok()) return device.status();
  if (!hopper::serves(**device)) {
    return api::unsupported("{} has compute capability {}.{}: this build's GPU engine is for 9.0", (*device)->name,
                            (*device)->compute_major, (*device)->compute_minor);
  }
  return Engine::hopper;
}

Status check_threads(int threads) {
  if (threads >= 0 && threads <= kMaxThreads) return {};
  return api::invalid("threads is {}: it must be from 1 to {}, or 0 for one per hardware thread", threads, kMaxThreads);
}

Result<std::shared_ptr<const hopper::Forward>> make_hopper(const AttentionProblem& problem) {
  if (problem.pass == Pass::forward) return hopper::Forward::make(problem);
  return api::unsupported("the hopper engine has no backward pass yet: backward needs tensors on the cpu");
}

template <class Arguments>
Result<Plan> plan_call(const Arguments& arguments, const AttentionOptions& options, const Execution& execution) {
  const Result<AttentionProblem> problem = api::make_problem(arguments, options);
  if (!problem.ok()) return problem.status();
  const Result<Engine> engine = choose_engine(*problem, execution.engine);
  if (!engine.ok()) return engine.status();
  if (Status status = check_threads(execution.threads); !status.ok()) return status;
  auto state = std::make_shared<Plan::State>();
  state->problem = *problem;
  state->options = options;
  if (*engine == Engine::hopper) {
    auto forward = make_hopper(*problem);
    if (!forward.ok()) return forward.status();
    state->hopper = std::move(*forward);
    return Plan(std::move(state));
  }
  state->cpu = cpu::make_call_plan(*problem, cpu::this_machine(), cpu::worker_count(execution.threads));
  return Plan(std::move(state));
}

/// What a plan on the Hopper engine remembers, before its kernel is chosen.
Result<Plan::State> plan_on_hopper(const ForwardArguments& arguments, const AttentionOptions& options) {
  const Result<AttentionProblem> problem = api::make_problem(arguments, options);
  if (!problem.ok()) return problem.status();
  const Result<Engine> engine = choose_engine(*problem, Engine::hopper);
  if (!engine.ok()) return engine.status();
  return Plan::State{.problem = *problem, .options = options, .cpu = {}, .hopper = nullptr};
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
  if (execution.workspace_bytes < bytes) {
    return api::invalid("workspace has {} bytes: this plan needs {}", execution.workspace_bytes, bytes);
  }
  if (reinterpret_cast<std::uintptr_t>(execution.workspace) % kWorkspaceAlignment != 0) {
    return api::invalid("workspace must be aligned to {} bytes", kWorkspaceAlignment);
  }
  return static_cast<std::byte*>(execution.workspace);
}

void dispatch(const cpu::Call& call, const ForwardArguments& arguments) { cpu::forward(call, arguments); }
void dispatch(const cpu::Call& call, const BackwardArguments& arguments) { cpu::backward(call, arguments); }

Status run_hopper(const Plan::State& state, const ForwardArguments& arguments, const Execution& execution) {
  return state.hopper->run(arguments, static_cast<runtime::CUstream>(execution.stream));
}
/// No plan of a backward holds a Hopper forward.
Status run_hopper(const Plan::State&, const BackwardArguments&, const Execution&) { return {}; }

template <class Arguments>
Status run_plan(const Plan::State& state, const Arguments& arguments, const Execution& execution) {
  const Result<AttentionProblem> problem = api::make_problem(arguments, state.options);
  if (!problem.ok()) return problem.status();
  if (*problem != state.problem) {
    return api::invalid(
        "the call's pass, shapes or dtypes are not those that the plan was made for: make a plan for them");
  }
  if (state.hopper != nullptr) {
    if (Status status = api::check_memory(*problem, arguments); !status.ok()) return status;
    return run_hopper(state, arguments, execution);
  }
  if (execution.stream != nullptr) return api::invalid("stream is given for tensors on the cpu: it must be null");
  if (Status status = api::check_memory(*problem, arguments); !status.ok()) return status;
  OwnedWorkspace owned;
  const Result<std::byte*> workspace = workspace_for(state.cpu.workspace_bytes, execution, owned);
  if (!workspace.ok()) return workspace.status();
  dispatch({*problem, state.cpu, execution.parallel_for, *workspace}, arguments);
  return {};
}

template <class Arguments>
Status plan_and_run(const Arguments& arguments, const AttentionOptions& options, const Execution& execution) {
  const Result<Plan> plan = plan_call(arguments, options, execution);
  return plan.ok() ? plan->run(arguments, execution) : plan.status();
}

/// Small host allocations are the only ones that throw here.
template <class Function>
auto without_bad_alloc(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, api::kMemoryRanOut);
  }
}

}  // namespace

std::size_t Plan::workspace_size() const { return state_->cpu.workspace_bytes; }

Engine Plan::engine() const { return state_->hopper != nullptr ? Engine::hopper : Engine::cpu; }

DType Plan::probability_dtype() const {
  if (state_->hopper != nullptr) return state_->problem.dtype;
  return state_->cpu.amx ? DType::bfloat16 : DType::float32;
}

std::string Plan::explain() const {
  if (state_->hopper != nullptr) return state_->hopper->explain();
  return cpu::explain(state_->problem, cpu::this_machine(), state_->cpu);
}

Status Plan::run(const ForwardArguments& arguments, const Execution& execution) const {
  return without_bad_alloc([&] { return run_plan(*state_, arguments, execution); });
}

Status Plan::run(const BackwardArguments& arguments, const Execution& execution) const {
  return without_bad_alloc([&] { return run_plan(*state_, arguments, execution); });
}

Result<Plan> make_plan(const ForwardArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return without_bad_alloc([&] { return plan_call(arguments, options, execution); });
}

Result<Plan> make_plan(const BackwardArguments& arguments, const AttentionOptions& options,
                       const Execution& execution) {
  return without_bad_alloc([&] { return plan_call(arguments, options, execution); });
}

Result<KernelConfig> api::planned_variant(const ForwardArguments& arguments, const AttentionOptions& options) {
  return without_bad_alloc([&]() -> Result<KernelConfig> {
    const Result<Plan::State> state = plan_on_hopper(arguments, options);
    if (!state.ok()) return state.status();
    const auto forward = make_hopper(state->problem);
    if (!forward.ok()) return forward.status();
    return (*forward)->plan().config;
  });
}

Result<Plan> api::make_variant_plan(const ForwardArguments& arguments, const AttentionOptions& options,
                                    const KernelConfig& config) {
  return without_bad_alloc([&]() -> Result<Plan> {
    Result<Plan::State> state = plan_on_hopper(arguments, options);
    if (!state.ok()) return state.status();
    auto forward = hopper::Forward::make(state->problem, config);
    if (!forward.ok()) return forward.status();
    state->hopper = std::move(*forward);
    return Plan(std::make_shared<const Plan::State>(std::move(*state)));
  });
}

Status forward(const ForwardArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return without_bad_alloc([&] { return plan_and_run(arguments, options, execution); });
}

Status backward(const BackwardArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return without_bad_alloc([&] { return plan_and_run(arguments, options, execution); });
}

}  // namespace strobe
