// SPDX-License-Identifier: Apache-2.0
// A likely reason why the heads of q and k do not fit.
#pragma once

#include "strobe/tensor.h"

namespace strobe::api {

/// Whether they would, were the axes [batch, heads, seqlen, head_dim], with more keys than heads.
inline bool looks_heads_first(const ConstTensorView& q, const ConstTensorView& k) {
  return q.rank == 4 && k.rank == 4 && k.shape[1] > 0 && q.shape[1] % k.shape[1] == 0 && k.shape[2] > k.shape[1];
}

}  // namespace strobe::api
