// SPDX-License-Identifier: Apache-2.0
// The producers' side: which warp brings what.
#pragma once

#include "kernels/sm90/forward/context.h"
#include "kernels/sm90/forward/produce/bias.h"
#include "kernels/sm90/forward/produce/keys.h"
#include "kernels/sm90/forward/produce/page_boxes.h"
#include "kernels/sm90/forward/produce/page_rows.h"
#include "kernels/sm90/forward/produce/query.h"
#include "kernels/sm90/forward/produce/stored.h"
#include "kernels/sm90/forward/produce/wide.h"
#include "kernels/sm90/forward/produce/wide_format_rows.h"
#include "kernels/sm90/forward/produce/wide_rows.h"
#include "kernels/sm90/forward/produce/wide_shared_rows.h"

namespace strobe::sm90::forward {

template <Config C>
__device__ __forceinline__ KeyFeeder<C, false> key_feeder(const Context<C>& context) {
  return {context.k, context.params, context.schedule, context.smem, context.barriers.k_full, context.barriers.k_empty};
}

template <Config C>
__device__ __forceinline__ KeyFeeder<C, true> value_feeder(const Context<C>& context) {
  return {context.v, context.params, context.schedule, context.smem, context.barriers.v_full, context.barriers.v_empty};
}

template <Config C>
__device__ __forceinline__ BiasFeeder<C> bias_feeder(const Context<C>& context) {
  return {context.other, context.params, context.schedule, context.smem, context.barriers};
}

/// Wide loops: Q's columns that stay in shared memory.
template <Config C>
__device__ __forceinline__ void feed_shared_queries(const Context<C>& context) {
  if constexpr (C.register_columns < C.head_dim) {
    QueryFeeder<C> queries(context);
    while (queries.feed()) {
    }
  }
}

/// The first producer warpgroup has a warp for each of Q, K, V and the bias. Where K and V are converted, its first
/// warp loads and all others convert.
template <Config C>
__device__ __forceinline__ void produce(const Context<C>& context) {
  const int warp = __shfl_sync(kFullWarp, threadIdx.x / kWarpSize, 0);
  if constexpr (converts(C)) {
    if (warp > 0) {
      StoredConverter<C>(context, warp - 1).run();
      return;
    }
  }
  if (!kWarpFeeds<C> && !acts_for_warp<C>()) {
    return;
  }
  if constexpr (converts(C)) {
    StoredLoader<C>(context).run();
  } else if constexpr (C.keys == KeySource::rows_in_format) {
    FormatRowsFeeder<C>(context, warp).run();
  } else if constexpr (C.values_in_keys && C.keys == KeySource::page_rows) {
    SharedRowsFeeder<C>(context, warp).run();
  } else if constexpr (is_wide(C) && C.keys == KeySource::page_rows) {
    if (warp < kTensorRowWarps) {
      WideKeyRowsFeeder<C>(context, warp).run();
    } else {
      WideValueRowsFeeder<C>(context, warp - kTensorRowWarps).run();
    }
  } else if constexpr (is_wide(C)) {
    if (warp == 0) {
      feed_shared_queries(context);
    } else if constexpr (C.values_in_keys) {
      if (warp == 1) {
        feed_shared_keys(context);
      }
    } else if (warp == 1) {
      feed_wide_keys(context);
    } else if (warp == 2) {
      feed_wide_values(context);
    }
  } else if (warp == 0) {
    QueryFeeder<C> queries(context);
    while (queries.feed()) {
    }
  } else if (warp == 1) {
    auto keys = key_feeder(context);
    while (keys.feed()) {
    }
  } else if (warp == 2) {
    auto values = value_feeder(context);
    while (values.feed()) {
    }
  } else if constexpr (C.bias_stages > 0) {
    auto biases = bias_feeder(context);
    while (biases.feed()) {
    }
  }
}

}  // namespace strobe::sm90::forward
