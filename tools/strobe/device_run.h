// SPDX-License-Identifier: Apache-2.0
// A plan run where its tensors are: host tensors as they are, or copies of them on a GPU.
#pragma once

#include <string>

#include "strobe/plan.h"

namespace strobe::program {

/// Runs the plan, which was made for `device`, on host tensors; on a GPU on copies, whose outputs come back. Returns
/// the milliseconds of the run alone, without the copies.
Result<double> run_on(const Device& device, const Plan& plan, const ForwardArguments& host);
Result<double> run_on(const Device& device, const Plan& plan, const BackwardArguments& host);

/// The plan's engine and family of kernels: "cpu", "gpu (sm90)".
std::string engine_text(const Plan& plan);

}  // namespace strobe::program
