// SPDX-License-Identifier: Apache-2.0
// Kernels of one call, side by side.
#pragma once

#include <future>
#include <system_error>

namespace strobe::gpu {

/// Loads the kernel in a thread of its own, unless it is there or the process can have no more threads: a kernel that
/// has to be compiled is compiled while others are. NVRTC does its front end alone one after the other.
template <class Find>
std::future<void> load_ahead(bool is_loaded, const Find& find) {
  if (is_loaded) return {};
  try {
    return std::async(std::launch::async, [find] { static_cast<void>(find()); });
  } catch (const std::system_error&) {
    return {};
  }
}

}  // namespace strobe::gpu
