// SPDX-License-Identifier: Apache-2.0
// Launching a kernel: nothing here allocates, locks, waits or looks anything up.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/driver.h"

namespace strobe::runtime {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

/// The grid is in blocks, and a multiple of the cluster in every direction.
struct LaunchShape {
  Dim3 grid;
  Dim3 block;
  Dim3 cluster;
  unsigned dynamic_shared_bytes = 0;
  // The kernel may start while the one before it in the stream ends, and must itself wait for that one's results
  // (griddepcontrol.wait).
  bool overlaps_previous = false;
};

/// Blocks and threads in one row, with bytes of dynamic shared memory.
constexpr LaunchShape row_of_blocks(std::int64_t blocks, int threads, int shared_bytes = 0,
                                    bool overlaps_previous = false) {
  return {.grid = {.x = static_cast<unsigned>(blocks)},
          .block = {.x = static_cast<unsigned>(threads)},
          .cluster = {},
          .dynamic_shared_bytes = static_cast<unsigned>(shared_bytes),
          .overlaps_previous = overlaps_previous};
}

/// Enqueues a function of the calling thread's current context (see ContextScope) on the stream. `parameters` holds the
/// address of each kernel parameter in order; their values are copied before this returns. device_error with the
/// driver's words if it fails.
Status launch(const Driver& driver, CUfunction function, const LaunchShape& shape, CUstream stream, void** parameters);

/// The same, from the parameters themselves: their types must be those that the kernel declares.
template <class... Parameters>
Status launch(const Driver& driver, CUfunction function, const LaunchShape& shape, CUstream stream,
              const Parameters&... parameters) {
  // The driver only reads them; its signature lacks the const.
  std::array<void*, sizeof...(Parameters)> addresses = {const_cast<void*>(static_cast<const void*>(&parameters))...};
  return launch(driver, function, shape, stream, addresses.data());
}

/// The same for a kernel of any context: the driver takes it in a function's place and finds the function itself.
template <class... Parameters>
Status launch(const Driver& driver, CUkernel kernel, const LaunchShape& shape, CUstream stream,
              const Parameters&... parameters) {
  return launch(driver, reinterpret_cast<CUfunction>(kernel), shape, stream, parameters...);
}

}  // namespace strobe::runtime
