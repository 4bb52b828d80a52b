// SPDX-License-Identifier: Apache-2.0
// Where appended rows go, as kernels are told.
#pragma once

#include <algorithm>

#include "gpu/plan/supported.h"
#include "kernels/auxiliary/append_params.h"
#include "strobe/tensor.h"

namespace strobe::gpu {

/// Of a number from 1 on; of larger ones than kernels count to, and of 0, the nearest.
inline Divisor divisor_of(std::int64_t number) {
  return Divisor::of(static_cast<int>(std::clamp<std::int64_t>(number, 1, kMaxInt)));
}

template <class T>
const T* data_of(const ConstTensorView& view) {
  return view.given() ? static_cast<const T*>(view.data) : nullptr;
}

/// `arguments`: of an append, of any kind; `cache`: one of its caches.
template <class Arguments>
void set_places(const Arguments& arguments, const TensorView& cache, auxiliary::AppendParams& params) {
  const auto at_most_int = [](std::int64_t number) { return static_cast<int>(std::min(number, kMaxInt)); };
  params.cache_seqlens = data_of<int>(arguments.cache_seqlens);
  params.cache_batch_idx = data_of<int>(arguments.cache_batch_idx);
  params.page_table = data_of<int>(arguments.page_table);
  params.page_size = divisor_of(1);
  if (arguments.page_table.given()) {
    params.page_table_batch = arguments.page_table.strides[0];
    params.page_size = divisor_of(cache.shape[1]);
    params.max_pages = cache.shape[1] == 0 ? 0 : at_most_int(arguments.page_table.shape[1]);
  }
  params.entries = at_most_int(cache.shape[0]);
  params.seqlen = at_most_int(cache.shape[1]);
  params.batch = static_cast<int>(arguments.cache_seqlens.shape[0]);
}

}  // namespace strobe::gpu
