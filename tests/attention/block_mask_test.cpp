// SPDX-License-Identifier: Apache-2.0
// Block masks: the usual patterns, and that a hidden block is neither seen nor computed.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "every_dtype.h"
#include "flat_scores.h"
#include "strobe/block_mask.h"

namespace strobe::test {
namespace {

// A mask as rows of 0 and 1.
template <class Build>
std::vector<std::string> pattern(std::int64_t rows, std::int64_t columns, const Build& build) {
  std::vector<std::uint8_t> mask(rows * columns, 9);
  const Status status = build(tensor(mask.data(), {rows, columns}));
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<std::string> lines(rows);
  for (std::int64_t index = 0; index < rows * columns; ++index) {
    lines[index / columns] += static_cast<char>('0' + mask[index]);
  }
  return lines;
}

using Lines = std::vector<std::string>;

TEST(BlockMaskBuilders, LocalIsABandAroundTheDiagonal) {
  const auto local = [](std::int64_t left, std::int64_t right) {
    return [=](const TensorView& mask) { return local_block_mask(mask, left, right); };
  };
  EXPECT_EQ(pattern(4, 4, local(1, 0)), (Lines{"1000", "1100", "0110", "0011"}));
  EXPECT_EQ(pattern(4, 4, local(0, 2)), (Lines{"1110", "0111", "0011", "0001"}));
  EXPECT_EQ(pattern(3, 3, local(-1, 0)), (Lines{"100", "110", "111"}));
  EXPECT_EQ(pattern(3, 3, local(-1, -1)), (Lines{"111", "111", "111"}));
  EXPECT_EQ(pattern(2, 4, local(1, 0)), (Lines{"0110", "0011"}));  // the last rows align with the last columns
  EXPECT_EQ(pattern(4, 2, local(0, 0)), (Lines{"00", "00", "10", "01"}));
}

TEST(BlockMaskBuilders, StridedSkipsBetween) {
  const auto strided = [](std::int64_t stride) {
    return [=](const TensorView& mask) { return strided_block_mask(mask, stride); };
  };
  EXPECT_EQ(pattern(4, 4, strided(2)), (Lines{"1010", "0101", "1010", "0101"}));
  EXPECT_EQ(pattern(4, 4, strided(3)), (Lines{"1001", "0100", "0010", "1001"}));
  EXPECT_EQ(pattern(2, 2, strided(1)), (Lines{"11", "11"}));
  EXPECT_EQ(pattern(1, 4, strided(2)), (Lines{"0101"}));
}

TEST(BlockMaskBuilders, ButterflyDiffersInOneBit) {
  EXPECT_EQ(pattern(8, 8, butterfly_block_mask),
            (Lines{"11101000", "11010100", "10110010", "01110001", "10001110", "01001101", "00101011", "00010111"}));
  EXPECT_EQ(pattern(2, 4, butterfly_block_mask), (Lines{"1011", "0111"}));
}

TEST(BlockMaskBuilders, FillEveryBatchEntryAndHead) {
  std::vector<std::uint8_t> mask(2 * 3 * 2 * 2, 9);
  ASSERT_TRUE(local_block_mask(tensor(mask.data(), {2, 3, 2, 2}), 0, 0).ok());
  for (std::size_t index = 0; index < mask.size(); ++index) EXPECT_EQ(mask[index], index % 4 == 0 || index % 4 == 3);
}

TEST(BlockMask, HidesWholeBlocks) {
  AttentionCase attention = flat_case(100, 150);
  attention.blocks = {.size = 64};
  FlatScores flat(attention);
  const int visible[] = {1, 0, 1, 0, 0, 0};  // query block 0 sees key blocks 0 and 2; query block 1 sees nothing
  for (std::int64_t index = 0; index < 6; ++index) flat.tensors.block_mask.set(index, visible[index]);
  flat.run_forward();
  for (std::int64_t key = 0; key < 150; ++key) {
    const bool seen = key < 64 || key >= 128;
    EXPECT_NEAR(flat.probability(63, key), seen ? 1.0 / 86.0 : 0.0, 1e-7) << key;
    EXPECT_EQ(flat.probability(64, key), 0.0) << key;
  }
  EXPECT_NEAR(flat.lse(63), std::log(86.0), 1e-5);
  EXPECT_EQ(flat.lse(64), -std::numeric_limits<double>::infinity());
}

// Any value but 0 shows a block.
TEST(BlockMask, IsTrueForEveryValueButZero) {
  AttentionCase attention = flat_case(1, 65);
  attention.blocks = {.size = 64};
  FlatScores flat(attention);
  flat.tensors.block_mask.set(0, 0.0);
  flat.tensors.block_mask.set(1, 128.0);
  flat.run_forward();
  EXPECT_NEAR(flat.probability(0, 64), 1.0, 1e-7);
}

double fastest_forward(const CaseTensors& tensors, const AttentionCase& attention) {
  double fastest = 1e9;
  for (int repetition = 0; repetition < 7; ++repetition) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(forward(tensors.forward_arguments(), attention.options, {.threads = 1}).ok());
    fastest = std::min(fastest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return fastest;
}

// A sixteenth of the blocks: far below half of the time, on the busiest machine.
TEST(BlockMask, CostsWhatItShows) {
  AttentionCase attention{.head_dim = 64, .head_dim_v = 64, .q = {.rows = 2048}, .k = {.rows = 2048}};
  attention.blocks = {.size = 128, .visible = 1.0};
  CaseTensors tensors(attention);
  const double all = fastest_forward(tensors, attention);
  ASSERT_TRUE(local_block_mask(tensors.block_mask.view(), 0, 0).ok());
  EXPECT_LT(fastest_forward(tensors, attention), 0.5 * all);
}

using BlockMasks = EveryDType;

INSTANTIATE_TEST_SUITE_P(DTypes, BlockMasks, every_dtype(), dtype_name);

TEST_P(BlockMasks, OfEverySparsity) {
  for (const std::int64_t size : {64, 128}) {
    for (const double visible : {0.0, 0.1, 0.5, 1.0}) {
      expect_matches(square(200, 24), [&](AttentionCase& c) {
        c.k.rows = 330;
        c.blocks = {.size = size, .sharing = {.per_batch = true, .per_head = true}, .visible = visible};
      });
    }
  }
}

TEST_P(BlockMasks, WithEveryOtherMask) {
  for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right, CausalMask::top_left}) {
    expect_matches(square(200, 24), [&](AttentionCase& c) {
      c.heads_q = 4;
      c.options = {.causal = causal, .window = {100, 60}, .chunk = 150};
      c.blocks = {.size = 64, .sharing = {.per_head = true}};
    });
  }
}

TEST_P(BlockMasks, OfPackedSequences) {
  expect_matches(square(0, 32), [](AttentionCase& c) {
    c.batch = 3;
    c.q = {.rows = 330, .cu_seqlens = {0, 100, 101, 330}};
    c.k = {.rows = 400, .cu_seqlens = {0, 50, 250, 400}, .max_seqlen = 200};
    c.blocks = {.size = 64, .sharing = {.per_batch = true}};
    c.options.causal = CausalMask::bottom_right;
  });
}

}  // namespace
}  // namespace strobe::test
