// SPDX-License-Identifier: Apache-2.0
// The softmax of a tile's rows.
#pragma once

#include "kernels/score/softmax.h"
#include "kernels/sm90/forward/config.h"

namespace strobe::sm90::forward {

template <Config C>
using Softmax = typename score::SoftmaxOf<C.rule, C.block_n>::Type;

}  // namespace strobe::sm90::forward
