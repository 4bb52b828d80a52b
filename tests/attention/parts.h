// SPDX-License-Identifier: Apache-2.0
// A call cut into calls on parts of its sequences, by queries and by keys, which say by offsets where they are.
#pragma once

#include <functional>

#include "case_tensors.h"
#include "reference/bound/reference.h"

namespace strobe::test {

/// A batched case whose sequences have offsets: of the case's options.
AttentionCase as_parts(AttentionCase attention, Random& random);

/// How calls are run: from host tensors to host tensors.
struct PartRunner {
  std::function<void(CaseTensors& tensors, const AttentionCase& attention)> forward;
  std::function<void(CaseTensors& tensors, const AttentionCase& attention)> backward;
  reference::ArithmeticModel forward_model;
  reference::ArithmeticModel backward_model;
};

/// Runs a case of as_parts() as a whole and in parts, cut at random places. Expects the parts, merged, and the sums of
/// their gradients, which are computed from O and LSE of whole rows, within the bounds of the whole.
void expect_parts_make_the_whole(const AttentionCase& attention, Random& random, const PartRunner& runner);

}  // namespace strobe::test
