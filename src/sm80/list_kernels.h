// SPDX-License-Identifier: Apache-2.0
// Which kernels a call needs: what is compiled ahead of it.
#pragma once

#include "call/problem.h"
#include "gpu/plan/choice.h"
#include "gpu/plan/device.h"
#include "gpu/variant/pack_list.h"
#include "strobe/status.h"

namespace strobe::sm80 {

/// Adds the kernels of a call of the problem's pass to `list`; unsupported where the family has no plan for it. Both
/// kernels of a bias, aligned and any.
Status list_kernels(const AttentionProblem& problem, const gpu::DeviceShape& shape, const gpu::Choice& choice,
                    gpu::PackList& list);

}  // namespace strobe::sm80
