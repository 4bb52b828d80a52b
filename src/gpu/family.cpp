// SPDX-License-Identifier: Apache-2.0
#include "gpu/family.h"

#include "gpu/plan/supported.h"

namespace strobe::gpu {

Status Family::takes_rows(const AttentionProblem&, const DeviceShape&, const RowFormat&) const {
  return unsupported("the {} kernels read rows of q's dtype alone", name());
}

engine::PlannedCallResult Family::plan_rows(const Request& request, const RowFormat& format) const {
  return takes_rows(request.problem, request.shape, format);
}

}  // namespace strobe::gpu
