// SPDX-License-Identifier: Apache-2.0
// What reaches the driver, on one that writes it down: launches, tensor maps, contexts.
#include "runtime/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "any_tensor_map.h"
#include "fake_driver.h"

namespace strobe::runtime {
namespace {

using test::fake_context;
using test::fake_stream;
using testing::ElementsAre;
using testing::IsEmpty;

class LaunchTest : public testing::Test {
 protected:
  test::FakeDriver fake_;
};

TEST_F(LaunchTest, PassesShapeAndParameters) {
  const LaunchShape plain{.grid = {5, 6, 7}, .block = {384}, .cluster = {}, .dynamic_shared_bytes = 1000};
  ASSERT_TRUE(launch(fake_.driver(), CUfunction{}, plain, fake_stream(3), 42).ok());
  LaunchShape rich = plain;
  rich.cluster = {1, 2, 1};
  rich.overlaps_previous = true;
  ASSERT_TRUE(launch(fake_.driver(), CUfunction{}, rich, fake_stream(3), 43).ok());
  EXPECT_THAT(fake_.take_calls(),
              ElementsAre("LaunchKernelEx grid 5 6 7 block 384 1 1 shared 1000 stream 3 with 42",
                          "LaunchKernelEx grid 5 6 7 block 384 1 1 shared 1000 stream 3 cluster 1 2 1 overlap 1 "
                          "with 43"));
}

TEST_F(LaunchTest, GivesTheDriversWords) {
  fake_.fail("LaunchKernelEx", test::kFakeError);
  const Status status = launch(fake_.driver(), CUfunction{},
                               {.grid = {5, 6, 7}, .block = {384}, .dynamic_shared_bytes = 1000}, fake_stream(3), 42);
  EXPECT_EQ(status.code(), StatusCode::device_error);
  EXPECT_EQ(status.message(),
            "launching a kernel of 5 x 6 x 7 blocks of 384 x 1 x 1 threads with 1000 bytes of shared memory: "
            "CUDA_ERROR_INVALID_VALUE (invalid argument)");
}

class TensorMapTest : public LaunchTest {
 protected:
  Status encode() { return encode_tensor_map(fake_.driver(), tensor_, map_); }

  void expect_rejected(const std::string& message) {
    const Status status = encode();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), message);
    EXPECT_THAT(fake_.take_calls(), IsEmpty());
  }

  alignas(16) char data_[32] = {};
  TiledTensor tensor_ = {.data = data_,
                         .dtype = DType::bfloat16,
                         .rank = 3,
                         .extents = {128, 1000, 4},
                         .strides = {1, 512, 512'000},
                         .box = {64, 128, 1},
                         .swizzle = Swizzle::bytes_128};
  AnyTensorMap map_{};
};

TEST_F(TensorMapTest, PassesStridesInBytes) {
  ASSERT_TRUE(encode().ok());
  EXPECT_THAT(
      fake_.take_calls(),
      ElementsAre("TensorMapEncodeTiled type 9 extents 128,1000,4 strides 1024,1024000 box 64,128,1 swizzle 3"));
}

TEST_F(TensorMapTest, EncodesATensorOnce) {
  tensor_.box[1] = 32;  // as in no other test
  const std::string first = "TensorMapEncodeTiled type 9 extents 128,1000,4 strides 1024,1024000 box 64,32,1 swizzle 3";
  fake_.fail("TensorMapEncodeTiled", test::kFakeError);
  EXPECT_EQ(encode().code(), StatusCode::device_error);
  fake_.take_calls();
  fake_.fail("TensorMapEncodeTiled", runtime::CUDA_SUCCESS);
  ASSERT_TRUE(encode().ok());
  ASSERT_TRUE(encode().ok());
  EXPECT_THAT(fake_.take_calls(), ElementsAre(first));
  tensor_.extents[1] = 999;  // another length at the same address
  ASSERT_TRUE(encode().ok());
  EXPECT_THAT(fake_.take_calls(), ElementsAre(testing::HasSubstr("extents 128,999,4")));
  tensor_.extents[1] = 1000;
  ASSERT_TRUE(encode().ok());
  EXPECT_THAT(fake_.take_calls(), ElementsAre(first));
}

TEST_F(TensorMapTest, RejectsRank) {
  tensor_.rank = 6;
  expect_rejected("a tensor map has rank 6; 1 to 5 are accepted");
}

TEST_F(TensorMapTest, RejectsUnalignedData) {
  tensor_.data = data_ + 2;
  EXPECT_EQ(encode().code(), StatusCode::invalid_argument);
  tensor_.data = nullptr;
  EXPECT_EQ(encode().code(), StatusCode::invalid_argument);
}

TEST_F(TensorMapTest, RejectsAnEmptyAxis) {
  tensor_.extents[1] = 0;
  expect_rejected("a tensor map's axis 1 has 0 elements; 1 to 2^32 are accepted");
}

TEST_F(TensorMapTest, RejectsALargeBox) {
  tensor_.box[1] = 257;
  expect_rejected("a tensor map's box has 257 elements on axis 1; 1 to 256 are accepted");
}

TEST_F(TensorMapTest, RejectsStridesOffSixteenBytes) {
  tensor_.strides[1] = 129;
  expect_rejected(
      "a tensor map's axis 1 has a stride of 129 elements of 2 bytes; a multiple of 16 bytes below 2^40 is accepted");
}

TEST_F(TensorMapTest, RejectsAStrideOnTheInnermostAxis) {
  tensor_.strides[0] = 2;
  expect_rejected("a tensor map's innermost stride is 2; it must be 1");
}

TEST_F(TensorMapTest, RejectsABoxWiderThanItsSwizzle) {
  tensor_.box[0] = 72;
  expect_rejected("a tensor map's box is 144 bytes along axis 0; a multiple of 16 that fits in its swizzle is needed");
}

class ContextScopeTest : public LaunchTest {};

TEST_F(ContextScopeTest, LeavesACurrentContextOfTheDevice) {
  test::set_fake_context(fake_context(100), 0);
  {
    const ContextScope scope(fake_.device());
  }
  test::set_fake_context(fake_context(55), 0);  // made by the caller, on the same device
  {
    const ContextScope scope(fake_.device());
  }
  EXPECT_THAT(fake_.take_calls(), IsEmpty());
}

TEST_F(ContextScopeTest, EntersThePrimaryContextAndLeavesIt) {
  test::set_fake_context(nullptr, 0);
  {
    const ContextScope scope(fake_.device());
  }
  test::set_fake_context(fake_context(55), 1);  // of another device
  {
    const ContextScope scope(fake_.device());
  }
  EXPECT_THAT(fake_.take_calls(),
              ElementsAre("CtxPushCurrent 100", "CtxPopCurrent", "CtxPushCurrent 100", "CtxPopCurrent"));
}

}  // namespace
}  // namespace strobe::runtime
