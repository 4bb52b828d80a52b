// SPDX-License-Identifier: Apache-2.0
// What a plan must know of the device: a plain value, so that tests can plan for devices that are not there.
#pragma once

#include <cstddef>

#include "runtime/device.h"

namespace strobe::gpu {

struct DeviceShape {
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  std::size_t l2_bytes = 0;
  int shared_bytes = 0;           // that one CTA can have
  double memory_bandwidth = 0.0;  // bytes a second, by the memory's clock and width
  double clock = 0.0;             // of the multiprocessors in Hz, the highest
  double product_share = 1.0;     // of the tensor cores' rate by architecture, which some cards have less of
};

/// What the units of one multiprocessor do in a clock.
struct UnitRates {
  double products = 0.0;            // FLOPs by mma.sync on 16 bits with float32 sums
  double warpgroup_products = 0.0;  // the same by WGMMA where the architecture has it, else as above
  double products_8bit = 0.0;       // by WGMMA where the architecture has it, else by mma.sync
  double products_tf32 = 0.0;       // by mma.sync
  double exponentials = 0.0;
  double arithmetic = 0.0;    // float32 instructions of a thread
  double shared_bytes = 0.0;  // of shared memory, read or written
  double sum_bytes = 0.0;     // of float32 added to sums in L2, all multiprocessors at it
};

/// By compute capability and share of products; of unknown ones as of the last known before.
UnitRates unit_rates(const DeviceShape& shape);

/// As the driver describes the device. What it leaves out is taken from tables by compute capability.
DeviceShape shape_of(const runtime::CudaDevice& device);

/// What each of several CTAs on a multiprocessor can have: every CTA takes 1 KB that belongs to the system, and
/// `shared_bytes` is a multiprocessor's memory less that.
constexpr int shared_bytes_of(const DeviceShape& shape, int ctas) {
  constexpr int kReserved = 1024;
  return (shape.shared_bytes + kReserved) / ctas - kReserved;
}

}  // namespace strobe::gpu
