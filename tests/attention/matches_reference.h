// SPDX-License-Identifier: Apache-2.0
// A case's results against the float64 reference.
#pragma once

#include "case_tensors.h"
#include "reference/bound/reference.h"

namespace strobe::test {

/// Runs forward and, where the case has LSE, backward from its o and lse. Expects every element within its bound and
/// every guard intact.
void expect_case_matches_reference(const AttentionCase& attention, const Execution& execution = {});

/// The same with inputs that the test has changed.
void expect_tensors_match_reference(CaseTensors& tensors, const AttentionCase& attention,
                                    const Execution& execution = {});

/// STROBE_COMPILE_ONLY=1: kernels are compiled, and no result is looked at; a test that would is skipped there, and so
/// never passes. For machines without a GPU, where a driver that runs nothing stands for one.
bool compiles_only();

/// Compares results that are already there: what forward wrote, what backward wrote.
void expect_forward_matches(CaseTensors& tensors, const AttentionCase& attention,
                            const reference::ArithmeticModel& model = {});
void expect_backward_matches(CaseTensors& tensors, const AttentionCase& attention,
                             const reference::ArithmeticModel& model = {});

/// Expects every element of `actual` within its bound; passes where the case lacks the tensor.
void expect_within_bound(const GuardedTensor& actual, const reference::BoundedTensor& expected, const char* name);

}  // namespace strobe::test
