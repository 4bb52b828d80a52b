// SPDX-License-Identifier: Apache-2.0
// What must hold of the memory of a call's tensors just before the call runs.
#pragma once

#include "strobe/attention.h"
#include "strobe/cache.h"
#include "strobe/jvp.h"
#include "strobe/quantize.h"
#include "strobe/status.h"

namespace strobe::api {

/// The pointers of all tensors of a call, and its outputs apart from one another and from its inputs. Shapes and
/// strides are checked before.
Status check_tensor_memory(const ForwardArguments& arguments);
Status check_tensor_memory(const BackwardArguments& arguments);
Status check_tensor_memory(const JvpArguments& arguments);
Status check_tensor_memory(const QuantizeArguments& arguments);
Status check_tensor_memory(const AppendArguments& arguments);

}  // namespace strobe::api
