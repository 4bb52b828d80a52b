// SPDX-License-Identifier: Apache-2.0
// Streams, whose work is done at once, events and graphs.
#include <chrono>
#include <utility>

#include "driver/state.h"

using namespace strobe::runtime;   // NOLINT(google-build-using-namespace): the driver's types
using namespace strobe::emulator;  // NOLINT(google-build-using-namespace)

namespace {

double now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(since).count();
}

}  // namespace

STROBE_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned) {
  static std::atomic<unsigned long long> next{2};
  *stream = new CUstream_st{.id = next++};
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  delete stream;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
STROBE_EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  *id = stream == nullptr ? 1 : stream->id;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  if (stream != nullptr && event->captured != nullptr) stream->captured = event->captured;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, std::uint64_t* id,
                                                 CUgraph* graph, const CUgraphNode** dependencies,
                                                 const CUgraphEdgeData** edges, std::size_t* count) {
  const bool captures = stream != nullptr && stream->captured != nullptr;
  *status = captures ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (id != nullptr) *id = captures ? reinterpret_cast<std::uint64_t>(stream->captured) : 0;
  if (graph != nullptr) *graph = captures ? stream->captured : nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
  stream->captured = new CUgraph_st;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  *graph = stream->captured;
  stream->captured = nullptr;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::swap(*mode, current);
  return CUDA_SUCCESS;
}

STROBE_EXPORT CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = new CUevent_st;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  delete event;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  event->milliseconds = now();
  event->captured = stream == nullptr ? nullptr : stream->captured;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuEventSynchronize(CUevent) { return CUDA_SUCCESS; }
STROBE_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  *milliseconds = static_cast<float>(end->milliseconds - start->milliseconds);
  return CUDA_SUCCESS;
}

STROBE_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  *executable = new CUgraphExec_st{.work = graph->work};
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  for (const auto& work : executable->work) {
    if (const CUresult result = enqueue(stream, work); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable) {
  delete executable;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  delete graph;
  return CUDA_SUCCESS;
}
