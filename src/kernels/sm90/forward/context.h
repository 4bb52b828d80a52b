// SPDX-License-Identifier: Apache-2.0
// What every warp of a CTA works with.
#pragma once

#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/tile/work.h"
#include "kernels/sm90/tile/tensor_map.h"

namespace strobe::sm90::forward {

template <Config C>
struct BiasMapOf {
  using type = NoBiasMap;
};
template <Config C>
  requires(C.bias_stages > 0)
struct BiasMapOf<C> {
  using type = TensorMap;
};
template <Config C>
using BiasMap = typename BiasMapOf<C>::type;

/// What the kernel was given, and where its shared memory is.
template <Config C>
struct Context {
  const TensorMap& q;
  const TensorMap& k;
  const TensorMap& v;
  const TensorMap& o;
  const BiasMap<C>& bias;
  const Params& params;
  const ScheduleOf<C>& schedule;
  unsigned char* smem;
  Barriers<C>& barriers;
};

}  // namespace strobe::sm90::forward
