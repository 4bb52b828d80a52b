// SPDX-License-Identifier: Apache-2.0
// The workspace pool on a real GPU: graphs, streams and threads never see each other's data, and a call costs the host
// microseconds.
#include <algorithm>
#include <chrono>
#include <thread>

#include "any_tensor_map.h"
#include "gpu_test.h"
#include "runtime/workspace_pool.h"

namespace strobe::runtime {
namespace {

using test::DeviceArray;
using test::Stream;

constexpr int kElements = 4096;
constexpr std::size_t kWorkspaceBytes = kElements * sizeof(int);

// Two launches that only work if nobody else writes the workspace between them.
constexpr const char* kText = R"(
  __global__ void fill(int* workspace, int token, int naps) {
    workspace[blockIdx.x * blockDim.x + threadIdx.x] = token;
    for (int i = 0; i < naps; ++i) __nanosleep(1000);
  }
  __global__ void check(const int* workspace, int token, int* mismatches, int* runs) {
    if (workspace[blockIdx.x * blockDim.x + threadIdx.x] != token) atomicAdd(mismatches, 1);
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicAdd(runs, 1);
  }
  __global__ void nothing(int) {})";

class GpuWorkspace : public test::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    Result<Kernel> fill = load(kText, "fill");
    Result<Kernel> check = load(kText, "check");
    ASSERT_TRUE(fill.ok() && check.ok()) << fill.status().message() << check.status().message();
    fill_ = *fill;
    check_ = *check;
    pool_ = std::make_unique<WorkspacePool>(device(), kWorkspaceBytes);
    counts_ = std::make_unique<DeviceArray<int>>(device(), 2);
  }

  Status run(CUstream stream, int token, int naps = 0) {
    Result<WorkspacePool::Lease> lease = pool_->acquire(stream);
    if (!lease.ok()) return lease.status();
    const LaunchShape shape{.grid = {kElements / 256}, .block = {256}};
    if (Status status = launch(driver(), fill_.handle, shape, stream, lease->address(), token, naps); !status.ok()) {
      return status;
    }
    if (Status status = launch(driver(), check_.handle, shape, stream, lease->address(), token, counts_->address(),
                               counts_->address() + sizeof(int));
        !status.ok()) {
      return status;
    }
    return lease->finish();
  }

  static void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

  void expect_runs(int expected) const {
    const std::vector<int> counts = counts_->download();
    EXPECT_EQ(counts[0], 0) << "elements that another call had overwritten";
    EXPECT_EQ(counts[1], expected);
  }

  /// What `work` enqueues on the stream, as a graph ready to launch.
  template <class Work>
  CUgraphExec capture(CUstream stream, const Work& work) {
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    EXPECT_EQ(driver().StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    work();
    EXPECT_EQ(driver().StreamEndCapture(stream, &graph), CUDA_SUCCESS);
    EXPECT_EQ(driver().GraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
    driver().GraphDestroy(graph);
    return executable;
  }

  Kernel fill_;
  Kernel check_;
  std::unique_ptr<WorkspacePool> pool_;
  std::unique_ptr<DeviceArray<int>> counts_;
};

TEST_F(GpuWorkspace, AGraphIsReplayedAThousandTimesBesideOtherWork) {
  const Stream replays(device());
  const Stream eager(device());
  const CUgraphExec graph = capture(replays.get(), [&] {
    expect_ok(run(replays.get(), 1));
    expect_ok(run(replays.get(), 2));
  });
  const CUgraphExec other = capture(eager.get(), [&] { expect_ok(run(eager.get(), 3)); });
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(driver().GraphLaunch(graph, replays.get()), CUDA_SUCCESS);
    ASSERT_EQ(driver().GraphLaunch(other, eager.get()), CUDA_SUCCESS);
    ASSERT_TRUE(run(eager.get(), 100 + i).ok());
  }
  expect_runs(4000);
  driver().GraphExecDestroy(graph);
  driver().GraphExecDestroy(other);
}

TEST_F(GpuWorkspace, APoolIsUsedAndFreedWhileAnotherStreamIsCaptured) {
  const Stream stream(device());
  const Stream other(device());
  const CUgraphExec graph = capture(stream.get(), [&] {
    expect_ok(run(stream.get(), 1));
    WorkspacePool pool(device(), 1024);
    EXPECT_TRUE(pool.acquire(other.get()).ok());
  });
  ASSERT_NE(graph, nullptr);
  ASSERT_EQ(driver().GraphLaunch(graph, stream.get()), CUDA_SUCCESS);
  expect_runs(1);
  driver().GraphExecDestroy(graph);
}

TEST_F(GpuWorkspace, ThreadsAndStreamsShareThePool) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 500;
  const Stream streams[] = {Stream(device()), Stream(device()), Stream(device())};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const ContextScope context(device());
      for (int round = 0; round < kRounds; ++round) {
        // Three streams for two blocks; two of the threads share a stream.
        const Status status = run(streams[thread % 3].get(), 1000 * thread + round, round % 50);
        EXPECT_TRUE(status.ok()) << status.message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_runs(kThreads * kRounds);
}

class GpuHostTime : public GpuWorkspace {
 protected:
  /// The median time of one call, in microseconds; the queue is drained often, so that no call waits for room in it.
  template <class Call>
  double median_microseconds(const Stream& stream, const Call& call) {
    std::vector<double> times;
    for (int i = 0; i < 4000; ++i) {
      if (i % 200 == 0) stream.synchronize();
      const auto start = std::chrono::steady_clock::now();
      call();
      times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    std::ranges::nth_element(times, times.begin() + 2000);
    return times[2000];
  }
};

// Prints and judges nothing but success: a time belongs to its machine.
TEST_F(GpuHostTime, FromCallToLaunch) {
  const Result<Kernel> nothing = load(kText, "nothing");
  ASSERT_TRUE(nothing.ok());
  const Stream stream(device());
  const LaunchShape shape{.grid = {132}, .block = {384}, .overlaps_previous = true};
  const TiledTensor tensor{.data = reinterpret_cast<void*>(counts_->address()),
                           .dtype = DType::bfloat16,
                           .rank = 4,
                           .extents = {128, 4096, 16, 4},
                           .strides = {1, 2048, 128, 8'388'608},
                           .box = {64, 128, 1, 1}};
  const double launch_alone =
      median_microseconds(stream, [&] { EXPECT_TRUE(launch(driver(), nothing->handle, shape, stream.get(), 1).ok()); });
  const double whole = median_microseconds(stream, [&] {
    const ContextScope context(device());
    AnyTensorMap maps[4];
    for (AnyTensorMap& map : maps) EXPECT_TRUE(encode_tensor_map(driver(), tensor, map).ok());
    const Result<WorkspacePool::Lease> lease = pool_->acquire(stream.get());
    EXPECT_TRUE(launch(driver(), nothing->handle, shape, stream.get(), 1).ok());
  });
  std::printf("host time: launch %.2f us; with context, four tensor maps and workspace %.2f us\n", launch_alone, whole);
}

}  // namespace
}  // namespace strobe::runtime
