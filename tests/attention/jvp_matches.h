// SPDX-License-Identifier: Apache-2.0
// A case's JVP, its tensors and its results against the float64 reference.
#pragma once

#include "case_tensors.h"
#include "strobe/jvp.h"

namespace strobe::test {

/// The tensors of a case with tangents of q, k and v, which hold NaN where their tensors do: in what nothing sees.
class JvpTensors {
 public:
  explicit JvpTensors(const AttentionCase& attention);

  JvpArguments arguments() const;
  std::vector<GuardedTensor*> outputs() { return {&inputs.o, &inputs.lse, &o_tangent, &lse_tangent}; }

  CaseTensors inputs;
  GuardedTensor q_tangent, k_tangent, v_tangent, o_tangent, lse_tangent;
};

/// Expects O', LSE', O and LSE within their bounds and every guard intact.
void expect_jvp_matches_reference(const AttentionCase& attention, const Execution& execution = {});

/// The same with inputs or arguments that the test has changed; `arguments` are of `tensors`.
void expect_jvp_matches_reference(JvpTensors& tensors, const JvpArguments& arguments, const AttentionOptions& options,
                                  const Execution& execution = {});

}  // namespace strobe::test
