// SPDX-License-Identifier: Apache-2.0
#include "gpu/call_candidates.h"

#include "gpu/choose_family.h"
#include "gpu/engine.h"
#include "gpu/plan/supported.h"
#include "gpu/tuned.h"

namespace strobe::gpu {

Result<CallCandidates> candidates_of(const AttentionProblem& problem, const std::string& name,
                                     const DeviceShape& shape) {
  if (problem.pass == Pass::jvp) return engine().plan_jvp(problem, {}).status();  // it has none
  if (problem.row_invariant && problem.pass == Pass::forward) {
    return unsupported("row_invariant forwards are not tuned: a choice would change their bits");
  }
  const AttentionProblem planned = planned_problem(problem);
  const runtime::CudaDevice device = described_device(name, shape);
  CallCandidates all;
  const Status status = ask_families(planned, device, {}, [&](const Family& family, const std::string&) {
    Result<std::vector<Candidate>> candidates = family.candidates(planned, shape);
    if (!candidates.ok()) return candidates.status();
    all = {tuned_name(family.name(), planned), std::move(*candidates)};
    return Status();
  });
  if (!status.ok()) return status;
  return all;
}

}  // namespace strobe::gpu
