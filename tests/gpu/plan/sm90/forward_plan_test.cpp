// SPDX-License-Identifier: Apache-2.0
#include "sm90/forward_plan.h"

#include <gtest/gtest.h>

#include <string>

#include "gpu/params/score.h"
#include "gpu/plan/plan_problem.h"
#include "kernels/score/modifiers/dropout.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/tile/panel.h"
#include "sm90/forward_variant.h"

namespace strobe::sm90 {
namespace {

using test::config_of;
using test::kH200;
using test::plan_of;
using test::problem_of;

TEST(Sm90ForwardPlan, FitsForEveryHeadDim) {
  for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (std::int64_t head_dim_v = 8; head_dim_v <= 256; head_dim_v += 8) {
      for (const std::int64_t seqlen : {1, 64, 128, 512, 16384}) {
        for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
          AttentionProblem problem = problem_of(seqlen, head_dim, head_dim_v);
          problem.causal = causal;
          const auto chosen = forward_config(problem, kH200);
          ASSERT_TRUE(chosen.ok()) << chosen.status().message();
          const forward::Config& config = *chosen;
          const ForwardPlan plan = forward_plan(problem, kH200, config);
          EXPECT_GE(config.head_dim, head_dim);
          EXPECT_GE(config.head_dim_v, head_dim_v);
          EXPECT_LE(smem_plan(config).total_bytes, config.ctas_per_sm == 2 ? kMaxSmemBytesOfTwo : kMaxSmemBytes)
              << explain(problem, plan);
          EXPECT_LE(threads_per_block(config), 1024);
          EXPECT_GE(plan.tiles.m_tiles * block_m(config), seqlen);
          EXPECT_EQ(plan.list != nullptr, config.schedule == Schedule::dealt);
        }
      }
    }
  }
}

TEST(Sm90ForwardPlan, NothingToComputeIsNoTiles) {
  for (auto change : {+[](AttentionProblem& p) {
                        p.batch = 0;
                        p.total_q = p.total_k = 0;
                      },
                      +[](AttentionProblem& p) { p.heads_q = p.heads_kv = 0; },
                      +[](AttentionProblem& p) { p.seqlen_q = p.total_q = 0; }}) {
    AttentionProblem problem = problem_of(64, 64, 64);
    change(problem);
    EXPECT_EQ(plan_of(problem).tiles.tiles, 0);
  }
}

TEST(ScoreParams, WindowsAndCausalMasksMakeOneBand) {
  AttentionProblem problem = problem_of(64, 64, 64);
  EXPECT_FALSE(is_masked(gpu::score_rule(problem)));
  problem.window = {5, 7};
  EXPECT_EQ(gpu::visibility_params(problem).window_left, 5);
  EXPECT_EQ(gpu::visibility_params(problem).window_right, 7);
  EXPECT_EQ(gpu::visibility_params(problem).bottom_right, 1);
  problem.causal = CausalMask::top_left;
  EXPECT_EQ(gpu::visibility_params(problem).window_right, 0);
  EXPECT_EQ(gpu::visibility_params(problem).bottom_right, 0);
  problem.window = {};
  EXPECT_TRUE(gpu::score_rule(problem).mask_right);
  EXPECT_FALSE(gpu::score_rule(problem).mask_left);
}

