// SPDX-License-Identifier: Apache-2.0
// The kernels of every option compile, without a GPU, with the tiles that the plan chooses. Tests on a GPU compile only
// what they run.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "gpu/kernels/sm90/compiled_kernels.h"
#include "gpu/plan/plan_problem.h"
#include "sm90/backward_plan.h"
#include "sm90/backward_variant.h"
#include "sm90/forward_variant.h"

namespace strobe::sm90 {
namespace {

using test::kH200;

struct Option {
  const char* name;
  void (*set)(AttentionProblem& problem);
};

std::ostream& operator<<(std::ostream& out, const Option& option) { return out << option.name; }

void set_bias(AttentionProblem& problem, DType dtype) {
  problem.modifiers.has_bias = problem.modifiers.bias_per_head = true;
  problem.modifiers.bias_dtype = dtype;
  problem.wants_d_bias = true;
}

const std::vector<Option> kOptions{
    {"alibi", [](AttentionProblem& p) { p.modifiers.has_alibi = true; }},
    {"alibi_deterministic", [](AttentionProblem& p) { p.modifiers.has_alibi = p.deterministic = true; }},
    {"alibi_packed", [](AttentionProblem& p) { p.modifiers.has_alibi = p.packed_q = p.packed_k = true; }},
    {"bias", [](AttentionProblem& p) { set_bias(p, p.dtype); }},
    {"bias_float32", [](AttentionProblem& p) { set_bias(p, DType::float32); }},
    {"chunk",
     [](AttentionProblem& p) {
       p.chunk = 1024;
       p.window.right = p.causal == CausalMask::none ? p.window.right : 0;
     }},
    {"dropout", [](AttentionProblem& p) { p.dropout = 0.1F; }},
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
    {"max_logits", [](AttentionProblem& p) { p.wants_max_logits = true; }},
    {"sink", [](AttentionProblem& p) { p.modifiers.has_sink = true; }},
    {"softcap", [](AttentionProblem& p) { p.softcap = 30.0F; }},
    {"softcap_bias",
     [](AttentionProblem& p) {
       p.softcap = 30.0F;
       set_bias(p, p.dtype);
     }},
    {"window", [](AttentionProblem& p) { p.window.left = 1023; }},
};

void set_eight_bit(AttentionProblem& problem, DType dtype) {
  problem.dtype = dtype;
  problem.eight_bit = {.q_rows = 1, .k_rows = 32, .v_rows = 1, .output = DType::bfloat16, .v_rotated = true};
}

void set_few_queries(AttentionProblem& problem, std::int64_t queries) {
  problem.heads_q = 4 * problem.heads_kv;
  problem.seqlen_q = queries;
  problem.total_q = problem.batch * queries;
  problem.has_seqused_k = true;
}

/// What forwards alone have.
const std::vector<Option> kForwardOptions{
    {"e4m3_alibi",
     [](AttentionProblem& p) {
       set_eight_bit(p, DType::float8_e4m3);
       p.modifiers.has_alibi = true;
     }},
    {"e4m3_blocks",
     [](AttentionProblem& p) {
       set_eight_bit(p, DType::float8_e4m3);
       p.eight_bit.k_rows = p.eight_bit.v_rows = 128;
       p.eight_bit.v_rotated = false;
       p.causal = CausalMask::bottom_right;
     }},
    {"int8_blocks",
     [](AttentionProblem& p) {
       set_eight_bit(p, DType::int8);
       p.eight_bit.v_rows = 128;
       p.has_seqused_k = true;
     }},
    {"e4m3_256",
     [](AttentionProblem& p) {
       set_eight_bit(p, DType::float8_e4m3);
       p.head_dim = p.head_dim_v = 256;
     }},
    {"int8_192_and_256",
     [](AttentionProblem& p) {
       set_eight_bit(p, DType::int8);
       p.head_dim = 192;
       p.head_dim_v = 256;
       p.causal = CausalMask::bottom_right;
     }},
    {"int8_packed",
     [](AttentionProblem& p) {
       set_eight_bit(p, DType::int8);
       p.packed_q = p.packed_k = true;
     }},
    {"int8_softcap",
     [](AttentionProblem& p) {
       set_eight_bit(p, DType::int8);
       p.softcap = 30.0F;
     }},
    {"int8_window_and_sink",
     [](AttentionProblem& p) {
       set_eight_bit(p, DType::int8);
       p.window.left = 1023;
       p.modifiers.has_sink = true;
     }},
    {"decode_softcap",
     [](AttentionProblem& p) {
       set_few_queries(p, 4);
       p.softcap = 30.0F;
     }},
    {"pages_alibi",
     [](AttentionProblem& p) {
       set_few_queries(p, 32);
       p.page_size = 12;
       p.modifiers.has_alibi = true;
     }},
    {"pages_of_blocks",
     [](AttentionProblem& p) {
       p.page_size = 256;
       p.causal = CausalMask::bottom_right;
     }},
    {"tree_mask_and_pages",
     [](AttentionProblem& p) {
       set_few_queries(p, 16);
       p.page_size = 16;
       p.has_tree_mask = true;
     }},
    {"wide", [](AttentionProblem& p) { p.head_dim = p.head_dim_v = 512; }},
    {"wide_split",
     [](AttentionProblem& p) {
       set_few_queries(p, 64);
       p.head_dim = 576;
       p.head_dim_v = 512;
     }},
    {"wide_pages",
     [](AttentionProblem& p) {
       set_few_queries(p, 64);
       p.head_dim = 576;
       p.head_dim_v = 512;
       p.page_size = 64;
     }},
    {"wide_rows_of_pages",
     [](AttentionProblem& p) {
       set_few_queries(p, 64);
       p.head_dim = 576;
       p.head_dim_v = 512;
       p.page_size = 1;
     }},
    {"wide_packed_softcap",
     [](AttentionProblem& p) {
       p.head_dim = 576;
       p.head_dim_v = 512;
       p.packed_q = p.packed_k = true;
       p.causal = CausalMask::bottom_right;
       p.softcap = 30.0F;
     }},
};

class Sm90OptionKernels : public CompiledKernels, public testing::WithParamInterface<Option> {
 protected:
  void expect_forward(const AttentionProblem& problem) const {
    const Result<forward::Config> config = forward_config(problem, kH200);
    ASSERT_TRUE(config.ok()) << config.status().message();
    expect_compiles(forward_variant(*config));
    if (const auto aligned = aligned_bias_config(problem, kH200, *config)) expect_compiles(forward_variant(*aligned));
  }

