// SPDX-License-Identifier: Apache-2.0
#include "gpu/choose_family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "call/text_options.h"
#include "gpu/call/override.h"
#include "gpu/params/score.h"
#include "gpu/plan/backward_plan.h"
#include "gpu/plan/supported.h"
#include "gpu/plan/text_blocks.h"
#include "gpu/tuned.h"

namespace strobe::gpu {
namespace {

/// A family whose kernels run on the device.
struct AskedFamily {
  const Family* family;
  std::string reason;  // why it is asked: for explain()
};

Status unknown(std::string_view wanted) {
  std::vector<std::string_view> names;
  for (const Family* const family : families()) names.push_back(family->name());
  return unsupported("kernels is {}: the gpu engine has {}", wanted, fmt::join(names, " and "));
}

/// In the order in which they are asked; the Status says why there is none.
Result<std::vector<AskedFamily>> candidates(const AttentionProblem& problem, const runtime::CudaDevice& device,
                                            std::string_view wanted) {
  std::string reason =
      fmt::format("{} a GPU of compute capability {}.{}", wanted.empty() ? "the tensors are on" : "wanted, on",
                  device.compute_major, device.compute_minor);
  std::vector<AskedFamily> chosen;
  std::vector<AskedFamily> last;
  Status status = wanted.empty() ? Status() : unknown(wanted);
  for (const Family* const family : families()) {
    if (!wanted.empty() && family->name() != wanted) continue;
    status = family->serves(device);
    if (!status.ok()) continue;
    const std::string_view later = wanted.empty() ? family->prefers_later(problem) : std::string_view();
    (later.empty() ? chosen : last).push_back({family, reason});
    if (!later.empty()) reason = later;
  }
  std::ranges::move(last, std::back_inserter(chosen));
  if (chosen.empty()) return status;
  return chosen;
}

}  // namespace

Status ask_families(const AttentionProblem& problem, const runtime::CudaDevice& device, std::string_view wanted,
                    const AskFamily& ask) {
  const Result<std::vector<AskedFamily>> asked = candidates(problem, device, wanted);
  if (!asked.ok()) return asked.status();
  Status lacking;
  for (const AskedFamily& candidate : *asked) {
    Status status = ask(*candidate.family, lacking.ok() ? candidate.reason : lacking.message());
    // Others than what kernels lack are errors of the machine.
    if (status.ok() || status.code() != StatusCode::unsupported) return status;
    if (lacking.ok()) lacking = std::move(status);
  }
  return lacking;
}

AttentionProblem planned_problem(AttentionProblem problem) {
  problem = with_built_in_options(without_idle_softcap(problem));
  problem = with_joined_columns(with_text_blocks(with_implied_options(problem)));
  return problem.pass == Pass::backward ? without_headless_queries(problem) : problem;
}

runtime::CudaDevice described_device(const std::string& name, const DeviceShape& shape) {
  runtime::CudaDevice device;
  device.name = name;
  device.compute_major = shape.compute_major;
  device.compute_minor = shape.compute_minor;
  return device;
}

engine::PlannedCallResult plan_by(const Family& family, const AttentionProblem& problem,
                                  const runtime::CudaDevice& device, const std::string& reason,
                                  const std::function<engine::PlannedCallResult(const Request&)>& plan) {
  return plan({.problem = problem,
               .device = device,
               .shape = overridden(shape_of(device)),
               .family = family.name(),
               .choice = overridden(tuned_choice(family.name(), problem, device)),
               .reason = reason});
}

engine::PlannedCallResult plan_by_family(const AttentionProblem& problem, const runtime::CudaDevice& device,
                                         std::string_view wanted, FamilyPlan plan) {
  std::optional<engine::PlannedCallResult> call;
  const Status status = ask_families(problem, device, wanted, [&](const Family& family, const std::string& reason) {
    call = plan_by(family, problem, device, reason, [&](const Request& request) { return (family.*plan)(request); });
    return call->ok() ? Status() : call->status();
  });
  if (!status.ok()) return status;
  return std::move(*call);
}

}  // namespace strobe::gpu