TEST(Sm90ForwardPlan, NamesWhatItLacks) {
  const auto rejection = [](auto change) {
    AttentionProblem problem = problem_of(64, 64, 64);
    change(problem);
    return std::string(forward_config(problem, kH200).status().message());
  };
  EXPECT_EQ(rejection([](AttentionProblem& p) { p.dtype = DType::float32; }),
            "q is float32: the sm90 kernels compute in float16 and bfloat16; the sm80 kernels take it");
  EXPECT_EQ(rejection([](AttentionProblem& p) { p.head_dim = 36; }),
            "head_dim is 36: the gpu engine takes multiples of 8 up to 576, the cpu engine all up to 576");
  EXPECT_EQ(rejection([](AttentionProblem& p) { p.head_dim_v = 500; }),
            "head_dim_v is 500: the gpu engine takes multiples of 8 up to 512, the cpu engine all up to 512");
  EXPECT_EQ(rejection([](AttentionProblem& p) {
              p.row_invariant = true;
              p.dropout = 0.1F;
            }),
            "row_invariant with dropout is not supported by the gpu engine; the cpu engine supports it");
  EXPECT_EQ(rejection([](AttentionProblem& p) {
              p.row_invariant = true;
              p.modifiers.has_bias = true;
            }),
            "row_invariant with a bias is not supported by the gpu engine; the cpu engine supports it");
  EXPECT_EQ(rejection([](AttentionProblem& p) {
              p.row_invariant = true;
              p.modifiers.block_size = 64;
            }),
            "row_invariant with a block mask is not supported by the gpu engine; the cpu engine supports it");
}

TEST(Sm90ForwardPlan, OptionsBecomeFieldsOfTheVariant) {
  AttentionProblem problem = problem_of(64, 64, 64);
  EXPECT_FALSE(config_of(problem).rule.scale_first);
  problem.scale = -0.5F;
  EXPECT_TRUE(config_of(problem).rule.scale_first);
  problem.softcap = 30.0F;  // which is what multiplies then
  EXPECT_FALSE(config_of(problem).rule.scale_first);
  problem.modifiers.has_alibi = problem.modifiers.has_sink = true;
  EXPECT_TRUE(config_of(problem).rule.alibi && config_of(problem).rule.sink);
  EXPECT_FALSE(config_of(problem).rule.scale_first);  // slopes are divided by the scale
  problem.softcap = 0.0F;
  EXPECT_TRUE(config_of(problem).rule.scale_first);
  EXPECT_FALSE(config_of(problem).rule.max_logits);
  problem.wants_max_logits = true;
  EXPECT_TRUE(config_of(problem).rule.max_logits);
}

TEST(Sm90ForwardPlan, TakesBiasDropoutAndBlockMasksInWholeTiles) {
  for (const std::int64_t head_dim : {32, 64, 96, 128, 192, 256}) {
    for (const std::int64_t block_size : {0, 64, 128}) {
      for (const bool bias : {false, true}) {
        AttentionProblem problem = problem_of(8192, head_dim, head_dim);
        problem.heads_kv = 2;
        problem.modifiers.has_bias = bias;
        problem.modifiers.block_size = block_size;
        problem.dropout = 0.1F;
        const forward::Config config = config_of(problem);
        EXPECT_TRUE(config.rule.dropout);
        EXPECT_EQ(config.rule.bias && config.rule.bias_float32, bias);
        EXPECT_EQ(config.rule.block_mask, block_size);
        EXPECT_EQ(config.block_n % kDropoutColumns, 0);
        EXPECT_LE(smem_plan(config).total_bytes, kMaxSmemBytes);
        if (block_size == 0) continue;
        EXPECT_EQ(block_size % config.block_n, 0);
        EXPECT_EQ(config.packed_heads, 1);
        // Warpgroups of one row of the mask see the same blocks; others go from block to block on their own.
        EXPECT_TRUE(block_m(config) <= block_size || config.loop == forward::Loop::serial);
      }
    }
  }
}

TEST(ScoreParams, BiasIsReadInPairsWhereTheyAreAligned) {
  AttentionProblem problem = problem_of(64, 64, 64);
  problem.modifiers.has_bias = problem.modifiers.bias_per_head = true;
  problem.modifiers.bias_dtype = DType::bfloat16;
  alignas(16) static unsigned short numbers[8];
  ConstTensorView bias;
  bias.data = numbers;
  bias.dtype = DType::bfloat16;
  bias.rank = 4;
  bias.shape = {1, 8, 64, 64};
  bias.strides = {0, 64 * 64, 64, 1};
  const auto params = [&] { return gpu::score_params(problem, {.bias = bias}, {}).bias; };
  EXPECT_EQ(params().in_pairs, 1);
  EXPECT_EQ(params().batch_stride, 0);
  EXPECT_EQ(params().head_stride, 64 * 64);
  bias.strides[2] = 65;
  EXPECT_EQ(params().in_pairs, 0);
  bias.strides[2] = 64;
  bias.data = numbers + 1;
  EXPECT_EQ(params().in_pairs, 0);
}

