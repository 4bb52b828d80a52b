// SPDX-License-Identifier: Apache-2.0
// Forwards whose tiles are taken: masks that are texts, of which the device alone knows how many blocks they show.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "gpu/plan/device.h"
#include "text_cases.h"

namespace strobe::test {
namespace {

class GpuTakenTiles : public TextTest {
 protected:
  static constexpr std::int64_t kRows = 900;

  /// Documents, of which the second is hidden from itself: tiles of none, few and many blocks.
  static AttentionCase documents(std::int64_t head_dim) {
    AttentionCase attention = text_case(
        {"",
         "k <= q && document[batch][k] == document[batch][q] && document[batch][q] != 1 && k % 5 != 2",
         {CapturedTensor{.type = {.name = "document", .dtype = DType::int32, .rank = 2}, .shape = {2, kRows}}}},
        head_dim);
    attention.q.rows = attention.k.rows = kRows;
    return attention;
  }

  /// The sm80 family has a CTA for each tile.
  static bool takes_tiles(const DeviceCase& one) {
    return tested_family() == Family::sm80 ||
           one.explain_forward().find("each of which takes the next when it is done") != std::string::npos;
  }

  static void set_documents(DeviceCase& one) {
    GuardedTensor& document = one.tensors.captures[0];
    for (std::int64_t row = 0; row < kRows; ++row) {
      const std::int64_t long_one = row / 310;
      const std::int64_t short_one = row / 97;
      document.set(row, static_cast<double>(long_one));
      document.set(kRows + row, static_cast<double>(short_one));
    }
    one.copies.upload(document);
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuTakenTiles, kFamilies, family_name);

/// Which CTA computes a tile changes none of its bits.
TEST_P(GpuTakenTiles, OnAnyNumberOfMultiprocessorsHaveTheSameBits) {
  for (const std::int64_t head_dim : {64, 128}) {
    DeviceCase::Bits first;
    for (const int multiprocessors : {1, 3, 7, 132}) {
      SCOPED_TRACE(std::to_string(multiprocessors) + " multiprocessors, head_dim " + std::to_string(head_dim));
      const gpu::Override<gpu::DeviceShape> override(
          [=](gpu::DeviceShape& shape) { shape.multiprocessors = multiprocessors; });
      const AttentionCase attention = documents(head_dim);
      DeviceCase one(attention, device());
      ASSERT_TRUE(takes_tiles(one)) << one.explain_forward();
      set_documents(one);
      for (int round = 0; round < 3; ++round) {
        one.poison(one.tensors.forward_outputs());
        one.forward(stream());
        one.expect_forward_right();
        ASSERT_FALSE(HasFailure());
        const DeviceCase::Bits bits = one.bits(one.tensors.forward_outputs());
        if (first.empty()) first = bits;
        ASSERT_TRUE(bits == first) << "round " << round;
      }
    }
  }
}

/// Rows of tiles that a CTA took at any time are computed again where NaN of hidden keys may have reached them.
TEST_P(GpuTakenTiles, KeepNaNOfOtherDocumentsOut) {
  const TestedVariants variants(true);
  const gpu::Override<gpu::DeviceShape> override([](gpu::DeviceShape& shape) { shape.multiprocessors = 2; });
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t key : {3, 305, 641, 899}) {
      SCOPED_TRACE("NaN in key " + std::to_string(key));
      const AttentionCase attention = documents(head_dim);
      DeviceCase one(attention, device());
      set_documents(one);
      one.tensors.v.set(key * attention.heads_kv * attention.head_dim, std::numeric_limits<double>::quiet_NaN());
      one.copies.upload(one.tensors.v);
      one.forward(stream());
      one.expect_forward_right();
      ASSERT_FALSE(HasFailure());
    }
  }
}

}  // namespace
}  // namespace strobe::test
