// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "api/c_errors.h"
#include "api/c_structs.h"
#include "strobe/block_mask.h"
#include "strobe/cache.h"
#include "strobe/dropout.h"
#include "strobe/error_budget.h"
#include "strobe/jvp.h"
#include "strobe/merge.h"
#include "strobe/plan.h"
#include "strobe/quantize.h"
#include "strobe/strobe.h"

struct strobe_plan {
  strobe::Plan plan;
  std::string explanation;
};

namespace strobe::api {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

namespace {

static_assert(STROBE_MAX_RANK == kMaxRank);
static_assert(STROBE_DEVICE_ERROR == static_cast<int>(StatusCode::device_error));
static_assert(STROBE_INT8 == static_cast<int>(DType::int8));
static_assert(STROBE_CAUSAL_TOP_LEFT == static_cast<int>(CausalMask::top_left));
static_assert(STROBE_QUANTIZATION_ACCURATE == static_cast<int>(QuantizationMode::accurate));
static_assert(STROBE_SCALE_ROW == static_cast<int>(ScaleUnit::row));
static_assert(STROBE_ENGINE_GPU == static_cast<int>(Engine::gpu));

/// Calls use(arguments, execution) on the structs as read.
template <class CArguments, class Use>
Status with_call(const CArguments* c_arguments, const strobe_execution* c_execution, const Use& use) {
  const auto arguments = read_arguments(c_arguments);
  if (!arguments.ok()) return arguments.status();
  Result<ReadExecution> read = read_execution(c_execution);
  if (!read.ok()) return read.status();
  if (read->parallel_for) read->execution.parallel_for = &read->parallel_for;
  if (read->allocate_workspace) read->execution.allocate_workspace = &read->allocate_workspace;
  if constexpr (requires { arguments->arguments.q; }) {
    return use(arguments->arguments, read->execution);
  } else {
    return use(*arguments, read->execution);
  }
}

Status run(const ForwardArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return forward(arguments, options, execution);
}
Status run(const BackwardArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return backward(arguments, options, execution);
}

Status run(const JvpArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return jvp(arguments, options, execution);
}

template <class CArguments>
strobe_code call(const CArguments* arguments, const strobe_options* c_options, const strobe_execution* execution) {
  return with_code([&]() -> Status {
    const Result<AttentionOptions> options = read_options(c_options);
    if (!options.ok()) return options.status();
    return with_call(arguments, execution, [&](const auto& a, const Execution& e) { return run(a, *options, e); });
  });
}

template <class CArguments>
strobe_code plan_call(const CArguments* arguments, const strobe_options* c_options, const strobe_execution* execution,
                      strobe_plan** to) {
  return with_code([&]() -> Status {
    if (to == nullptr) return invalid("plan is null: give the address of a strobe_plan pointer");
    const Result<AttentionOptions> options = read_options(c_options);
    if (!options.ok()) return options.status();
    return with_call(arguments, execution, [&](const auto& a, const Execution& e) -> Status {
      const Result<Plan> plan = make_plan(a, *options, e);
      if (!plan.ok()) return plan.status();
      *to = new strobe_plan{*plan, plan->explain()};
      return {};
    });
  });
}

template <class CArguments>
strobe_code run_plan(const strobe_plan* plan, const CArguments* arguments, const strobe_execution* execution) {
  return with_code([&]() -> Status {
    if (plan == nullptr)
      return invalid("plan is null: give a plan that strobe_plan_forward or strobe_plan_backward made");
    return with_call(arguments, execution, [&](const auto& a, const Execution& e) { return plan->plan.run(a, e); });
  });
}

/// Calls build(mask) on the tensor as read.
template <class Build>
strobe_code build_mask(const strobe_tensor* c_mask, const Build& build) {
  return with_code([&]() -> Status {
    const Result<TensorView> mask = read_tensor(c_mask, "mask");
    return mask.ok() ? build(*mask) : mask.status();
  });
}

}  // namespace
}  // namespace strobe::api