TEST(ScoreParams, DropoutsStateIsTheCallsOrLiesOnTheDevice) {
  AttentionProblem problem = problem_of(64, 64, 64);
  problem.dropout = 0.5F;
  const DropoutParams given = gpu::score_params(problem, {}, {.seed = 7, .offset = 9}).dropout;
  EXPECT_EQ(given.state, nullptr);
  EXPECT_EQ(given.key.key.low, 7U);
  EXPECT_EQ(given.key.offset, 9U);
  EXPECT_EQ(given.keep_factor, 2.0F);
  const std::uint64_t state[] = {7, 9};
  EXPECT_EQ(static_cast<const void*>(gpu::score_params(problem, {}, {.on_device = state}).dropout.state), state);
}

TEST(Sm90ForwardPlan, ChunksBoundBothSides) {
  AttentionProblem problem = problem_of(1000, 64, 64);
  problem.chunk = 256;
  problem.window.left = 9;
  const ScoreRule rule = gpu::score_rule(problem);
  const VisibilityParams params = gpu::visibility_params(problem);
  EXPECT_TRUE(rule.mask_left && rule.mask_right);
  EXPECT_EQ(params.window_left, 9);
  EXPECT_GE(params.window_right, 1000);
  EXPECT_EQ(params.chunk, 256);
  EXPECT_TRUE(config_of(problem).rule.chunked);
}

TEST(Sm90ForwardPlan, FewQueriesOfAGroupShareTiles) {
  AttentionProblem problem = problem_of(4096, 128, 128);
  problem.heads_q = 24;
  problem.heads_kv = 2;
  EXPECT_EQ(config_of(problem).packed_heads, 1);
  problem.seqlen_q = 20;
  problem.total_q = problem.batch * problem.seqlen_q;
  const ForwardPlan plan = plan_of(problem);
  EXPECT_EQ(plan.config.packed_heads, 4);  // of the twelve: the largest power of two that divides them
  EXPECT_EQ(plan.tiles.tiles, problem.batch * problem.heads_q / 4);
  EXPECT_NE(explain(problem, plan).find("4 query heads of a key head share a tile"), std::string::npos);
}

TEST(Sm90ForwardPlan, OneQueryIsNeverMaskedOnTheRight) {
  AttentionProblem problem = problem_of(1, 128, 128);
  problem.seqlen_k = 4096;
  problem.causal = CausalMask::bottom_right;
  EXPECT_FALSE(config_of(problem).rule.mask_right);
  EXPECT_EQ(config_of(problem).consumer_warpgroups, 1);
  problem.has_seqused_q = true;  // where it is not in use, nothing is computed
  EXPECT_FALSE(config_of(problem).rule.mask_right);
  problem.packed_q = problem.packed_k = true;
  EXPECT_FALSE(config_of(problem).rule.mask_right);
  problem.causal = CausalMask::top_left;
  EXPECT_TRUE(config_of(problem).rule.mask_right);
}

TEST(Sm90ForwardPlan, LengthsOnTheDeviceAreSortedThere) {
  AttentionProblem problem = problem_of(4096, 128, 128);
  EXPECT_EQ(config_of(problem).schedule, Schedule::rounds);
  problem.packed_q = problem.packed_k = true;
  EXPECT_EQ(config_of(problem).schedule, Schedule::sorted);
  problem.batch = kMaxTableSequences + 1;
  EXPECT_EQ(config_of(problem).schedule, Schedule::rounds);
}

