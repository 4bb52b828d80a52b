// SPDX-License-Identifier: Apache-2.0
#include "gpu/params/scales.h"

#include <bit>

namespace strobe::gpu {

ScaleParams scale_params(const ConstTensorView& scales, std::int64_t rows) {
  ScaleParams params{};
  params.data = static_cast<const float*>(scales.data);
  params.batch_stride = scales.shape[0] == 1 ? 0 : scales.strides[0];
  params.head_stride = scales.shape[1] == 1 ? 0 : scales.strides[1];
  constexpr int kAllRows = 31;
  const bool shared = scales.shape[2] == 1;
  params.shift = shared ? kAllRows : std::countr_zero(static_cast<std::uint64_t>(rows));
  return params;
}

}  // namespace strobe::gpu
