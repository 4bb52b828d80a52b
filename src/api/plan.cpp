// SPDX-License-Identifier: Apache-2.0
#include "strobe/plan.h"

#include <fmt/format.h>

#include <memory>
#include <variant>

#include "api/choose_engine.h"
#include "api/device_values.h"
#include "api/guarded.h"
#include "api/plan_cache.h"
#include "api/plan_state.h"
#include "api/problem.h"
#include "api/record.h"
#include "api/tensor_checks.h"
#include "call/callers_exception.h"
#include "call/explain_texts.h"
#include "call/same_layout.h"
#include "call/workspace.h"
#include "engine/registry.h"
#include "strobe/attention.h"

namespace strobe {
namespace {

struct Planned {
  Engine engine;
  std::shared_ptr<const engine::PlannedCall> call;
};

engine::PlannedCallResult plan_pass(const engine::Implementation& engine, const AttentionProblem& problem,
                                    const Execution& execution) {
  switch (problem.pass) {
    case Pass::forward: return engine.plan_forward(problem, execution);
    case Pass::backward: return engine.plan_backward(problem, execution);
    case Pass::jvp: break;
  }
  return engine.plan_jvp(problem, execution);
}

Result<Planned> plan_problem(const AttentionProblem& problem, const Execution& execution) {
  const Result<const engine::Implementation*> chosen =
      api::choose_engine(engine::implementations(), problem.device, execution.engine);
  if (!chosen.ok()) return chosen.status();
  if (!execution.kernels.empty() && (*chosen)->id() != Engine::gpu) {
    return api::unsupported("kernels is {}: the {} engine has one family", execution.kernels, name_of((*chosen)->id()));
  }
  if (Status status = api::check_threads(execution.threads); !status.ok()) return status;
  engine::PlannedCallResult call = plan_pass(**chosen, problem, execution);
  if (!call.ok()) return call.status();
  api::record(problem);
  return Planned{(*chosen)->id(), std::move(*call)};
}

template <class Arguments>
Result<Plan> plan_call(const Arguments& arguments, const AttentionOptions& options, const Execution& execution) {
  const Result<AttentionProblem> problem = api::make_problem(arguments, options);
  if (!problem.ok()) return problem.status();
  Result<Planned> planned = plan_problem(*problem, execution);
  if (!planned.ok()) return planned.status();
  return Plan(std::make_shared<const Plan::State>(
      Plan::State{*problem, arguments, options, planned->engine, std::move(planned->call)}));
}

template <class Arguments>
Status run_call(const AttentionProblem& problem, const engine::PlannedCall& call, const Arguments& arguments,
                const Execution& execution) {
  if (Status status = api::check_memory(problem, arguments); !status.ok()) return status;
  if (Status status = api::check_device_values(problem, arguments, execution); !status.ok()) return status;
  const std::size_t bytes = call.workspace_bytes();
  if (execution.allocate_workspace == nullptr || execution.workspace != nullptr || bytes == 0) {
    return call.run(arguments, execution);
  }
  void* const workspace = call_callers(*execution.allocate_workspace, bytes);
  if (workspace == nullptr) {
    return {StatusCode::out_of_memory, fmt::format("allocate_workspace gave null for {} bytes", bytes)};
  }
  return call.run(arguments, execution_in(workspace, bytes, execution));
}

/// Whether the plan is one for such arguments.
template <class Arguments>
Status check_planned(const Plan::State& state, const Arguments& arguments) {
  // A tenth of a launch's time is saved where the strides are those of the plan, too.
  const auto* const planned = std::get_if<Arguments>(&state.arguments);
  if (planned != nullptr && has_same_layout(*planned, arguments)) return {};
  Result<AttentionProblem> problem = api::make_problem(arguments, state.options);
  if (!problem.ok()) return problem.status();
  // A plan that looks at captures one by one serves those, too, that a call could have as options.
  problem->expression.bias_fits = problem->expression.bias_fits && state.problem.expression.bias_fits;
  problem->expression.slopes_fit = problem->expression.slopes_fit && state.problem.expression.slopes_fit;
  if (*problem == state.problem) return {};
  return api::invalid("the plan was made for another pass, other shapes or dtypes: make a new plan");
}

template <class Arguments>
Status run_plan(const Plan::State& state, const Arguments& arguments, const Execution& execution) {
  if (Status status = check_planned(state, arguments); !status.ok()) return status;
  return run_call(state.problem, *state.call, arguments, execution);
}

/// One call, with the plan of an equal one before it where there is one.
template <class Arguments>
Status plan_and_run(const Arguments& arguments, const AttentionOptions& options, const Execution& execution) {
  const Result<AttentionProblem> problem = api::make_problem(arguments, options);
  if (!problem.ok()) return problem.status();
  // Shared, as a parallel_for of the caller may itself make calls, and push this plan out of the cache.
  std::shared_ptr<const engine::PlannedCall> call = api::find_plan(*problem, execution);
  if (call == nullptr) {
    Result<Planned> planned = plan_problem(*problem, execution);
    if (!planned.ok()) return planned.status();
    call = std::move(planned->call);
    api::keep_plan(*problem, execution, call);
  }
  return run_call(*problem, *call, arguments, execution);
}

}  // namespace

std::size_t Plan::workspace_size() const { return state_->call->workspace_bytes(); }

Engine Plan::engine() const { return state_->engine; }

std::string_view Plan::kernels() const { return state_->call->kernels(); }

DType Plan::probability_dtype() const { return state_->call->probability_dtype(); }

std::string Plan::explain() const { return state_->call->explain() + explain_texts(state_->problem); }

Status Plan::run(const ForwardArguments& arguments, const Execution& execution) const {
  return api::guarded([&] { return run_plan(*state_, arguments, execution); });
}

Status Plan::run(const BackwardArguments& arguments, const Execution& execution) const {
  return api::guarded([&] { return run_plan(*state_, arguments, execution); });
}

Status Plan::run(const JvpArguments& arguments, const Execution& execution) const {
  return api::guarded([&] { return run_plan(*state_, arguments, execution); });
}

Result<Plan> make_plan(const ForwardArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return api::guarded([&] { return plan_call(arguments, options, execution); });
}

Result<Plan> make_plan(const BackwardArguments& arguments, const AttentionOptions& options,
                       const Execution& execution) {
  return api::guarded([&] { return plan_call(arguments, options, execution); });
}

Result<Plan> make_plan(const JvpArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return api::guarded([&] { return plan_call(arguments, options, execution); });
}

Status forward(const ForwardArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return api::guarded([&] { return plan_and_run(arguments, options, execution); });
}

Status backward(const BackwardArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return api::guarded([&] { return plan_and_run(arguments, options, execution); });
}

Status jvp(const JvpArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return api::guarded([&] { return plan_and_run(arguments, options, execution); });
}

}  // namespace strobe