TEST(Sm90ForwardPlan, ShortSequencesTakeTwoCtas) {
  for (const std::int64_t head_dim : {64, 128}) {
    AttentionProblem problem = problem_of(64, head_dim, head_dim);
    problem.batch = 256;
    for (const bool packed : {false, true}) {
      problem.packed_q = problem.packed_k = packed;
      const ForwardPlan plan = plan_of(problem);
      EXPECT_EQ(plan.workers, 2 * kH200.multiprocessors);
      EXPECT_LE(smem_plan(plan.config).total_bytes, kMaxSmemBytesOfTwo);
      EXPECT_NE(explain(problem, plan).find("2 on a multiprocessor"), std::string::npos);
    }
    problem.packed_q = problem.packed_k = false;
    problem.seqlen_k = problem.total_k = 4096;  // reading keys is what takes the time
    EXPECT_EQ(plan_of(problem).config.ctas_per_sm, 1);
  }
  EXPECT_EQ(config_of(problem_of(64, 256, 256)).ctas_per_sm, 1);  // no room in shared memory
  AttentionProblem dropped = problem_of(64, 128, 128);
  dropped.dropout = 0.1F;
  EXPECT_EQ(config_of(dropped).ctas_per_sm, 1);  // dropout has tiles of its own
}

TEST(Sm90ForwardPlan, ChunksTakeTwoWarpgroups) {
  AttentionProblem problem = problem_of(16384, 128, 128);
  problem.causal = CausalMask::bottom_right;
  EXPECT_EQ(config_of(problem).consumer_warpgroups, 3);
  problem.chunk = 8192;
  EXPECT_EQ(config_of(problem).consumer_warpgroups, 2);
}

TEST(Sm90ForwardPlan, TilesOfOneLengthAreNotDealt) {
  AttentionProblem problem = problem_of(128, 128, 128);
  problem.causal = CausalMask::bottom_right;
  EXPECT_EQ(config_of(problem).schedule, Schedule::rounds);
  problem.seqlen_q = problem.seqlen_k = 129;
  EXPECT_EQ(config_of(problem).schedule, Schedule::dealt);
}

TEST(Sm90ForwardPlan, TilesOfWindowsAndChunksAreDealt) {
  AttentionProblem problem = problem_of(4096, 128, 128);
  problem.causal = CausalMask::bottom_right;
  problem.window.left = 1023;
  EXPECT_EQ(config_of(problem).schedule, Schedule::dealt);
  problem.window.left = -1;
  problem.chunk = 2048;
  EXPECT_EQ(config_of(problem).schedule, Schedule::dealt);
}

TEST(Sm90ForwardPlan, NarrowWindowsTakeTwoCtas) {
  AttentionProblem problem = problem_of(4096, 128, 128);
  problem.causal = CausalMask::bottom_right;
  problem.window.left = 127;
  EXPECT_EQ(config_of(problem).ctas_per_sm, 2);
  EXPECT_EQ(config_of(problem).schedule, Schedule::rounds);
  problem.window.left = 1023;
  EXPECT_EQ(config_of(problem).ctas_per_sm, 1);
}

TEST(Sm90ForwardPlan, BlockMasksTakeTwoCtasWhereTheyFit) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t block_size : {64, 128}) {
      AttentionProblem problem = problem_of(4096, head_dim, head_dim);
      problem.modifiers.block_size = block_size;
      const forward::Config config = config_of(problem);
      EXPECT_EQ(config.ctas_per_sm, head_dim == 128 && block_size == 128 ? 1 : 2);
      const bool narrow = head_dim == 64 && block_size == 128;  // whose four warpgroups hide the softmax
      EXPECT_EQ(config.loop, narrow ? forward::Loop::serial : forward::Loop::pipelined);
      EXPECT_LE(smem_plan(config).total_bytes, config.ctas_per_sm == 2 ? kMaxSmemBytesOfTwo : kMaxSmemBytes);
    }
  }
}

