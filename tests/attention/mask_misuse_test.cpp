// SPDX-License-Identifier: Apache-2.0
// Masks that the builders and dropout_mask cannot write.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strobe/block_mask.h"
#include "strobe/dropout.h"

namespace strobe::test {
namespace {

std::array<std::uint8_t, 64> memory;

struct MaskMisuse {
  std::function<void(TensorView&)> change;
  std::string message;
};

// What every writer of masks checks in the same words. `negative`: the shape with -1 first; `strides`: with 1 before
// the last.
std::vector<MaskMisuse> view_misuses(const std::string& shape, const std::string& negative,
                                     const std::string& strides) {
  return {
      {[](TensorView& mask) { mask.dtype = DType::float32; }, "mask is float32: it must be uint8"},
      {[](TensorView& mask) { mask.device = {DeviceType::cuda, 1}; }, "mask is on cuda:1: it must be in host memory"},
      {[](TensorView& mask) { mask.data = nullptr; }, "mask has shape " + shape + " and a null pointer"},
      {[](TensorView& mask) { mask.shape[0] = -1; }, "mask has shape " + negative + ": an extent must not be negative"},
      {[](TensorView& mask) { mask.strides[mask.rank - 1] = 2; }, "mask has stride 2 on its last axis: it must be 1"},
      {[](TensorView& mask) { mask.strides[mask.rank - 2] = 1; },
       "mask has strides " + strides + " with shape " + shape + ": elements of an output must not share memory"},
  };
}

void expect_rejected(const TensorView& valid, const MaskMisuse& misuse,
                     const std::function<Status(const TensorView&)>& write) {
  memory.fill(7);
  TensorView mask = valid;
  misuse.change(mask);
  const Status status = write(mask);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << misuse.message;
  EXPECT_EQ(status.message(), misuse.message);
  for (const std::uint8_t value : memory) EXPECT_EQ(value, 7);
}

TEST(Misuse, OfMasksThatDropoutWrites) {
  const TensorView valid = tensor(memory.data(), {1, 2, 3, 4});
  const auto write = [](const TensorView& mask) { return dropout_mask(0.5F, {}, mask); };
  ASSERT_TRUE(write(valid).ok());
  for (const MaskMisuse& misuse : view_misuses("[1, 2, 3, 4]", "[-1, 2, 3, 4]", "[24, 12, 1, 1]"))
    expect_rejected(valid, misuse, write);
  expect_rejected(valid,
                  {[](TensorView& mask) { mask.rank = 3; },
                   "mask has rank 3: it must have rank 4 [batch, heads_q, seqlen_q, seqlen_k]"},
                  write);
  expect_rejected(
      valid,
      {[](TensorView& mask) { mask = {}; }, "mask is missing: give a tensor [batch, heads_q, seqlen_q, seqlen_k]"},
      write);
  const auto of_all = [](const TensorView& mask) { return dropout_mask(1.0F, {}, mask); };
  expect_rejected(valid, {[](TensorView&) {}, "dropout is 1: it must be at least 0 and less than 1"}, of_all);
  const auto of_odd_state = [](const TensorView& mask) {
    alignas(8) static const std::array<unsigned char, 24> bytes{};
    return dropout_mask(0.5F, {.on_device = reinterpret_cast<const std::uint64_t*>(bytes.data() + 4)}, mask);
  };
  expect_rejected(valid, {[](TensorView&) {}, "random.on_device is not aligned to 8 bytes"}, of_odd_state);
}

TEST(Misuse, OfMasksThatTheBuildersWrite) {
  const TensorView valid = tensor(memory.data(), {3, 4});
  const std::function<Status(const TensorView&)> builders[] = {
      [](const TensorView& mask) { return local_block_mask(mask, 1, 1); },
      [](const TensorView& mask) { return strided_block_mask(mask, 2); }, butterfly_block_mask};
  for (const auto& write : builders) {
    ASSERT_TRUE(write(valid).ok());
    for (const MaskMisuse& misuse : view_misuses("[3, 4]", "[-1, 4]", "[1, 1]")) expect_rejected(valid, misuse, write);
    for (const int rank : {-1, 0, 1, 5}) {
      expect_rejected(valid,
                      {[rank](TensorView& mask) { mask.rank = rank; },
                       "mask has rank " + std::to_string(rank) + ": it must be [.., query blocks, key blocks]"},
                      write);
    }
  }
}

TEST(Misuse, OfTheBuildersNumbers) {
  const TensorView valid = tensor(memory.data(), {3, 4});
  const auto expect_sentence = [&](const Status& status, const char* message) {
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), message);
  };
  expect_sentence(local_block_mask(valid, -2, 0), "left is -2 and right 0: each must be 0 or more, or -1 for no bound");
  expect_sentence(local_block_mask(valid, 1, -5), "left is 1 and right -5: each must be 0 or more, or -1 for no bound");
  expect_sentence(strided_block_mask(valid, 0), "stride is 0: it must be 1 or more");
  expect_sentence(strided_block_mask(valid, -1), "stride is -1: it must be 1 or more");
}

}  // namespace
}  // namespace strobe::test
