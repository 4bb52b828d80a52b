// SPDX-License-Identifier: Apache-2.0
// Which family of kernels takes a call.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "gpu/family.h"

namespace strobe::gpu {

/// Family::plan_forward or Family::plan_backward.
using FamilyPlan = engine::PlannedCallResult (Family::*)(const Request&) const;

/// Asks a family, with the reason why it is asked: for explain().
using AskFamily = std::function<Status(const Family& family, const std::string& reason)>;

/// Asks the families that serve the device until one answers otherwise than unsupported, in the order of families();
/// those that prefer later ones for this call are asked last. `wanted`: the one family to ask; empty: all. Where none
/// takes the call, the reason of the first that was asked; where none serves the device, that of the last, which serves
/// the most devices.
Status ask_families(const AttentionProblem& problem, const runtime::CudaDevice& device, std::string_view wanted,
                    const AskFamily& ask);

/// The problem as families plan it: without what changes nothing.
AttentionProblem planned_problem(AttentionProblem problem);

/// What choosing a family needs to know of a device that need not be there.
runtime::CudaDevice described_device(const std::string& name, const DeviceShape& shape);

/// A plan by the family's rules or what was tuned for it.
engine::PlannedCallResult plan_by(const Family& family, const AttentionProblem& problem,
                                  const runtime::CudaDevice& device, const std::string& reason,
                                  const std::function<engine::PlannedCallResult(const Request&)>& plan);

/// The plan of the first family that has one.
engine::PlannedCallResult plan_by_family(const AttentionProblem& problem, const runtime::CudaDevice& device,
                                         std::string_view wanted, FamilyPlan plan);

}  // namespace strobe::gpu
