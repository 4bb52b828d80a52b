// SPDX-License-Identifier: Apache-2.0
// The tensors that texts read, as kernels take them.
#pragma once

#include <span>

#include "call/problem.h"
#include "kernels/expression/captures.h"
#include "kernels/sequence/params.h"
#include "strobe/attention.h"

namespace strobe::gpu {

expression::Captures captures(std::span<const ConstTensorView> views);

/// What is not given has no data.
expression::Captures captures(std::span<const TensorView> views);

}  // namespace strobe::gpu