// What a kernel does beside its tiles is the planner's choice, and explain() says it.
TEST(Sm90ForwardPlan, SaysWhatConsumersDo) {
  const auto explained = [](auto change) {
    AttentionProblem problem = problem_of(4096, 64, 64);
    problem.causal = CausalMask::bottom_right;
    change(problem);
    return explain(problem, plan_of(problem));
  };
  const auto says = [](const std::string& text, std::string_view words) {
    return text.find(words) != std::string::npos;
  };
  const std::string causal = explained([](AttentionProblem&) {});
  EXPECT_TRUE(says(causal, "pipeline      4 stages of K and V, 2 of Q, 1 of O\n")) << causal;
  EXPECT_TRUE(says(causal, "loop          a block's softmax under the P V before\n")) << causal;
  EXPECT_TRUE(says(causal, "registers     of a thread: 32 of producers, 112 of consumers\n")) << causal;
  const std::string wide = explained([](AttentionProblem& p) {
    p.head_dim = p.head_dim_v = 128;
    p.batch = 32;  // tiles enough to fill a device
    p.total_q = p.total_k = p.batch * p.seqlen_q;
  });
  EXPECT_TRUE(says(wide, "P V before; the next tile is found ahead\n")) << wide;
  EXPECT_TRUE(says(wide, "registers     of a thread: 32 of producers, 160 of consumers\n")) << wide;
  const std::string window = explained([](AttentionProblem& p) { p.window.left = 511; });
  EXPECT_TRUE(says(window, "each warpgroup stops at the first block that its own rows see")) << window;
  const std::string alibi = explained([](AttentionProblem& p) { p.modifiers.has_alibi = true; });
  EXPECT_TRUE(says(alibi, "ALiBi relative to each row's diagonal")) << alibi;
  const std::string capped = explained([](AttentionProblem& p) { p.softcap = 30.0F; });
  EXPECT_TRUE(says(capped, "softcap and softmax in one where all keys are visible")) << capped;
  const std::string bits = explained([](AttentionProblem& p) {
    p.dtype = DType::float8_e4m3;
    p.eight_bit = {.q_rows = 1, .k_rows = 32, .v_rows = 32};
  });
  EXPECT_TRUE(says(bits, "one step after another; a tile's numbers are found again for each block")) << bits;
}

TEST(Sm90ForwardPlan, SequencesThatShareABiasAreNeighbours) {
  AttentionProblem problem = problem_of(512, 128, 128);
  EXPECT_EQ(plan_of(problem).tiles.by_inner.quotient(static_cast<int>(problem.heads_q)), 1);
  problem.modifiers.has_bias = true;
  EXPECT_EQ(plan_of(problem).tiles.by_inner.quotient(static_cast<int>(problem.batch)), 1);
}

TEST(Divisor, DividesAsTheProcessorDoes) {
  for (const int divisor : {1, 2, 3, 5, 7, 12, 64, 127, 641, 65536, 1'000'003, 2'147'483'647}) {
    const Divisor by = Divisor::of(divisor);
    for (const int value : {0, 1, divisor - 1, divisor, 2'147'483'646, 2'147'483'647}) {
      EXPECT_EQ(by.quotient(value), value / divisor) << value << " by " << divisor;
      EXPECT_EQ(by.remainder(value), value % divisor) << value << " by " << divisor;
    }
  }
}

// A tree mask takes registers, not the choices of masks along the diagonal.
TEST(Sm90ForwardPlan, TreeMasks) {
  AttentionProblem problem = problem_of(4096, 128, 128);
  problem.heads_kv = 2;
  problem.seqlen_q = 16;
  problem.total_q = problem.batch * problem.seqlen_q;
  const forward::Config plain = config_of(problem);
  problem.has_tree_mask = true;
  const forward::Config config = config_of(problem);
  EXPECT_TRUE(config.rule.tree_mask);
  EXPECT_TRUE(is_masked(config.rule));
  EXPECT_EQ(config.packed_heads, 4);
  EXPECT_EQ(config.schedule, plain.schedule);
  EXPECT_EQ(config.block_n, 112);
  EXPECT_NE(explain(problem, plan_of(problem)).find("tree mask     a bit for each"), std::string::npos);
}

}  // namespace
}  // namespace strobe::sm90
