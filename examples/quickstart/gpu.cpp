// SPDX-License-Identifier: Apache-2.0
// Attention on a Hopper GPU in C++: the caller's memory and stream, a plan that is kept, and a CUDA graph.
#include <cuda_runtime.h>
#include <strobe/plan.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

void check(bool ok, const char* message) {
  if (ok) return;
  std::fprintf(stderr, "%s\n", message);
  std::exit(1);
}
void check(cudaError_t error) { check(error == cudaSuccess, cudaGetErrorString(error)); }
void check(const strobe::Status& status) { check(status.ok(), status.message().c_str()); }

int main() {
  constexpr std::size_t batch = 2, seqlen = 2048, heads = 8, head_dim = 128,
                        elements = batch * seqlen * heads * head_dim;
  const std::size_t bytes = elements * sizeof(strobe::bfloat16);
  std::vector<strobe::bfloat16> host(3 * elements);
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = strobe::to_bfloat16(std::sin(0.1F * static_cast<float>(i)));

  // q, k, v and o one after another in one allocation. A view says which device its memory is on.
  strobe::bfloat16* memory = nullptr;
  check(cudaMalloc(&memory, 4 * bytes));
  check(cudaMemcpy(memory, host.data(), 3 * bytes, cudaMemcpyHostToDevice));
  const auto view = [&](std::size_t i) {
    auto tensor = strobe::tensor(memory + i * elements, {batch, seqlen, heads, head_dim});
    tensor.device = {.type = strobe::DeviceType::cuda, .index = 0};
    return tensor;
  };
  const strobe::ForwardArguments call{.q = view(0), .k = view(1), .v = view(2), .o = view(3)};

  // The plan chooses and loads the kernel, so that a run only launches it. It serves every call of these shapes.
  const strobe::Result<strobe::Plan> plan = strobe::make_plan(call, {.causal = strobe::CausalMask::bottom_right});
  check(plan.status());
  std::puts(plan->explain().c_str());
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  check(plan->run(call, {.stream = stream}));  // returns once the launch is queued

  // A graph holds the pointers of its run: replay it on new contents of the same memory.
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  check(plan->run(call, {.stream = stream}));
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&replay, graph, 0));
  check(cudaMemsetAsync(memory + 3 * elements, 0xff, bytes, stream));  // o is NaN until the replay writes it
  for (int i = 0; i < 10; ++i) check(cudaGraphLaunch(replay, stream));
  strobe::bfloat16 first;
  check(cudaMemcpyAsync(&first, memory + 3 * elements, sizeof first, cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  const float o = strobe::to_float(first), v = strobe::to_float(host[2 * elements]);
  std::printf("o[0] = %.6f, v[0] = %.6f\n", o, v);  // the first query sees the first key alone
  return std::fabs(o - v) < 0x1p-7F ? 0 : 1;        // P and O are rounded to bfloat16
}
