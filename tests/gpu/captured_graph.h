// SPDX-License-Identifier: Apache-2.0
// A CUDA graph of what a test enqueues.
#pragma once

#include <gtest/gtest.h>

#include "gpu/stream.h"
#include "runtime/device.h"

namespace strobe::test {

class CapturedGraph {
 public:
  /// Captures what `enqueue()` enqueues on the stream. Failures are the test's.
  template <class Enqueue>
  CapturedGraph(const runtime::CudaDevice& device, const gpu::Stream& stream, const Enqueue& enqueue)
      : context_(device), driver_(*device.driver), stream_(stream) {
    EXPECT_EQ(driver_.StreamBeginCapture(stream.get(), runtime::CU_STREAM_CAPTURE_MODE_GLOBAL), runtime::CUDA_SUCCESS);
    enqueue();
    EXPECT_EQ(driver_.StreamEndCapture(stream.get(), &graph_), runtime::CUDA_SUCCESS);
    EXPECT_EQ(driver_.GraphInstantiate(&executable_, graph_, 0), runtime::CUDA_SUCCESS);
  }
  ~CapturedGraph() {
    driver_.GraphExecDestroy(executable_);
    driver_.GraphDestroy(graph_);
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  /// On the stream of the capture. True if it was enqueued.
  bool launch() const { return driver_.GraphLaunch(executable_, stream_.get()) == runtime::CUDA_SUCCESS; }

 private:
  const runtime::ContextScope context_;
  const runtime::Driver& driver_;
  const gpu::Stream& stream_;
  runtime::CUgraph graph_ = nullptr;
  runtime::CUgraphExec executable_ = nullptr;
};

}  // namespace strobe::test
