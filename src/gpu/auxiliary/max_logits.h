// SPDX-License-Identifier: Apache-2.0
// The largest logits of heads, before a kernel raises them.
#pragma once

#include "runtime/driver.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe::gpu {

/// Enqueues -inf for every head, where nothing is visible; nothing where the tensor is not given.
Status clear_max_logits(const runtime::Driver& driver, const TensorView& max_logits, runtime::CUstream stream);

}  // namespace strobe::gpu
