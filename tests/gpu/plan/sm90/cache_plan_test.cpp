// SPDX-License-Identifier: Apache-2.0
// How keys in pages are read: what the plan decides, and the arithmetic of both loaders.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "gpu/call/override.h"
#include "gpu/plan/plan_problem.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/tile/panel.h"
#include "kernels/sm90/tile/tensor_map.h"
#include "sm90/family.h"
#include "sm90/few_rows.h"
#include "sm90/pages.h"

namespace strobe::sm90 {
namespace {

using forward::KeySource;
using test::config_of;
using test::plan_of;
using test::problem_of;

AttentionProblem paged_problem(std::int64_t page_size, std::int64_t head_dim, std::int64_t queries) {
  AttentionProblem problem = problem_of(4096 / page_size * page_size, head_dim, head_dim);
  problem.seqlen_q = queries;
  problem.total_q = problem.batch * queries;
  problem.page_size = page_size;
  problem.has_seqused_k = true;
  return problem;
}

TEST(Sm90CachePlan, ReadsBoxesWhereAPageIsWholeAtomsOfTheSwizzle) {
  for (std::int64_t page_size = 1; page_size <= 257; ++page_size) {
    for (const std::int64_t head_dim : {64, 96, 128, 192, 256}) {
      for (const std::int64_t queries : {1, 16, 128, 4096}) {
        const AttentionProblem problem = paged_problem(page_size, head_dim, queries);
        const forward::Config config = config_of(problem);
        EXPECT_TRUE(config.rule.varlen);
        const bool holds_blocks = page_size % config.block_n == 0 && config.schedule != Schedule::split;
        EXPECT_EQ(config.keys, page_size % 8 != 0 ? KeySource::page_rows
                               : holds_blocks     ? KeySource::page_blocks
                                                  : KeySource::page_boxes)
            << page_size;
        EXPECT_LE(smem_plan(config).total_bytes, config.ctas_per_sm == 2 ? kMaxSmemBytesOfTwo : kMaxSmemBytes);
        if (config.keys != KeySource::page_boxes) continue;
        const int rows = page_box_rows(problem, config);
        EXPECT_EQ(config.block_n % rows, 0);
        EXPECT_EQ(page_size % rows, 0);
        EXPECT_LE(config.block_n / rows, 32) << "a lane brings a box";
      }
    }
  }
}

TEST(Sm90CachePlan, TilesAreThoseOfUsedLengths) {
  for (const std::int64_t queries : {1, 16, 128, 4096}) {
    AttentionProblem problem = paged_problem(16, 128, queries);
    problem.causal = CausalMask::bottom_right;
    forward::Config config = config_of(problem);
    problem.page_size = 0;
    config.keys = KeySource::tensor;
    config.pages_ahead = false;
    EXPECT_EQ(config, config_of(problem));
  }
  const AttentionProblem full = paged_problem(64, 128, 4096);
  EXPECT_EQ(config_of(full).block_n, 128);  // two pages, not parts of them
}

TEST(Sm90CachePlan, FewRowsAreThoseOfSm80) {
  AttentionProblem problem = paged_problem(16, 128, 4);  // each head of queries has its own keys
  EXPECT_TRUE(is_decode(problem));
  for (const std::int64_t page_size : {8, 24, 40}) {
    EXPECT_FALSE(is_decode(paged_problem(page_size, 128, 4))) << page_size;
  }
  for (const std::int64_t page_size : {64, 256}) {
    EXPECT_TRUE(is_decode(paged_problem(page_size, 64, 4))) << page_size;
  }
  EXPECT_FALSE(is_decode(paged_problem(16, 64, 4)));
  problem.page_size = 0;
  EXPECT_TRUE(is_decode(problem));
  const auto changed = [&](auto change) {
    AttentionProblem other = problem;
    change(other);
    return is_decode(other);
  };
  EXPECT_FALSE(changed([](AttentionProblem& p) { p.seqlen_q = 17; }));
  EXPECT_FALSE(changed([](AttentionProblem& p) { p.dropout = 0.5F; }));
  EXPECT_FALSE(changed([](AttentionProblem& p) { p.row_invariant = true; }));
  EXPECT_FALSE(changed([](AttentionProblem& p) { p.has_tree_mask = true; }));
  const auto store = [](AttentionProblem& p) { p.stored = {.dtype = DType::int8, .k_rows = 1, .v_rows = 1}; };
  EXPECT_TRUE(changed(store));
  EXPECT_FALSE(changed([&](AttentionProblem& p) { store(p), p.head_dim = 72; }));
  EXPECT_TRUE(changed([&](AttentionProblem& p) { store(p), p.page_size = 16; }));
  EXPECT_TRUE(changed([&](AttentionProblem& p) { store(p), p.seqlen_k = 100; }));
  EXPECT_FALSE(changed([](AttentionProblem& p) { p.seqlen_k = 511; }));
  EXPECT_TRUE(changed([](AttentionProblem& p) { p.page_size = 1; }));
  EXPECT_FALSE(changed([](AttentionProblem& p) { p.page_size = 1, p.head_dim = 64; }));
  // Packed sequences of as many queries on average, where none may have very many.
  const auto pack = [](AttentionProblem& p, std::int64_t most) { p.packed_q = true, p.batch = 8, p.seqlen_q = most; };
  EXPECT_TRUE(changed([&](AttentionProblem& p) { pack(p, 64), p.total_q = 64; }));
  EXPECT_FALSE(changed([&](AttentionProblem& p) { pack(p, 64), p.total_q = 160; }));
  EXPECT_FALSE(changed([&](AttentionProblem& p) { pack(p, 65), p.total_q = 65; }));
}

TEST(Sm90CachePlan, PaddingAndEntries) {
  AttentionProblem problem = paged_problem(16, 128, 1);
  problem.has_leftpad_k = true;
  EXPECT_EQ(config_of(problem).keys, KeySource::page_rows);
  EXPECT_TRUE(config_of(problem).rule.leftpad);
  problem.page_size = 0;
  problem.has_seqused_k = false;
  problem.has_cache_batch_idx = true;
  EXPECT_EQ(config_of(problem).keys, KeySource::tensor);
  EXPECT_TRUE(config_of(problem).rule.varlen);
  EXPECT_TRUE(config_of(problem).entries);
  EXPECT_FALSE(config_of(problem_of(4096, 128, 128)).entries);
}

TEST(Sm90CachePlan, StoredKeysThatTmaDoesNotBringAreAnotherFamilys) {
  AttentionProblem problem = paged_problem(16, 128, 1);
  problem.stored = {.dtype = DType::int8, .k_rows = problem.seqlen_k, .v_rows = problem.seqlen_k};
  EXPECT_EQ(config_of(problem).keys, KeySource::page_boxes);
  EXPECT_FALSE(reads_stored_page_rows(problem));
  problem.has_leftpad_k = true;
  EXPECT_TRUE(reads_stored_page_rows(problem));
  EXPECT_EQ(forward_config(problem, test::kH200).status().message(),
            "k is int8 in pages of 16 rows with leftpad_k: the sm90 kernels do not read it row by row");
  problem.has_leftpad_k = false;
  problem.page_size = 1;
  EXPECT_TRUE(reads_stored_page_rows(problem));
  EXPECT_EQ(forward_config(problem, test::kH200).status().message(),
            "k is int8 in pages of 1 rows: the sm90 kernels do not read it row by row");
  EXPECT_EQ(family().prefers_later(problem), "keys in 8 bits are read row by row");
}

TEST(Sm90CachePlan, FewRowsPreferAnotherFamily) {
  AttentionProblem problem = test::problem_of(4096, 128, 128);
  EXPECT_EQ(family().prefers_later(problem), "");
  problem.seqlen_q = 1;
  problem.total_q = problem.batch;
  EXPECT_EQ(family().prefers_later(problem), "there are few query rows");
  const gpu::Override<forward::Config> test_of_these_kernels([](forward::Config&) {});
  EXPECT_EQ(family().prefers_later(problem), "");
}

TEST(Sm90CachePlan, SaysHowPagesAreRead) {
  const auto says = [](std::int64_t page_size) {
    const AttentionProblem problem = paged_problem(page_size, 128, 1);
    return explain(problem, plan_of(problem));
  };
  EXPECT_NE(says(16).find("pages         of 16 rows, read by TMA, 16 rows at a time; the table a block ahead\n"),
            std::string::npos)
      << says(16);
  EXPECT_NE(says(1).find("pages         of 1 rows, read row by row; the table a block ahead\n"), std::string::npos)
      << says(1);
}

// An entry (row, offset) of a page's map is row `row + offset - page_size` of the page, where row < page_size.
TEST(Sm90PageBoxes, CoverTheRowsInUseAndNoOther) {
  for (const int page_size : {8, 16, 24, 64}) {
    for (int used = 1; used <= 3 * page_size; ++used) {
      for (int row = 0; row < used; row += 8) {
        const int in_page = row % page_size;
        const RowStart start = page_start(row, in_page, used, page_size);
        EXPECT_LE(start.offset, page_size);  // the axis has page_size + 1 entries
        for (int i = 0; i < 8; ++i) {
          const int entry = start.row + in_page + i;
          EXPECT_EQ(entry < page_size, row + i < used);
          if (entry < page_size) {
            EXPECT_EQ(entry + start.offset - page_size, in_page + i);
          }
        }
      }
    }
  }
}

TEST(Sm90PageRows, LieInTheSwizzle) {
  std::set<int> places;
  for (int row = 0; row < 128; ++row) {
    for (int piece = 0; piece < kPanelPieces; ++piece) {
      const int at = piece_offset(row, piece);
      // Bits 4 to 6 of the address, exclusive or with bits 7 to 9: CUDA's 128-byte swizzle.
      const int plain = row * kPanelRowBytes + piece * kPieceBytes;
      EXPECT_EQ(at, plain ^ (plain >> 7 & 7) << 4);
      places.insert(at);
    }
  }
  EXPECT_EQ(places.size(), 128U * kPanelPieces);
}

}  // namespace
}  // namespace strobe::sm90
