// SPDX-License-Identifier: Apache-2.0
#include "sm80/forward_plan.h"
#include "gpu/variant/fields.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpu/plan/devices.h"
#include "gpu/plan/plan_problem.h"
#include "kernels/score/modifiers/dropout.h"
#include "kernels/sm80/forward/smem.h"
#include "plan_options.h"
#include "sm80/forward_variant.h"
#include "sm80/supported.h"

namespace strobe::sm80 {
namespace {

using test::kDevices;
using test::problem_of;

constexpr DeviceShape kA100 = kDevices[0].shape;

forward::Config config_of(const AttentionProblem& problem, const DeviceShape& shape = kA100) {
  return *forward_config(problem, shape);
}

TEST(Sm80ForwardPlan, FitsEveryDevice) {
  for (const auto& [name, shape] : kDevices) {
    for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
      for (const std::int64_t head_dim_v : {std::int64_t{64}, std::int64_t{128}, std::int64_t{256}, head_dim}) {
        for (const AttentionProblem& problem : test::problems_with_options(problem_of(1000, head_dim, head_dim_v))) {
          const forward::Config config = config_of(problem, shape);
          SCOPED_TRACE(std::string(name) + "\n" + explain(problem, shape, forward_plan(problem, shape, config)));
          EXPECT_GE(config.head_dim, head_dim);
          EXPECT_GE(config.head_dim_v, head_dim_v);
          EXPECT_LE(smem_plan(config).total_bytes, shared_bytes_of(shape, config.ctas_per_sm));
          EXPECT_LE(threads_per_block(config) * config.ctas_per_sm, 1024);
          if (config.rule.dropout) {
            EXPECT_EQ(config.block_n % kDropoutColumns, 0);
          }
          if (config.rule.block_mask != 0) {
            EXPECT_EQ(config.rule.block_mask % config.block_n, 0);
            EXPECT_LE(block_m(config), 2 * config.rule.block_mask);
            EXPECT_EQ(config.rule.block_mask % config.rows_per_warp, 0);
          }
        }
      }
    }
  }
}

/// Calls of wide heads: of few queries and of many, with each option that they have.
std::vector<AttentionProblem> wide_problems() {
  std::vector<AttentionProblem> problems;
  for (const auto& [head_dim, head_dim_v] :
       {std::pair{264, 264}, {320, 256}, {384, 384}, {512, 512}, {576, 512}, {8, 512}, {512, 8}, {576, 8}}) {
    for (AttentionProblem problem : test::problems_with_options(problem_of(1000, head_dim, head_dim_v))) {
      for (const std::int64_t seqlen_q : {1, 30, 60, 1000}) {
        for (const std::int64_t page_size : {0, 16}) {
          problem.seqlen_q = seqlen_q;
          problem.total_q = problem.batch * seqlen_q;
          problem.page_size = problem.packed_k ? 0 : page_size;
          problems.push_back(problem);
        }
      }
    }
  }
  return problems;
}

TEST(Sm80ForwardPlan, WideHeadsFitEveryDevice) {
  for (const auto& [name, shape] : kDevices) {
    for (const AttentionProblem& problem : wide_problems()) {
      const forward::Config config = config_of(problem, shape);
      SCOPED_TRACE(std::string(name) + "\n" + explain(problem, shape, forward_plan(problem, shape, config)));
      EXPECT_TRUE(fields_agree(config));
      EXPECT_TRUE(sliced(config));
      EXPECT_GE(config.head_dim, problem.head_dim);
      EXPECT_GE(config.head_dim_v, problem.head_dim_v);
      EXPECT_LE(smem_plan(config).total_bytes, shared_bytes_of(shape, config.ctas_per_sm));
      if (config.rule.dropout) {
        EXPECT_EQ(warp_keys(config) % kDropoutColumns, 0);
      }
      if (config.rule.block_mask != 0) {
        EXPECT_EQ(config.rule.block_mask % config.block_n, 0);
        EXPECT_LE(block_m(config), 2 * config.rule.block_mask);
      }
      if (HasFailure()) return;
    }
  }
}

// Warps share rows, of which a CTA has as many as with narrow heads, on GPUs of little shared memory, too.
TEST(Sm80ForwardPlan, WideHeadsHaveTilesOf64Rows) {
  for (const auto& [name, shape] : kDevices) {
    for (const std::int64_t head_dim : {512, 576}) {
      const forward::Config config = config_of(problem_of(4096, head_dim, 512), shape);
      EXPECT_EQ(block_m(config), 64) << name;
      EXPECT_EQ(config.warps, 8) << name;
    }
  }
}

TEST(Sm80ForwardPlan, FloatsFitEveryDevice) {
  for (const auto& [name, shape] : kDevices) {
    for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
      for (const std::int64_t head_dim_v : {std::int64_t{64}, std::int64_t{128}}) {
        for (AttentionProblem problem : test::problems_with_options(problem_of(1000, head_dim, head_dim_v))) {
          for (const std::int64_t seqlen_q : {1, 32, 64, 1000}) {
            problem.dtype = DType::float32;
            problem.seqlen_q = problem.total_q = seqlen_q;
            if (!check_supported(problem).ok()) continue;  // dropout with a bias or window
            const forward::Config config = config_of(problem, shape);
            SCOPED_TRACE(std::string(name) + "\n" + explain(problem, shape, forward_plan(problem, shape, config)));
            EXPECT_LE(smem_plan(config).total_bytes, shared_bytes_of(shape, config.ctas_per_sm));
            EXPECT_FALSE(config.q_in_registers);
            if (config.rule.dropout) {
              EXPECT_EQ(config.block_n % kDropoutColumns, 0);
            }
            if (config.rule.block_mask != 0) {
              EXPECT_EQ(config.rule.block_mask % config.block_n, 0);
              EXPECT_LE(block_m(config), 2 * config.rule.block_mask);
            }
          }
        }
      }
    }
  }
}

