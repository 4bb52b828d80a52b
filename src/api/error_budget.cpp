// SPDX-License-Identifier: Apache-2.0
#include "strobe/error_budget.h"

#include <array>
#include <cmath>

#include "api/eight_bit.h"
#include "api/error_model.h"
#include "api/guarded.h"
#include "api/problem.h"
#include "api/tensor_checks.h"
#include "call/checked.h"
#include "call/eight_bit.h"

namespace strobe {
namespace {

using api::Candidate;

// What is added to an estimate before it is compared: how far below what is measured it was found to be, and sampling.
constexpr double kMargin = 1.2;

/// From the cheapest on: e4m3 takes fewer instructions a score, and V's scales by blocks are one for 128 keys. A
/// rotated V must be rotated back as O, and e4m3, whose errors are relative, has nothing from it.
std::array<Candidate, 3> candidates(std::uint64_t seed) {
  QuantizeOptions e4m3{.element = DType::float8_e4m3,
                       .q_scales = ScaleUnit::block,
                       .k_scales = ScaleUnit::block,
                       .v_scales = ScaleUnit::block,
                       .rotate_v = false,
                       .seed = seed};
  QuantizeOptions blocks{.v_scales = ScaleUnit::block, .seed = seed};
  QuantizeOptions rows{.seed = seed};
  return {{{e4m3, {}}, {blocks, {}}, {rows, {}}}};
}

bool allowed(QuantizationMode mode, const QuantizeOptions& options) {
  switch (mode) {
    case QuantizationMode::automatic: return true;
    case QuantizationMode::fast: return options.element == DType::float8_e4m3;
    case QuantizationMode::accurate: return options.element == DType::int8 && options.v_scales == ScaleUnit::row;
  }
  return false;
}

double estimate_of(const Candidate& candidate) { return kMargin * std::sqrt(candidate.errors.mean_square); }

bool keeps_to(const Candidate& candidate, const ErrorBudget& budget) {
  return (budget.max_rmse == 0.0 || estimate_of(candidate) <= budget.max_rmse) &&
         (budget.max_error == 0.0 || candidate.errors.bound <= budget.max_error);
}

std::string describe(const QuantizeOptions& options) {
  return options.element == DType::float8_e4m3 ? "float8_e4m3, scales by blocks of 128 rows"
         : options.v_scales == ScaleUnit::row  ? "int8, scales by rows of Q and V and groups of 32 rows of K"
                                               : "int8, scales by rows of Q, groups of 32 of K and blocks of 128 of V";
}

std::string describe_errors(const Candidate& candidate) {
  std::string text = fmt::format("{:.2e}", estimate_of(candidate));
  if (std::isfinite(candidate.errors.bound))
    text += fmt::format(", no element more than {:.2e}", candidate.errors.bound);
  return text;
}

std::string explain(const Candidate& chosen, std::span<const Candidate> all, const ErrorBudget& budget, bool measured) {
  std::string text = fmt::format("operands      {}\n", describe(chosen.options));
  text += fmt::format("rotation      {}; K centred\n", chosen.options.rotate_v ? "Q, K and V" : "Q and K");
  text += chosen.options.element == DType::int8
              ? fmt::format("sums          exact over {} keys, then float32\n", api::keys_per_sum(DType::int8))
              : fmt::format("sums          of the hardware over {} keys at most, then float32\n",
                            api::keys_per_sum(DType::float8_e4m3));
  text += fmt::format("error of O    {}: an estimate {}, times {}\n", describe_errors(chosen),
                      measured ? "from the tensors given" : "for elements that are independent and N(0, 1)", kMargin);
  if (budget.max_rmse > 0.0) text += fmt::format("max_rmse      {:.2e}\n", budget.max_rmse);
  if (budget.max_error > 0.0) text += fmt::format("max_error     {:.2e}\n", budget.max_error);
  for (const Candidate& other : all) {
    if (&other == &chosen) break;
    if (allowed(budget.mode, other.options)) {
      text += fmt::format("not chosen    {}: {}\n", describe(other.options), describe_errors(other));
    }
  }
  return text;
}

Status check_budget(const ErrorBudget& budget) {
  for (const auto& [name, bound] : {std::pair{"max_rmse", budget.max_rmse}, std::pair{"max_error", budget.max_error}}) {
    if (!std::isfinite(bound) || bound < 0.0)
      return api::invalid("{} is {}: it must be positive, or 0 for none", name, bound);
  }
  return {};
}

/// The forward on q, k and v as they are, for what its checks and defaults say.
Result<AttentionProblem> problem_of(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                                    const AttentionOptions& options) {
  if (q.rank != 4 || v.rank != 4) return api::invalid("q and v must be [batch, seqlen, heads, head_dim]");
  if (is_eight_bit(q.dtype)) return api::invalid("q is {}: it must be float32, float16 or bfloat16", name_of(q.dtype));
  for (const api::NamedTensor& tensor :
       {api::NamedTensor{"q", q}, api::NamedTensor{"k", k}, api::NamedTensor{"v", v}}) {
    if (Status status = api::check_layout(tensor, 4, "[batch, seqlen, heads, head_dim]"); !status.ok()) return status;
    if (tensor.view.data == nullptr) continue;  // shapes may be all there is
    if (Status status = api::check_data(tensor); !status.ok()) return status;
  }
  TensorView o;
  o.dtype = q.dtype;
  o.device = q.device;
  o.rank = 4;
  o.shape = {q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
  const Checked row = Checked(q.shape[2]) * v.shape[3];
  o.strides = {(row * q.shape[1]).value(), row.value(), v.shape[3], 1};
  return api::make_problem(ForwardArguments{.q = q, .k = k, .v = v, .o = o}, options);
}

/// The call without batch entries and heads that are the memory of others again, by strides of 0: to measure it takes
/// no longer than what there is takes to be read, whatever the extents are.
AttentionProblem without_repeats(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                                 AttentionProblem problem) {
  constexpr std::size_t kBatchAxis = 0;
  constexpr std::size_t kHeadAxis = 2;
  const auto repeat = [&](std::size_t axis) {
    return q.strides[axis] == 0 && k.strides[axis] == 0 && v.strides[axis] == 0;
  };
  if (repeat(kBatchAxis)) problem.batch = 1;
  if (q.strides[kHeadAxis] == 0) problem.heads_q = problem.heads_kv;
  if (repeat(kHeadAxis)) problem.heads_q = problem.heads_kv = 1;
  return problem;
}

/// Whether its memory can be read, and reading its rows takes no longer than what it holds is worth.
bool can_read(const ConstTensorView& tensor) {
  constexpr std::int64_t kMostRepeatedRows = 1 << 20;
  const bool endless = tensor.strides[1] == 0 && tensor.shape[1] > kMostRepeatedRows;
  return tensor.data != nullptr && tensor.device.type == DeviceType::cpu && !endless;
}

Result<QuantizationPlan> plan(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                              const ErrorBudget& budget, const AttentionOptions& options, std::uint64_t seed) {
  if (Status status = check_budget(budget); !status.ok()) return status;
  const Result<AttentionProblem> problem = problem_of(q, k, v, options);
  if (!problem.ok()) return problem.status();
  const bool empty = api::empty(q) || api::empty(k);
  const bool measured = !empty && can_read(q) && can_read(k) && can_read(v);
  std::array<Candidate, 3> all = candidates(seed);
  if (measured) {
    api::measure(q, k, v, without_repeats(q, k, v, *problem), seed, all);
  } else if (!empty) {
    api::assume_normal(*problem, all);
  }
  const Candidate* nearest = nullptr;
  for (const Candidate& one : all) {
    if (!allowed(budget.mode, one.options)) continue;
    if (keeps_to(one, budget)) {
      return QuantizationPlan{.options = one.options,
                              .rmse = estimate_of(one),
                              .error_bound = one.errors.bound,
                              .measured = measured,
                              .keys_per_sum = api::keys_per_sum(one.options.element),
                              .explanation = explain(one, all, budget, measured)};
    }
    if (nearest == nullptr || one.errors.mean_square < nearest->errors.mean_square) nearest = &one;
  }
  return api::unsupported(
      "no 8-bit operands keep to max_rmse {:.2e} and max_error {:.2e} (0: none): {} come to {}; use 16 bits",
      budget.max_rmse, budget.max_error, describe(nearest->options), describe_errors(*nearest));
}

}  // namespace

Result<QuantizationPlan> plan_quantization(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                                           const ErrorBudget& budget, const AttentionOptions& options,
                                           std::uint64_t seed) {
  return api::guarded([&] { return plan(q, k, v, budget, options, seed); });
}

}  // namespace strobe
