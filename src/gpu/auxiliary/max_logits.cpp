// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/max_logits.h"

#include <cstddef>
#include <cstdint>

namespace strobe::gpu {

Status clear_max_logits(const runtime::Driver& driver, const TensorView& max_logits, runtime::CUstream stream) {
  if (!max_logits.given() || max_logits.shape[0] * max_logits.shape[1] == 0) return {};
  constexpr unsigned kMinusInfinity = 0xff800000U;
  const bool contiguous = max_logits.strides[0] == max_logits.shape[1];
  const std::int64_t rows = contiguous ? 1 : max_logits.shape[0];
  const std::int64_t columns = contiguous ? max_logits.shape[0] * max_logits.shape[1] : max_logits.shape[1];
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto* first = static_cast<const float*>(max_logits.data) + row * max_logits.strides[0];
    const Status status = driver.check(driver.MemsetD32Async(reinterpret_cast<runtime::CUdeviceptr>(first),
                                                             kMinusInfinity, static_cast<std::size_t>(columns), stream),
                                       "clearing max_logits");
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace strobe::gpu