/// The tile that a CTA computes, as kernels/sm80/forward/tile_work.h finds it.
std::tuple<int, int> tile_of(const forward::TileOrder& order, int index) {
  const int section = order.by_section.quotient(index);
  const int within = order.by_section.remainder(index);
  const Divisor by_heads = section < order.full_sections ? order.by_section_heads : order.by_last;
  return {section * order.section_heads + by_heads.remainder(within), order.m_tiles - 1 - by_heads.quotient(within)};
}

TEST(Sm80ForwardPlan, ComputesEveryTileOnce) {
  for (const auto& [name, shape] : kDevices) {
    for (const std::int64_t seqlen : {1, 128, 1000, 5000}) {
      for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
        for (const bool packed : {false, true}) {
          AttentionProblem problem = problem_of(seqlen, 128, 128);
          problem.causal = causal;
          problem.batch = 5;
          problem.packed_q = problem.packed_k = packed;
          const ForwardPlan plan = forward_plan(problem, shape, config_of(problem, shape));
          const int heads = static_cast<int>((problem.batch + (packed ? 1 : 0)) * problem.heads_q);
          EXPECT_GE(plan.order.m_tiles * block_m(plan.config), seqlen);
          std::set<std::tuple<int, int>> seen;
          for (int i = 0; i < plan.tiles; ++i) {
            const auto [head, m] = tile_of(plan.order, i);
            EXPECT_TRUE(head >= 0 && head < heads && m >= 0 && m < plan.order.m_tiles);
            seen.insert({head, m});
          }
          EXPECT_EQ(static_cast<int>(seen.size()), plan.tiles);
          EXPECT_EQ(plan.tiles, heads * plan.order.m_tiles);
        }
      }
    }
  }
}

TEST(Sm80ForwardPlan, TakesTheLongestTilesOfCausalHeadsFirst) {
  AttentionProblem problem = problem_of(4096, 128, 128);
  problem.causal = CausalMask::bottom_right;
  const ForwardPlan plan = forward_plan(problem, kA100, config_of(problem));
  ASSERT_GT(plan.order.section_heads, 1);
  const int section = plan.order.section_heads * plan.order.m_tiles;
  for (int i = 1; i < section; ++i) {
    EXPECT_LE(std::get<1>(tile_of(plan.order, i)), std::get<1>(tile_of(plan.order, i - 1)));
  }
}

TEST(Sm80ForwardPlan, NothingToComputeIsNoTiles) {
  for (auto change : {+[](AttentionProblem& p) {
                        p.batch = 0;
                        p.total_q = p.total_k = 0;
                      },
                      +[](AttentionProblem& p) { p.heads_q = p.heads_kv = 0; },
                      +[](AttentionProblem& p) { p.seqlen_q = p.total_q = 0; }}) {
    for (const auto& [seqlen, row_invariant] : {std::pair{64, false}, {30000, false}, {30000, true}}) {
      AttentionProblem problem = problem_of(seqlen, 64, 64);
      problem.row_invariant = row_invariant;
      change(problem);
      const ForwardPlan plan = forward_plan(problem, kA100, config_of(problem));
      EXPECT_EQ(plan.tiles, 0);
      EXPECT_EQ(workspace_bytes(plan), 0U);
    }
  }
}

