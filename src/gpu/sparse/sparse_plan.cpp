// SPDX-License-Identifier: Apache-2.0
#include "gpu/sparse/sparse_plan.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "call/checked.h"
#include "call/row_format.h"
#include "gpu/call/override.h"
#include "gpu/choose_family.h"
#include "gpu/plan/append_part.h"
#include "gpu/plan/supported.h"
#include "gpu/sparse/listed_places.h"

namespace strobe::gpu {
namespace {

std::int64_t extent(const ConstTensorView& tensor, int from_last) {
  return tensor.shape[static_cast<std::size_t>(tensor.rank - from_last)];
}

std::int64_t stride(const ConstTensorView& tensor, int from_last) {
  return tensor.strides[static_cast<std::size_t>(tensor.rank - from_last)];
}

/// Whether the heads of one row after another, and with them the lists of one query after another, are equally far
/// apart.
bool heads_in_a_row(const ConstTensorView& tensor, std::int64_t lists) {
  return lists == 1 || stride(tensor, 3) == extent(tensor, 2) * stride(tensor, 2) || extent(tensor, 3) <= 1;
}

AttentionProblem problem_of(const SparseCall& call, std::size_t source, std::int64_t queries,
                            const SparseOptions& options) {
  const SparseForwardArguments& a = call.arguments;
  const SourcePlaces& places = call.places[source];
  AttentionProblem problem;
  problem.dtype = a.q.dtype;
  problem.device = a.q.device;
  problem.batch = (Checked(queries) * call.lists).value();
  problem.heads_q = extent(a.q, 2) / call.lists;
  problem.heads_kv = heads_of_list(call, source);
  problem.head_dim = extent(a.q, 1);
  problem.head_dim_v = extent(a.o, 1);
  problem.seqlen_q = 1;
  problem.total_q = problem.batch;
  problem.page_size = places.converted() ? 0 : 1;
  problem.seqlen_k = list_width(a.sources[source]);
  problem.total_k = (Checked(problem.batch) * problem.seqlen_k).value();
  problem.has_seqused_k = true;
  problem.scale = options.scale.value_or(1.0F / std::sqrt(static_cast<float>(problem.head_dim)));
  problem.softcap = options.softcap;
  problem.wants_lse = call.merges;
  return problem;
}

/// A plan that this thread made before.
struct Kept {
  std::vector<AttentionProblem> problems;
  std::vector<bool> v_apart;       // of each source whose rows are converted
  std::vector<RowFormat> formats;  // of each source whose rows are converted in place
  bool merges;
  std::string kernels;
  std::shared_ptr<const SparsePlan> plan;
};

std::vector<Kept>& kept_plans() {
  thread_local std::vector<Kept> plans;  // the one used last is in front
  return plans;
}

/// Of a forward that converts rows where they lie.
engine::PlannedCallResult plan_rows(const AttentionProblem& problem, const RowFormat& format,
                                    const Execution& execution, const runtime::CudaDevice& device) {
  std::optional<engine::PlannedCallResult> call;
  const auto plan_by_one = [&](const Family& family, const std::string& reason) {
    call = plan_by(family, problem, device, reason,
                   [&](const Request& request) { return family.plan_rows(request, format); });
    return call->ok() ? Status() : call->status();
  };
  const Status status = ask_families(problem, device, engine::wanted_kernels(execution), plan_by_one);
  if (!status.ok()) return status;
  return std::move(*call);
}

Result<PlannedSource> planned_source(const AttentionProblem& problem, const SourcePlaces& places,
                                     const Execution& execution, const runtime::CudaDevice& device) {
  PlannedSource source{.problem = problem, .forward = nullptr};
  const AttentionProblem planned = planned_problem(problem);
  engine::PlannedCallResult forward =
      places.in_place ? plan_rows(planned, places.k_format, execution, device)
                      : plan_by_family(planned, device, engine::wanted_kernels(execution), &Family::plan_forward);
  if (!forward.ok()) return forward.status();
  source.forward = std::move(*forward);
  return source;
}

std::vector<bool> converted_apart(const SparseCall& call) {
  std::vector<bool> apart;
  for (const SourcePlaces& places : call.places) apart.push_back(places.v_apart());
  return apart;
}

std::vector<RowFormat> formats_in_place(const SparseCall& call) {
  std::vector<RowFormat> formats;
  for (const SourcePlaces& places : call.places) formats.push_back(places.in_place ? places.k_format : RowFormat{});
  return formats;
}

/// Why no kernel converts a source's rows where they lie, whatever it is; null if some may.
const char* rows_reason(const SparseCall& call, std::size_t index) {
  const SourcePlaces& places = call.places[index];
  if (call.lists > 1) return "key heads have lists of their own";
  if (places.v_apart()) return "v is not part of k";
  // Kernels count from a row to its tail in 31 bits.
  if (RowDistances(call.arguments.sources[index].k, places.k_format).tails > kMaxInt) {
    return "a page's tails lie 2 GiB or more behind its rows";
  }
  return nullptr;
}

/// Has the forward convert a source's rows, where it can.
void choose_in_place(SparseCall& call, std::size_t index, const SparseOptions& options, const Execution& execution,
                     const runtime::CudaDevice& device) {
  SourcePlaces& places = call.places[index];
  if (!places.in_format()) return;
  if (const char* const reason = rows_reason(call, index); reason != nullptr) {
    places.not_in_place = reason;
    return;
  }
  places.in_place = true;
  const ConstTensorView& q = call.arguments.q;
  const std::int64_t queries = (Checked(q.rank == 3 ? 1 : q.shape[0]) * extent(q, 3)).value();
  const AttentionProblem problem = planned_problem(problem_of(call, index, queries, options));
  const DeviceShape shape = overridden(shape_of(device));
  const Status status = ask_families(
      problem, device, engine::wanted_kernels(execution),
      [&](const Family& family, const std::string&) { return family.takes_rows(problem, shape, places.k_format); });
  places.in_place = status.ok();
  if (!status.ok()) places.not_in_place = status.message();
}

/// What the converted rows of some lists of a source take, of so many columns.
Checked converted_bytes(const SparseCall& call, std::size_t source, Checked lists, std::int64_t columns) {
  const auto element = static_cast<std::int64_t>(size_of(call.arguments.q.dtype));
  return lists * list_width(call.arguments.sources[source]) * heads_of_list(call, source) * columns * element;
}

/// Offsets of all that the launches of a call share.
SparseLayout layout_of(const SparseCall& call, std::vector<PlannedSource> sources) {
  SparseLayout layout{.sources = std::move(sources)};
  const auto take = [&](Checked bytes) { return append_part(layout.bytes, bytes); };
  const auto element = static_cast<std::int64_t>(size_of(call.arguments.o.dtype));
  std::size_t most = 0;
  for (std::size_t i = 0; i < layout.sources.size(); ++i) {
    PlannedSource& source = layout.sources[i];
    const AttentionProblem& problem = source.problem;
    if (call.places[i].converted()) {
      source.k = source.v = take(converted_bytes(call, i, problem.batch, problem.head_dim));
      if (call.places[i].v_apart()) source.v = take(converted_bytes(call, i, problem.batch, problem.head_dim_v));
    }
    source.places = take(Checked(problem.batch) * problem.seqlen_k * sizeof(int));
    source.counts = take(Checked(problem.batch) * sizeof(int));
    if (call.merges) {
      const Checked rows = Checked(problem.batch) * problem.heads_q;
      source.o = take(rows * problem.head_dim_v * element);
      source.lse = take(rows * sizeof(float));
    }
    most = std::max(most, source.forward->workspace_bytes());
  }
  if (call.arguments.sink.given()) layout.zeros = take(Checked(extent(call.arguments.o, 1)) * element);
  layout.forward = take(most);
  return layout;
}

}  // namespace

Result<SparseCall> sparse_call(const SparseForwardArguments& a, const SparseOptions& options,
                               const Execution& execution, const runtime::CudaDevice& device) {
  SparseCall call{.arguments = a, .places = {}};
  const std::int64_t heads_kv = extent(a.sources[0].k, 2);
  const auto per_head = [](const SparseSource& source) { return source.k.given() && extent(source.indices, 2) > 1; };
  const bool list_per_head = std::ranges::any_of(a.sources, per_head);
  call.lists = list_per_head ? heads_kv : 1;
  if (!heads_in_a_row(a.q, call.lists)) {
    return unsupported(
        "q has strides {} and {} of rows and heads: where each key head has lists of its own, the gpu engine takes "
        "heads "
        "that lie one behind another",
        stride(a.q, 3), stride(a.q, 2));
  }
  std::size_t sources = 0;
  for (std::size_t i = 0; i < a.sources.size(); ++i) {
    if (!a.sources[i].k.given()) continue;
    Result<SourcePlaces> places = source_places(a, i, call.lists);
    if (!places.ok()) return places.status();
    call.places.resize(i + 1);
    call.places[i] = *places;
    ++sources;
  }
  for (std::size_t i = 0; i < call.places.size(); ++i) choose_in_place(call, i, options, execution, device);
  call.merges = sources > 1 || a.lse.given() || a.sink.given() || !heads_in_a_row(a.o, call.lists);
  return call;
}

std::int64_t heads_of_list(const SparseCall& call, std::size_t source) {
  const SourcePlaces& places = call.places[source];
  return places.converted() && call.lists > 1 ? 1 : extent(places.k, 2);
}

std::int64_t bytes_of_query(const SparseCall& call) {
  const SparseForwardArguments& a = call.arguments;
  Checked bytes = 0;
  for (std::size_t i = 0; i < call.places.size(); ++i) {
    bytes = bytes + Checked(call.lists) * (Checked(list_width(a.sources[i])) + 1) * sizeof(int);
    if (call.places[i].converted()) {
      const std::int64_t columns = extent(a.q, 1) + (call.places[i].v_apart() ? extent(a.o, 1) : 0);
      bytes = bytes + converted_bytes(call, i, call.lists, columns);
    }
    if (!call.merges) continue;
    bytes = bytes + Checked(extent(a.q, 2)) *
                        (Checked(extent(a.o, 1)) * size_of(a.o.dtype) + static_cast<std::int64_t>(sizeof(float)));
  }
  return bytes.value();
}

Result<std::shared_ptr<const SparsePlan>> SparsePlan::find(const SparseCall& call, std::int64_t queries,
                                                           const SparseOptions& options, const Execution& execution,
                                                           const runtime::CudaDevice& device) {
  constexpr std::size_t kMostPlans = 16;
  std::vector<AttentionProblem> problems;
  for (std::size_t i = 0; i < call.places.size(); ++i) problems.push_back(problem_of(call, i, queries, options));
  std::vector<bool> v_apart = converted_apart(call);
  std::vector<RowFormat> formats = formats_in_place(call);
  std::vector<Kept>& plans = kept_plans();
  const auto found = std::ranges::find_if(plans, [&](const Kept& kept) {
    return kept.problems == problems && kept.v_apart == v_apart && kept.formats == formats &&
           kept.merges == call.merges && kept.kernels == execution.kernels &&
           (kept.plan->layout().zeros != 0) == call.arguments.sink.given();
  });
  if (found != plans.end()) {
    std::rotate(plans.begin(), found, found + 1);
    return plans.front().plan;
  }
  std::vector<PlannedSource> sources;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    Result<PlannedSource> source = planned_source(problems[i], call.places[i], execution, device);
    if (!source.ok()) return source.status();
    sources.push_back(std::move(*source));
  }
  auto plan = std::make_shared<const SparsePlan>(layout_of(call, std::move(sources)), device);
  if (plans.size() == kMostPlans) plans.pop_back();
  plans.insert(plans.begin(), {std::move(problems), std::move(v_apart), std::move(formats), call.merges,
                               std::string(execution.kernels), plan});
  return plan;
}

}  // namespace strobe::gpu
