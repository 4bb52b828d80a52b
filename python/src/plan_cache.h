// Plans of the calls that were made before: making one costs more than launching it.
#pragma once

#include "strobe/plan.h"

namespace strobe::python {

/// The plan that an equal call made, or a new one. Calls are equal when everything that a plan is made from is: pass,
/// shapes, dtypes, devices, which tensors are given, options, engine and threads. Pointers and strides are each run's
/// own, which checks them again, so a plan holds no tensor and serves any of the same shape. What failed is not kept.
///
/// The caller holds the interpreter's lock, which guards the plans (in a forked child, too); it is let go of while a
/// new plan is made.
Result<Plan> plan_for(const ForwardArguments& arguments, const AttentionOptions& options, const Execution& execution);
Result<Plan> plan_for(const BackwardArguments& arguments, const AttentionOptions& options, const Execution& execution);

}  // namespace strobe::python