TEST(Sm80ForwardPlan, NamesWhatTheEngineLacks) {
  const auto message = [](auto change) {
    AttentionProblem problem = problem_of(64, 64, 64);
    change(problem);
    return std::string(forward_config(problem, kA100).status().message());
  };
  EXPECT_EQ(message([](AttentionProblem& p) {
              p.dtype = DType::float32;
              p.head_dim_v = 136;
            }),
            "head_dim_v is 136 and q is float32: the sm80 kernels take up to 128");
  EXPECT_EQ(message([](AttentionProblem& p) {
              p.dtype = DType::float32;
              p.stored = {DType::int8, 1, 1};
            }),
            "k is int8 and q is float32: the gpu engine takes it beside float16 and bfloat16");
  EXPECT_EQ(
      message([](AttentionProblem& p) {
        p.dtype = DType::float32;
        p.head_dim_v = 128;
        p.dropout = 0.1F;
        p.chunk = 32;
      }),
      "dropout with a bias, window or chunk, head_dim_v 128 and q in float32: the sm80 kernels take up to 64 then");
  EXPECT_EQ(message([](AttentionProblem& p) {
              p.dtype = DType::float32;
              p.head_dim = 264;
            }),
            "head_dim is 264: the gpu engine takes multiples of 8 up to 256, the cpu engine all up to 576");
  EXPECT_EQ(message([](AttentionProblem& p) {
              p.head_dim = 320;
              p.stored = {.dtype = DType::int8, .k_rows = 32, .v_rows = 32};
            }),
            "head_dim is 320 and head_dim_v 64: above 256 columns the sm80 kernels have no 8-bit inputs; the cpu "
            "engine has");
  EXPECT_EQ(message([](AttentionProblem& p) {
              p.dtype = DType::int8;
              p.eight_bit.q_rows = 1;
            }),
            "q is int8: the sm80 kernels have no 8-bit inputs; the sm90 kernels and the cpu engine have");
  EXPECT_EQ(message([](AttentionProblem& p) {
              p.row_invariant = true;
              p.dropout = 0.5F;
            }),
            "row_invariant with dropout is not supported by the gpu engine; the cpu engine supports it");
  EXPECT_EQ(message([](AttentionProblem& p) {
              p.row_invariant = true;
              p.batch = 256;
              p.seqlen_k = 131072;
              p.stored = {.dtype = DType::int8, .k_rows = 1, .v_rows = 1};
            }),
            "row_invariant with k in int8 converts it to 16 bits first on the gpu engine: 256 sequences of 131072 keys "
            "would take more than 8 GiB; the cpu engine converts nothing");
  EXPECT_EQ(message([](AttentionProblem& p) {
              p.row_invariant = true;
              p.seqlen_k = p.total_k = 0;
              p.stored = {.dtype = DType::int8, .k_rows = 1, .v_rows = 1};
            }),
            "");
}

TEST(Sm80ForwardVariant, IsCompiledForTheFirstMinorOfItsMajor) {
  const forward::Config config{.head_dim = 64, .head_dim_v = 64};
  for (const auto& [name, shape] : kDevices) {
    const runtime::Variant variant = forward_variant(config, shape);
    EXPECT_EQ(variant.architecture, "sm_" + std::to_string(shape.compute_major) + "0");
    EXPECT_EQ(
        variant.expression,
        std::string("strobe::sm80::forward::kernel<strobe::sm80::forward::Config{.rule = ") +
            gpu::cpp_text(config.rule) +
            ", .head_dim = 64, .head_dim_v = 64, .warps = 4, .key_groups = 1, .column_warps = 1, "
            ".rows_per_warp = 32, .block_n = 64, .stages = 2, .slice_columns = 0, .q_in_registers = false, "
            ".ctas_per_sm = 2, "
            ".packed_heads = 1, .schedule = strobe::Schedule::rounds, .segment_blocks = 0, .pages = false, .entries = "
            "false, .stored = strobe::Element::bf16, .stored_operands = false, .row_scales = false, "
            ".chunks_at_once = 2, .copies_first = false, "
            ".pages_ahead = false, .page_rows = 1, .keeps_work = false, .debug = false}>");
  }
}

}  // namespace
}  // namespace strobe::sm80
