// SPDX-License-Identifier: Apache-2.0
// The kernels of backwards of heads of more than 256 columns, and of forwards whose V is K's first columns, of qv and
// of rows in a format, too, compile, without a GPU, and keep nothing in local memory.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <utility>

#include "gpu/auxiliary/backward_variant.h"
#include "gpu/kernels/sm90/compiled_kernels.h"
#include "gpu/plan/plan_problem.h"
#include "gpu/plan/supported.h"
#include "gpu/variant/architecture.h"
#include "sm90/backward_plan.h"
#include "sm90/backward_variant.h"
#include "sm90/forward_plan.h"
#include "sm90/forward_variant.h"
#include "sm90/rows_in_format.h"
#include "strobe/row_format.h"

namespace strobe::sm90 {
namespace {

struct WideOption {
  const char* name;
  void (*set)(AttentionProblem& problem);
  bool in_float16 = false;
};

std::ostream& operator<<(std::ostream& out, const WideOption& option) { return out << option.name; }

const WideOption kWideKernelOptions[] = {
    {"full", [](AttentionProblem&) {}, true},
    {"causal", [](AttentionProblem& p) { p.causal = CausalMask::bottom_right; }},
    {"window", [](AttentionProblem& p) { p.window.left = p.window.right = 1023; }},
    {"chunk",
     [](AttentionProblem& p) {
       p.causal = CausalMask::bottom_right;
       p.chunk = 1024;
     }},
    {"softcap", [](AttentionProblem& p) { p.softcap = 30.0F; }},
    {"causal_softcap",
     [](AttentionProblem& p) {
       p.causal = CausalMask::bottom_right;
       p.softcap = 30.0F;
     }},
    {"alibi", [](AttentionProblem& p) { p.modifiers.has_alibi = true; }},
    {"dropout", [](AttentionProblem& p) { p.dropout = 0.1F; }},
    {"window_softcap_dropout",
     [](AttentionProblem& p) {
       p.window.left = p.window.right = 1023;
       p.softcap = 30.0F;
       p.dropout = 0.1F;
     }},
    {"negative_scale", [](AttentionProblem& p) { p.scale = -0.1F; }},
    {"packed", [](AttentionProblem& p) { p.packed_q = p.packed_k = true; }},
    {"packed_window_softcap_alibi_dropout",
     [](AttentionProblem& p) {
       p.packed_q = p.packed_k = true;
       p.window.left = p.window.right = 1023;
       p.softcap = 30.0F;
       p.modifiers.has_alibi = true;
       p.dropout = 0.1F;
     },
     true},
    {"log_length",
     [](AttentionProblem& p) {
       p.packed_q = p.packed_k = true;
       p.log_length = 100;
     }},
    {"offsets",
     [](AttentionProblem& p) {
       p.has_offsets = true;
       p.window.left = 1023;
     }},
    {"narrow_v",
     [](AttentionProblem& p) {
       p.head_dim = 320;
       p.head_dim_v = 256;
       p.causal = CausalMask::bottom_right;
     }},
};

class Sm90WideBackwardKernels : public CompiledKernels, public testing::WithParamInterface<WideOption> {};

// In float16 those that take the most registers.
TEST_P(Sm90WideBackwardKernels, CompileWithoutSpills) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    if (dtype == DType::float16 && !GetParam().in_float16) continue;
    AttentionProblem problem = test::problem_of(4096, 512, 512);
    problem.pass = Pass::backward;
    problem.dtype = dtype;
    GetParam().set(problem);
    const Result<backward::Config> config = backward_config(problem, test::kH100);
    ASSERT_TRUE(config.ok()) << config.status().message();
    const BackwardPlan plan = backward_plan(problem, test::kH100, *config);
    expect_compiles_without_spills(backward_variant(plan.config));
    expect_compiles_without_spills(query_gradient_variant(plan.query));
    expect_compiles_without_spills(gpu::prepare_variant(plan.prepare, gpu::kSm90a));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Sm90WideBackwardKernels, testing::ValuesIn(kWideKernelOptions),
                         [](const auto& one) { return std::string(one.param.name); });

constexpr WideOption kFewQueries[] = {
    {"few_queries", [](AttentionProblem& p) { p.seqlen_q = p.total_q = 1; }},
    {"used_few_queries",
     [](AttentionProblem& p) {
       p.seqlen_q = p.total_q = 1;
       p.has_seqused_k = true;
     }},
};

class Sm90WideForwardKernels : public CompiledKernels, public testing::WithParamInterface<WideOption> {};

// Where threads copy rows, one number of theirs goes through local memory once a block: registers for it would be the
// consumer's, which would read more of Q from shared memory.
TEST_P(Sm90WideForwardKernels, CompileWithoutSpills) {
  constexpr int kMostSpilledByCopies = 24;
  AttentionProblem problem = test::problem_of(4096, 512, 512);
  GetParam().set(problem);
  expect_compiles_without_spills(forward_variant(test::config_of(problem)));
  problem.page_size = 1;
  expect_compiles_with_spills_to(kMostSpilledByCopies, forward_variant(test::config_of(problem)));
}

INSTANTIATE_TEST_SUITE_P(All, Sm90WideForwardKernels, testing::ValuesIn(kWideKernelOptions),
                         [](const auto& one) { return std::string(one.param.name); });
INSTANTIATE_TEST_SUITE_P(Split, Sm90WideForwardKernels, testing::ValuesIn(kFewQueries),
                         [](const auto& one) { return std::string(one.param.name); });

const WideOption kLatentOptions[] = {
    {"prefill", [](AttentionProblem&) {}},
    {"few_queries", [](AttentionProblem& p) { p.seqlen_q = p.total_q = 1; }},
    {"used", [](AttentionProblem& p) { p.has_seqused_k = true; }},
    {"used_few_queries",
     [](AttentionProblem& p) {
       p.seqlen_q = p.total_q = 1;
       p.has_seqused_k = true;
     }},
    {"pages", [](AttentionProblem& p) { p.page_size = 64; }},
    {"pages_few_queries",
     [](AttentionProblem& p) {
       p.seqlen_q = p.total_q = 1;
       p.page_size = 64;
     }},
    {"packed_causal",
     [](AttentionProblem& p) {
       p.packed_q = p.packed_k = true;
       p.causal = CausalMask::bottom_right;
     }},
    {"pages_causal",
     [](AttentionProblem& p) {
       p.page_size = 64;
       p.causal = CausalMask::bottom_right;
     }},
    {"small_pages",
     [](AttentionProblem& p) {
       p.page_size = 1;
       p.causal = CausalMask::bottom_right;
     }},
};

class Sm90LatentKernels : public CompiledKernels, public testing::WithParamInterface<WideOption> {};

TEST_P(Sm90LatentKernels, CompileWithoutSpills) {
  for (const std::int64_t head_dim : {512, 576}) {
    AttentionProblem problem = test::problem_of(4096, head_dim, 512);
    problem.heads_q = 128;
    problem.heads_kv = 1;
    GetParam().set(problem);
    const auto config = shared_values_config(problem, test::config_of(problem));
    ASSERT_TRUE(config.has_value());
    EXPECT_EQ(config->schedule == Schedule::split, problem.seqlen_q == 1);
    expect_compiles_without_spills(forward_variant(*config));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Sm90LatentKernels, testing::ValuesIn(kLatentOptions),
                         [](const auto& one) { return std::string(one.param.name); });

AttentionProblem query_values_problem(const WideOption& option) {
  AttentionProblem problem = test::problem_of(4096, 64, 512);
  problem.heads_q = 128;
  problem.heads_kv = 1;
  problem.has_qv = true;
  option.set(problem);
  return gpu::with_joined_columns(problem);
}

// With V's columns loaded once.
TEST_P(Sm90LatentKernels, OfQueryValuesCompileWithoutSpills) {
  const AttentionProblem problem = query_values_problem(GetParam());
  const auto config = shared_values_config(problem, test::config_of(problem));
  ASSERT_TRUE(config.has_value());
  expect_compiles_without_spills(forward_variant(*config));
}

// As row-invariant calls have them, twice.
TEST_P(Sm90LatentKernels, OfRowInvariantQueryValuesCompileWithoutSpills) {
  AttentionProblem problem = query_values_problem(GetParam());
  problem.row_invariant = true;
  expect_compiles_without_spills(forward_variant(test::config_of(problem)));
}

class Sm90QueryValuesKernels : public CompiledKernels, public testing::WithParamInterface<WideOption> {};

TEST_P(Sm90QueryValuesKernels, CompileWithoutSpills) {
  AttentionProblem problem = query_values_problem(GetParam());
  expect_compiles_without_spills(forward_variant(test::config_of(problem)));
  problem.page_size = 1;
  expect_compiles_without_spills(forward_variant(test::config_of(problem)));
}

INSTANTIATE_TEST_SUITE_P(Both, Sm90QueryValuesKernels, testing::ValuesIn(kWideKernelOptions),
                         [](const auto& one) { return std::string(one.param.name); });

const WideOption kQueryValuesOptions[] = {
    {"bias", [](AttentionProblem& p) { p.modifiers.has_bias = true; }},
    {"sink", [](AttentionProblem& p) { p.modifiers.has_sink = true; }},
    {"blocks", [](AttentionProblem& p) { p.modifiers.block_size = 64; }},
};

INSTANTIATE_TEST_SUITE_P(Forward, Sm90QueryValuesKernels, testing::ValuesIn(kQueryValuesOptions),
                         [](const auto& one) { return std::string(one.param.name); });

struct NamedFormat {
  const char* name;
  RowFormat format;
};

std::ostream& operator<<(std::ostream& out, const NamedFormat& format) { return out << format.name; }

/// Parts that end within panels, groups of the fewest columns, and no alignment.
constexpr RowFormat kManyParts{.parts = {RowPart{.element = RowElement::int4,
                                                 .columns = 296,
                                                 .offset = 1,
                                                 .scale = RowScale::bfloat16,
                                                 .scale_columns = 8,
                                                 .scale_offset = 300},
                                         RowPart{.element = RowElement::float8_e4m3,
                                                 .columns = 24,
                                                 .offset = 150,
                                                 .scale = RowScale::float8_e8m0,
                                                 .scale_columns = 8,
                                                 .scale_offset = 400},
                                         RowPart{.element = RowElement::float16, .columns = 256, .offset = 500}},
                               .part_count = 3,
                               .head_dim_v = 512,
                               .row_bytes = 1100,
                               .alignment = 1};

const NamedFormat kFormats[] = {
    {"mla_bfloat16", mla_bfloat16_rows()},
    {"deepseek_v32", deepseek_v32_rows()},
    {"deepseek_v4", deepseek_v4_rows()},
    {"deepseek_v41", deepseek_v41_rows()},
    {"deepseek_v41_four_bit", deepseek_v41_four_bit_rows()},
    {"int8", eight_bit_rows(RowElement::int8, 576)},
    {"many_parts", kManyParts},
};

/// Of rows of 16 bits, and of a cache in int8 whose keys are split, a number of the producers' goes through local
/// memory once: registers for it would be the consumer's.
constexpr int kMostSpilledOfRows = 8;

class Sm90FormatRowKernels : public CompiledKernels, public testing::WithParamInterface<NamedFormat> {};

TEST_P(Sm90FormatRowKernels, Compile) {
  const RowFormat& format = GetParam().format;
  for (const auto& [queries, dtype] : {std::pair{1, DType::bfloat16}, std::pair{10'000, DType::float16}}) {
    for (const std::int64_t heads : {64, 128}) {
      AttentionProblem problem = test::problem_of_rows(queries, format.columns());
      problem.dtype = dtype;
      problem.heads_q = heads;
      const Result<forward::Config> config = rows_config(problem, test::kH200, format);
      ASSERT_TRUE(config.ok()) << config.status().message();
      EXPECT_EQ(config->schedule, queries == 1 ? Schedule::split : Schedule::rounds);
      EXPECT_EQ(config->in_pairs, heads == 128);
      expect_compiles_with_spills_to(kMostSpilledOfRows, forward_variant(*config));
    }
  }
}

/// Latent rows of a cache in 8 bits, in pages.
TEST_F(CompiledKernels, OfLatentRowsOfACache) {
  for (const DType stored : {DType::float8_e4m3, DType::int8}) {
    for (const auto& [queries, dtype] : {std::pair{1, DType::bfloat16}, std::pair{1'000, DType::float16}}) {
      for (const std::int64_t heads : {64, 128}) {
        AttentionProblem problem = test::problem_of_rows(queries, 576);
        problem.dtype = dtype;
        problem.heads_q = heads;
        problem.page_size = 64;
        problem.stored = {.dtype = stored, .k_rows = problem.seqlen_k, .v_rows = problem.seqlen_k};
        const auto config = cache_rows_config(problem, test::kH200);
        ASSERT_TRUE(config.has_value());
        EXPECT_EQ(config->schedule, queries == 1 ? Schedule::split : Schedule::rounds);
        expect_compiles_with_spills_to(kMostSpilledOfRows, forward_variant(*config));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Sm90FormatRowKernels, testing::ValuesIn(kFormats),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace strobe::sm90
