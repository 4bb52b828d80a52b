// SPDX-License-Identifier: Apache-2.0
#include "kernels/sequence/query_blocks.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <vector>

namespace strobe::sequence {
namespace {

int ceil_blocks(int rows, int block_m) { return (rows + block_m - 1) / block_m; }

// Sequences of any length, empty ones among them, and rows behind the last: no two share a block, and the last one's
// blocks end before query_blocks().
TEST(QueryBlocks, PackedSequencesShareNoBlock) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int end) { return std::uniform_int_distribution<int>(0, end - 1)(random); };
    const int block_m = 64 << below(2);
    const int sequences = 1 + below(12);
    const int longest = 1 + below(400);
    std::vector<int> cu_seqlens{0};
    for (int i = 0; i < sequences; ++i) cu_seqlens.push_back(cu_seqlens.back() + below(longest));
    const int total_q = cu_seqlens.back() + 100 * below(3);

    SequenceParams params{};
    params.cu_seqlens_q = cu_seqlens.data();
    params.sequences = sequences;
    int free = 0;  // the first block that no sequence before has
    for (int i = 0; i < sequences; ++i) {
      const int first = first_query_block(params, i, block_m);
      EXPECT_GE(first, free);
      EXPECT_LE(first, free + 1);
      const auto index = static_cast<std::size_t>(i);
      free = first + ceil_blocks(cu_seqlens[index + 1] - cu_seqlens[index], block_m);
    }
    EXPECT_LE(free, query_blocks(true, sequences, longest, total_q, block_m));
  }
}

TEST(QueryBlocks, BatchedSequencesLieEndToEnd) {
  SequenceParams params{};
  params.sequences = 3;
  params.seqlen_q = 65;
  EXPECT_EQ(first_query_block(params, 2, 64), 4);
  EXPECT_EQ(query_blocks(false, 3, 65, 3 * 65, 64), 6);
}

TEST(QueryBlocks, AreNoneWithoutSequencesAndOneEachWithoutQueries) {
  EXPECT_EQ(query_blocks(true, 0, 0, 1000, 64), 0);
  EXPECT_EQ(query_blocks(false, 0, 10, 0, 64), 0);
  EXPECT_EQ(query_blocks(false, 5, 0, 0, 64), 5);
}

}  // namespace
}  // namespace strobe::sequence
