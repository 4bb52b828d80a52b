// Plans of a kernel variant that the caller names instead of the planner: for measurements of a variant's own fields
// and for tests of its debug build. Exported for the program and the tests; no part of the public face.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "strobe/plan.h"

namespace strobe::api {

/// The variant that make_plan takes for a forward on tensors of a Hopper GPU.
STROBE_API Result<KernelConfig> planned_variant(const ForwardArguments& arguments, const AttentionOptions& options);

/// A plan of that forward with the variant `config`, which must fit it: masks, dtype and head dims are not checked.
STROBE_API Result<Plan> make_variant_plan(const ForwardArguments& arguments, const AttentionOptions& options,
                                          const KernelConfig& config);

}  // namespace strobe::api