extern "C" {

const char* strobe_version(void) { return STROBE_LIBRARY_VERSION; }

const char* strobe_last_error(void) { return strobe::api::last_error().c_str(); }

strobe_code strobe_forward(const strobe_forward_arguments* arguments, const strobe_options* options,
                           const strobe_execution* execution) {
  return strobe::api::call(arguments, options, execution);
}

strobe_code strobe_backward(const strobe_backward_arguments* arguments, const strobe_options* options,
                            const strobe_execution* execution) {
  return strobe::api::call(arguments, options, execution);
}

strobe_code strobe_jvp(const strobe_jvp_arguments* arguments, const strobe_options* options,
                       const strobe_execution* execution) {
  return strobe::api::call(arguments, options, execution);
}

strobe_code strobe_quantize(const strobe_quantize_arguments* arguments, const strobe_quantize_options* c_options,
                            const strobe_execution* execution) {
  using namespace strobe;
  return api::with_code([&]() -> Status {
    const Result<QuantizeOptions> options = api::read_options(c_options);
    if (!options.ok()) return options.status();
    return api::with_call(arguments, execution,
                          [&](const QuantizeArguments& a, const Execution& e) { return quantize(a, *options, e); });
  });
}

strobe_code strobe_merge(const strobe_merge_arguments* arguments, const strobe_execution* execution) {
  using namespace strobe;
  return api::with_code([&]() -> Status {
    return api::with_call(arguments, execution, [](const api::ReadMerge& merged, const Execution& e) {
      return merge(merged.arguments(), e);
    });
  });
}

strobe_code strobe_merge_backward(const strobe_merge_backward_arguments* arguments, const strobe_execution* execution) {
  using namespace strobe;
  return api::with_code([&]() -> Status {
    return api::with_call(arguments, execution, [](const api::ReadMergeBackward& merged, const Execution& e) {
      return merge_backward(merged.arguments(), e);
    });
  });
}

strobe_code strobe_append(const strobe_append_arguments* arguments, const strobe_execution* execution) {
  using namespace strobe;
  return api::with_code([&]() -> Status {
    return api::with_call(arguments, execution,
                          [](const AppendArguments& a, const Execution& e) { return append(a, e); });
  });
}

strobe_code strobe_plan_quantization(const strobe_tensor* q, const strobe_tensor* k, const strobe_tensor* v,
                                     const strobe_error_budget* c_budget, const strobe_options* c_options,
                                     uint64_t seed, strobe_quantization_plan* to) {
  using namespace strobe;
  return api::with_code([&]() -> Status {
    thread_local std::string explanation;
    if (Status status = api::check_plan(to); !status.ok()) return status;
    const Result<TensorView> query = api::read_tensor(q, "q");
    const Result<TensorView> key = api::read_tensor(k, "k");
    const Result<TensorView> value = api::read_tensor(v, "v");
    for (const Result<TensorView>* const tensor : {&query, &key, &value}) {
      if (!tensor->ok()) return tensor->status();
    }
    const Result<ErrorBudget> budget = api::read_budget(c_budget);
    if (!budget.ok()) return budget.status();
    const Result<AttentionOptions> options = api::read_options(c_options);
    if (!options.ok()) return options.status();
    Result<QuantizationPlan> plan = plan_quantization(*query, *key, *value, *budget, *options, seed);
    if (!plan.ok()) return plan.status();
    explanation = std::move(plan->explanation);
    api::write_plan(*plan, explanation.c_str(), to);
    return {};
  });
}

strobe_code strobe_dropout_mask(float dropout, const strobe_random_state* random, const strobe_tensor* mask) {
  return strobe::api::build_mask(mask, [&](const strobe::TensorView& view) {
    if (random == nullptr) return strobe::api::invalid("random is null: give a strobe_random_state");
    return strobe::dropout_mask(dropout, {random->seed, random->offset, nullptr}, view);
  });
}

strobe_code strobe_local_block_mask(const strobe_tensor* mask, int64_t left, int64_t right) {
  return strobe::api::build_mask(
      mask, [&](const strobe::TensorView& view) { return strobe::local_block_mask(view, left, right); });
}

strobe_code strobe_strided_block_mask(const strobe_tensor* mask, int64_t stride) {
  return strobe::api::build_mask(
      mask, [&](const strobe::TensorView& view) { return strobe::strided_block_mask(view, stride); });
}

strobe_code strobe_butterfly_block_mask(const strobe_tensor* mask) {
  return strobe::api::build_mask(mask,
                                 [](const strobe::TensorView& view) { return strobe::butterfly_block_mask(view); });
}

strobe_code strobe_plan_forward(const strobe_forward_arguments* arguments, const strobe_options* options,
                                const strobe_execution* execution, strobe_plan** plan) {
  return strobe::api::plan_call(arguments, options, execution, plan);
}

strobe_code strobe_plan_backward(const strobe_backward_arguments* arguments, const strobe_options* options,
                                 const strobe_execution* execution, strobe_plan** plan) {
  return strobe::api::plan_call(arguments, options, execution, plan);
}

size_t strobe_plan_workspace_size(const strobe_plan* plan) { return plan == nullptr ? 0 : plan->plan.workspace_size(); }

const char* strobe_plan_explain(const strobe_plan* plan) { return plan == nullptr ? "" : plan->explanation.c_str(); }

strobe_code strobe_plan_run_forward(const strobe_plan* plan, const strobe_forward_arguments* arguments,
                                    const strobe_execution* execution) {
  return strobe::api::run_plan(plan, arguments, execution);
}

strobe_code strobe_plan_run_backward(const strobe_plan* plan, const strobe_backward_arguments* arguments,
                                     const strobe_execution* execution) {
  return strobe::api::run_plan(plan, arguments, execution);
}

strobe_code strobe_score_function_parse(const char* score, const char* mask, const strobe_capture_type* captures,
                                        int32_t capture_count, strobe_score_function** to) {
  using namespace strobe;
  return api::with_code([&]() -> Status {
    if (to == nullptr) return api::invalid("function is null: give the address of a strobe_score_function pointer");
    const Result<ScoreFunction> function = api::read_function(score, mask, captures, capture_count);
    if (!function.ok()) return function.status();
    *to = new strobe_score_function{*function, function->explain()};
    return {};
  });
}

const char* strobe_score_function_explain(const strobe_score_function* function) {
  return function == nullptr ? "" : function->explanation.c_str();
}

void strobe_score_function_free(strobe_score_function* function) { delete function; }

void strobe_plan_destroy(strobe_plan* plan) { delete plan; }

}  // extern "C"
