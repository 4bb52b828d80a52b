// SPDX-License-Identifier: Apache-2.0
// What a plan must know of the device.
#pragma once

#include <cstddef>

#include "runtime/device.h"

namespace strobe::gpu {

struct DeviceShape {
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  std::size_t l2_bytes = 0;
  int shared_bytes = 0;  // that one CTA can have
};

inline DeviceShape shape_of(const runtime::CudaDevice& device) {
  return {.compute_major = device.compute_major,
          .compute_minor = device.compute_minor,
          .multiprocessors = device.multiprocessors,
          .l2_bytes = device.l2_bytes,
          .shared_bytes = device.max_shared_bytes};
}

/// What each of several CTAs on a multiprocessor can have: every CTA takes 1 KB that belongs to the system, and
/// `shared_bytes` is a multiprocessor's memory less that.
constexpr int shared_bytes_of(const DeviceShape& shape, int ctas) {
  constexpr int kReserved = 1024;
  return (shape.shared_bytes + kReserved) / ctas - kReserved;
}

}  // namespace strobe::gpu