  void expect_backward(const AttentionProblem& problem) const {
    const Result<backward::Config> config = backward_config(problem, kH200);
    ASSERT_TRUE(config.ok()) << config.status().message();
    std::vector<backward::Config> configs{*config};
    if (const auto aligned = aligned_bias_config(problem, *config)) configs.push_back(*aligned);
    for (const backward::Config& each : configs) {
      expect_compiles(backward_variant(each));
      if (problem.wants_d_bias) expect_compiles(bias_gradient_variant(bias_gradient_config(each)));
    }
    if (problem.head_dim == 128 && takes_parts(problem, *config)) {
      backward::Config shared = *config;
      shared.shares_keys = true;
      expect_compiles(backward_variant(shared));
      expect_compiles(finish_keys_variant(shared));
    }
  }
};

TEST_P(Sm90OptionKernels, Compile) {
  for (const std::int64_t head_dim : {64, 128}) {
    AttentionProblem problem = test::problem_of(4096, head_dim, head_dim);
    problem.dtype = head_dim == 64 ? DType::float16 : DType::bfloat16;
    problem.causal = head_dim == 64 ? CausalMask::none : CausalMask::bottom_right;
    GetParam().set(problem);
    expect_forward(problem);
    problem.pass = Pass::backward;
    expect_backward(problem);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Sm90OptionKernels, testing::ValuesIn(kOptions),
                         [](const auto& one) { return std::string(one.param.name); });

class Sm90ForwardKernels : public Sm90OptionKernels {};

TEST_P(Sm90ForwardKernels, Compile) {
  AttentionProblem problem = test::problem_of(4096, 128, 128);
  GetParam().set(problem);
  expect_forward(problem);
}

INSTANTIATE_TEST_SUITE_P(All, Sm90ForwardKernels, testing::ValuesIn(kForwardOptions),
                         [](const auto& one) { return std::string(one.param.name); });

/// A field that registers or speed decide, where the plan says something of it, and its other value.
struct Choice {
  const char* name;
  void (*set)(AttentionProblem& problem);
  void (*change)(forward::Config& config);
};

std::ostream& operator<<(std::ostream& out, const Choice& choice) { return out << choice.name; }

const std::vector<Choice> kChoices{
    {"looks_ahead", [](AttentionProblem&) {}, [](forward::Config& c) { c.looks_ahead = !c.looks_ahead; }},
    {"late_values", [](AttentionProblem&) {}, [](forward::Config& c) { c.late_values = !c.late_values; }},
    {"late_values_with_dropout", [](AttentionProblem& p) { p.dropout = 0.1F; },
     [](forward::Config& c) { c.late_values = !c.late_values; }},
    {"masks_by_words", [](AttentionProblem& p) { p.causal = CausalMask::bottom_right; },
     [](forward::Config& c) { c.masks_by_words = !c.masks_by_words; }},
    {"masks_by_columns",
     [](AttentionProblem& p) {
       set_eight_bit(p, DType::int8);
       p.causal = CausalMask::bottom_right;
     },
     [](forward::Config& c) { c.masks_by_words = !c.masks_by_words; }},
    {"exponentials_ahead",
     [](AttentionProblem& p) {
       set_eight_bit(p, DType::int8);
       p.causal = CausalMask::bottom_right;
     },
     [](forward::Config& c) { c.exponentials_ahead = 0; }},
    {"caps_in_softmax", [](AttentionProblem& p) { p.softcap = 30.0F; },
     [](forward::Config& c) { c.caps_in_softmax = !c.caps_in_softmax; }},
    {"producer_warpgroups",
     [](AttentionProblem& p) {
       set_few_queries(p, 4);
       p.stored = {DType::int8, 1, 1};
       p.page_size = 16;
     },
     [](forward::Config& c) { c.producer_warpgroups = 3 - c.producer_warpgroups; }},
};

class Sm90ForwardChoices : public CompiledKernels, public testing::WithParamInterface<Choice> {};

TEST_P(Sm90ForwardChoices, AreExplainedAndMayBeOthers) {
  AttentionProblem problem = test::problem_of(4096, 128, 128);
  GetParam().set(problem);
  const Result<forward::Config> config = forward_config(problem, kH200);
  ASSERT_TRUE(config.ok()) << config.status().message();
  ForwardPlan plan = forward_plan(problem, kH200, *config);
  const std::string explained = explain(problem, plan);
  GetParam().change(plan.config);
  ASSERT_FALSE(plan.config == *config);
  EXPECT_NE(explain(problem, plan), explained);
  expect_compiles(forward_variant(plan.config));
}

INSTANTIATE_TEST_SUITE_P(All, Sm90ForwardChoices, testing::ValuesIn(kChoices),
                         [](const auto& one) { return std::string(one.param.name); });

class Sm90BackwardChoices : public CompiledKernels {
 protected:
  /// `variant`: of the kernel that has the field.
  void expect_is_explained_and_may_be_other(const AttentionProblem& problem, bool backward::Config::* field,
                                            runtime::Variant (*variant)(const backward::Config&)) {
    const Result<backward::Config> config = backward_config(problem, kH200);
    ASSERT_TRUE(config.ok()) << config.status().message();
    BackwardPlan plan = backward_plan(problem, kH200, *config);
    const std::string explained = explain(problem, plan);
    plan.config.*field = !(plan.config.*field);
    EXPECT_NE(explain(problem, plan), explained);
    expect_compiles(variant(plan.config));
  }
};

TEST_F(Sm90BackwardChoices, Alternates) {
  AttentionProblem problem = test::problem_of(4096, 64, 64);
  problem.causal = CausalMask::bottom_right;
  problem.deterministic = true;
  expect_is_explained_and_may_be_other(problem, &backward::Config::alternates, backward_variant);
}

TEST_F(Sm90BackwardChoices, DpAhead) {
  AttentionProblem problem = test::problem_of(4096, 64, 64);
  set_bias(problem, problem.dtype);
  expect_is_explained_and_may_be_other(problem, &backward::Config::dp_ahead, [](const backward::Config& config) {
    return bias_gradient_variant(bias_gradient_config(config));
  });
}

}  // namespace
}  // namespace strobe::sm90
