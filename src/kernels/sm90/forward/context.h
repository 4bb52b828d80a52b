// SPDX-License-Identifier: Apache-2.0
// What every warp of a CTA works with.
#pragma once

#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/tile/work.h"
#include "kernels/sm90/tile/tensor_map.h"

namespace strobe::sm90::forward {

template <Config C>
struct OtherMapOf {
  using type = NoOtherMap;
};
template <Config C>
  requires(has_other_map(C))
struct OtherMapOf<C> {
  using type = TensorMap;
};
template <Config C>
using OtherMap = typename OtherMapOf<C>::type;

/// What the kernel was given, and where its shared memory is.
template <Config C>
struct Context {
  const TensorMap& q;
  const TensorMap& k;
  const TensorMap& v;
  const TensorMap& o;
  const OtherMap<C>& other;  // the bias's, or the second query's
  const Params& params;
  const ScheduleOf<C>& schedule;
  unsigned char* smem;
  Barriers<C>& barriers;
};

}  // namespace strobe::sm90::forward
