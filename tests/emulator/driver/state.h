// SPDX-License-Identifier: Apache-2.0
// What the driver's handles stand for.
#pragma once

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "machine/grid.h"
#include "ptx/decoder.h"
#include "runtime/cuda_abi.h"

namespace strobe::runtime {

// NOLINTBEGIN(readability-identifier-naming): the driver's names

/// Work that a graph does again, in the order in which it was captured.
struct CUgraph_st {
  std::vector<std::function<CUresult()>> work;
};
struct CUgraphExec_st {
  std::vector<std::function<CUresult()>> work;
};
struct CUstream_st {
  unsigned long long id = 0;
  CUgraph_st* captured = nullptr;  // while it is captured
};
struct CUevent_st {
  double milliseconds = 0.0;
  CUgraph_st* captured = nullptr;
};
struct CUkern_st {
  std::unique_ptr<emulator::Program> program;
  std::size_t most_dynamic_shared = 48 << 10;
};
struct CUlib_st {
  std::unique_ptr<emulator::SourceModule> module;
  std::vector<std::unique_ptr<CUkern_st>> kernels;
};

// NOLINTEND(readability-identifier-naming)

}  // namespace strobe::runtime

namespace strobe::emulator {

inline constexpr runtime::CUresult kInvalidValue = 1;
inline constexpr runtime::CUresult kNotFound = 500;
inline constexpr runtime::CUresult kIllegalAddress = 700;
inline constexpr runtime::CUresult kLaunchFailed = 719;

/// Does the work now, or keeps it for the graph that the stream is captured in.
inline runtime::CUresult enqueue(runtime::CUstream stream, std::function<runtime::CUresult()> work) {
  const std::lock_guard lock(machine_mutex());
  if (stream != nullptr && stream->captured != nullptr) {
    stream->captured->work.push_back(std::move(work));
    return runtime::CUDA_SUCCESS;
  }
  return work();
}

}  // namespace strobe::emulator

#define STROBE_EXPORT extern "C" __attribute__((visibility("default")))
