// SPDX-License-Identifier: Apache-2.0
// The pool's rules on a driver that writes down what it is asked.
#include "runtime/workspace_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "fake_driver.h"

namespace strobe::runtime {
namespace {

using test::fake_stream;
using testing::ElementsAre;

class WorkspacePoolTest : public testing::Test {
 protected:
  /// One call's use of the pool; gives the block's address.
  CUdeviceptr use(std::uintptr_t stream) {
    Result<WorkspacePool::Lease> lease = pool_->acquire(fake_stream(stream));
    EXPECT_TRUE(lease.ok()) << lease.status().message();
    EXPECT_TRUE(lease->finish().ok());
    return lease->address();
  }

  test::FakeDriver fake_;
  std::unique_ptr<WorkspacePool> pool_ = std::make_unique<WorkspacePool>(fake_.device(), 64);
};

TEST_F(WorkspacePoolTest, OneStreamReusesItsBlockWithoutWaiting) {
  const CUdeviceptr first = use(7);
  EXPECT_THAT(fake_.take_calls(), ElementsAre("MemAlloc 64 mode 2", "EventRecord 1 7"));
  EXPECT_EQ(use(7), first);
  EXPECT_THAT(fake_.take_calls(), ElementsAre("EventRecord 1 7"));
}

TEST_F(WorkspacePoolTest, HoldsNothingBeforeItsFirstLease) {
  EXPECT_EQ(fake_.blocks_in_use(), 0);
  use(7);
  EXPECT_EQ(fake_.blocks_in_use(), 1);
}

TEST_F(WorkspacePoolTest, AnotherStreamTakesAFreshBlockThenWaits) {
  const CUdeviceptr first = use(7);
  EXPECT_NE(use(8), first);
  fake_.take_calls();
  use(9);
  EXPECT_THAT(fake_.take_calls(), ElementsAre("StreamWaitEvent 9 1", "EventRecord 1 9"));
  use(7);  // its block went to stream 9
  EXPECT_THAT(fake_.take_calls(), ElementsAre("StreamWaitEvent 7 1", "EventRecord 1 7"));
  use(8);
  EXPECT_THAT(fake_.take_calls(), ElementsAre("EventRecord 2 8"));
}

TEST_F(WorkspacePoolTest, TheDefaultStreamIsAStreamLikeAnother) {
  use(0);
  use(1);
  fake_.take_calls();
  use(2);
  EXPECT_THAT(fake_.take_calls(), ElementsAre("StreamWaitEvent 2 1", "EventRecord 1 2"));
}

TEST_F(WorkspacePoolTest, ACapturedStreamGetsABlockOfItsOwn) {
  const CUdeviceptr eager = use(7);
  fake_.take_calls();
  fake_.capture_id = 1;
  const CUdeviceptr captured = use(7);
  EXPECT_NE(captured, eager);
  EXPECT_EQ(use(7), captured);
  EXPECT_NE(use(8), captured);  // a forked stream runs at the same time
  EXPECT_THAT(fake_.take_calls(), ElementsAre("MemAlloc 64 mode 2", "MemAlloc 64 mode 2"));
  fake_.capture_id = 2;
  EXPECT_NE(use(7), captured);
  fake_.capture_id = 0;
  EXPECT_EQ(use(7), eager);
}

TEST_F(WorkspacePoolTest, FreesAllItHas) {
  use(7);
  fake_.capture_id = 1;
  use(7);
  EXPECT_EQ(fake_.blocks_in_use(), 2);
  pool_.reset();
  EXPECT_EQ(fake_.blocks_in_use(), 0);
}

TEST_F(WorkspacePoolTest, SaysWhenThereIsNoMemory) {
  fake_.fail("MemAlloc", CUDA_ERROR_OUT_OF_MEMORY);
  const Status status = pool_->acquire(fake_stream(7)).status();
  EXPECT_EQ(status.code(), StatusCode::out_of_memory);
  EXPECT_EQ(status.message(), "allocating a workspace: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  fake_.capture_id = 1;
  EXPECT_EQ(pool_->acquire(fake_stream(7)).status().code(), StatusCode::out_of_memory);
  fake_.fail("MemAlloc", CUDA_SUCCESS);
  fake_.capture_id = 0;
  EXPECT_TRUE(pool_->acquire(fake_stream(7)).ok());
}

TEST_F(WorkspacePoolTest, AFailedWaitGivesTheBlockBack) {
  use(7);
  use(8);
  fake_.fail("StreamWaitEvent", test::kFakeError);
  EXPECT_EQ(pool_->acquire(fake_stream(9)).status().message(),
            "waiting for a workspace's last user: CUDA_ERROR_INVALID_VALUE (invalid argument)");
  fake_.take_calls();
  use(7);
  EXPECT_THAT(fake_.take_calls(), ElementsAre("EventRecord 1 7"));
}

// ThreadSanitizer sees two leases of one block as a race on its cell.
TEST_F(WorkspacePoolTest, ThreadsNeverHoldOneBlockAtOnce) {
  std::map<CUdeviceptr, int> uses;
  for (std::uintptr_t stream : {1, 2}) uses[use(stream)] = 0;
  ASSERT_EQ(uses.size(), 2U);
  constexpr int kThreads = 8;
  constexpr int kRounds = 500;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < kRounds; ++round) {
        const Result<WorkspacePool::Lease> lease =
            pool_->acquire(fake_stream(static_cast<std::uintptr_t>(thread % 4 + 1)));
        ++uses.at(lease->address());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int total = 0;
  for (const auto& [address, count] : uses) total += count;
  EXPECT_EQ(total, kThreads * kRounds);
}

}  // namespace
}  // namespace strobe::runtime
