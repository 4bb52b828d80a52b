// SPDX-License-Identifier: Apache-2.0
// The JVP: against the float64 reference under every option, against finite differences, and what it rejects.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "c_call.h"
#include "jvp_matches.h"
#include "misuse.h"
#include "random_case.h"
#include "reference/plain/call.h"
#include "reference/tensors.h"
#include "seeds.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kSeqlen = 150;  // several tiles in both directions

AttentionCase plain(DType dtype) {
  AttentionCase attention{.dtype = dtype, .heads_q = 4, .heads_kv = 2, .head_dim = 24, .head_dim_v = 40};
  attention.q.rows = kSeqlen;
  attention.k.rows = kSeqlen;
  attention.seed = 3;
  return attention;
}

std::vector<AttentionCase> masks(DType dtype) {
  std::vector<AttentionCase> cases(8, plain(dtype));
  cases[1].options.causal = CausalMask::bottom_right;
  cases[1].q.rows = 170;  // the first queries see no key
  cases[2].options = {.causal = CausalMask::top_left, .softcap = 2.0F};
  cases[3].options = {.scale = -0.3F, .window = {10, 5}};
  cases[4].q = {.rows = kSeqlen, .cu_seqlens = {0, 70, 140}};
  cases[4].k = {.rows = kSeqlen, .cu_seqlens = {0, 80, 150}, .seqused = {80, 41}};
  cases[4].batch = 2;
  cases[5].options = {.scale = 0.0F, .chunk = 40, .dropout = 0.3F};
  cases[6].blocks = {.size = 64, .sharing = {.per_head = true}};
  cases[7].options = {.causal = CausalMask::bottom_right, .softcap = 30.0F, .dropout = 0.1F};
  cases[7].alibi = Alibi::per_head;
  cases[7].bias = {.dtype = dtype, .hidden = 0.2};
  cases[7].has_sink = true;
  return cases;
}

class EveryDTypeJvp : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(DTypes, EveryDTypeJvp, testing::Values(DType::float32, DType::float16, DType::bfloat16),
                         [](const testing::TestParamInfo<DType>& dtype) { return std::string(name_of(dtype.param)); });

TEST_P(EveryDTypeJvp, MatchesTheReferenceUnderEveryOption) {
  for (const AttentionCase& attention : masks(GetParam())) expect_jvp_matches_reference(attention);
}

TEST_P(EveryDTypeJvp, IsOfTheTangentsThatAreGivenAndWritesTheOutputsThatAre) {
  for (int given = 0; given < 16; ++given) {
    SCOPED_TRACE(given);
    JvpTensors tensors(plain(GetParam()));
    JvpArguments arguments = tensors.arguments();
    if ((given & 1) != 0) arguments.q_tangent = {};
    if ((given & 2) != 0) arguments.k_tangent = {};
    if ((given & 4) != 0) arguments.v_tangent = {};
    const bool without_o = (given & 8) != 0;
    const bool without_lse = (given & 1) != 0;
    const bool without_lse_tangent = (given & 2) == 0;
    if (without_o) arguments.o = {};
    if (without_lse) arguments.lse = {};
    if (without_lse_tangent) arguments.lse_tangent = {};
    expect_jvp_matches_reference(tensors, arguments, {});
    EXPECT_EQ(tensors.inputs.o.untouched(), without_o);
    EXPECT_EQ(tensors.inputs.lse.untouched(), without_lse);
    EXPECT_EQ(tensors.lse_tangent.untouched(), without_lse_tangent);
  }
}

TEST_P(EveryDTypeJvp, NaNOfAHiddenKeyReachesNothingAndThatOfAVisibleOneItsQueries) {
  for (AttentionCase attention : masks(GetParam())) {
    if (attention.bias) attention.bias->hidden = 0.0;  // -inf hides no key: its weight is 0, and 0 * NaN is NaN
    for (GuardedTensor JvpTensors::* tangent : {&JvpTensors::k_tangent, &JvpTensors::v_tangent}) {
      for (const std::int64_t key : {0, 99}) {
        SCOPED_TRACE(describe(attention));
        JvpTensors tensors(attention);
        (tensors.*tangent).set(key * attention.heads_kv * 24 + 5, kNaN);
        expect_jvp_matches_reference(tensors, tensors.arguments(), attention.options);
      }
    }
  }
}

TEST_P(EveryDTypeJvp, HasNoKeysOrNoQueries) {
  for (const auto& [rows_q, rows_k] : {std::pair{0, 7}, std::pair{7, 0}, std::pair{0, 0}}) {
    AttentionCase attention = plain(GetParam());
    attention.q.rows = rows_q;
    attention.k.rows = rows_k;
    JvpTensors tensors(attention);
    expect_jvp_matches_reference(tensors, tensors.arguments(), {});
    for (std::int64_t i = 0; i < tensors.o_tangent.size(); ++i) EXPECT_EQ(tensors.o_tangent.get(i), 0.0);
    for (std::int64_t i = 0; i < tensors.lse_tangent.size(); ++i) EXPECT_EQ(tensors.lse_tangent.get(i), 0.0);
    for (std::int64_t i = 0; i < tensors.inputs.lse.size(); ++i) EXPECT_EQ(tensors.inputs.lse.get(i), -kInfinity);
  }
}

TEST(Jvp, MatchesTheReferenceOnRandomConfigurations) {
  for (const std::uint64_t seed : chosen_seeds(200)) {
    const AttentionCase attention =
        random_case(seed, {.longest = 150, .tree_mask = false, .qv = false, .text = false, .normalize = false});
    expect_jvp_matches_reference(attention);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(Jvp, IsTheSameFromC) {
  for (const std::uint64_t seed : chosen_seeds(50)) {
    const AttentionCase attention =
        random_case(seed, {.longest = 80, .tree_mask = false, .qv = false, .text = false, .normalize = false});
    JvpTensors cxx(attention);
    JvpTensors c(attention);
    const Status status = jvp(cxx.arguments(), attention.options);
    const Status from_c = call_from_c(c.arguments(), attention.options);
    ASSERT_EQ(from_c.message(), status.message()) << "seed " << seed;
    ASSERT_EQ(from_c.code(), status.code()) << "seed " << seed;
    const auto from = cxx.outputs();
    const auto to = c.outputs();
    for (std::size_t i = 0; i < from.size(); ++i) {
      EXPECT_EQ(to[i]->element_bytes(), from[i]->element_bytes()) << "seed " << seed << ", output " << i;
    }
    if (HasFailure()) return;
  }
}

TEST(Jvp, HasTheSameBitsOnAnyNumberOfThreads) {
  AttentionCase attention = plain(DType::float32);
  attention.options.causal = CausalMask::bottom_right;
  JvpTensors one(attention);
  JvpTensors three(attention);
  ASSERT_TRUE(jvp(one.arguments(), attention.options, {.threads = 1}).ok());
  ASSERT_TRUE(jvp(three.arguments(), attention.options, {.threads = 3}).ok());
  EXPECT_EQ(one.o_tangent.element_bytes(), three.o_tangent.element_bytes());
  EXPECT_EQ(one.lse_tangent.element_bytes(), three.lse_tangent.element_bytes());
}

// The references against what they differentiate: the forward's, a step of h to either side.
TEST(Jvp, ReferencesAgreeWithFiniteDifferences) {
  constexpr double kStep = 0x1p-10;  // which float32 inputs take without rounding: they are multiples of 2^-8
  for (AttentionCase attention : masks(DType::float32)) {
    SCOPED_TRACE(describe(attention));
    JvpTensors tensors(attention);
    const auto round = [](GuardedTensor& tensor) {
      for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, std::nearbyint(tensor.get(i) * 256.0) / 256.0);
    };
    CaseTensors& inputs = tensors.inputs;
    const std::pair<GuardedTensor*, GuardedTensor*> moved[] = {
        {&inputs.q, &tensors.q_tangent}, {&inputs.k, &tensors.k_tangent}, {&inputs.v, &tensors.v_tangent}};
    for (const auto& [tensor, tangent] : moved) {
      round(*tensor);
      round(*tangent);
    }
    const JvpArguments arguments = tensors.arguments();
    const reference::plain::Tangents plain = reference::plain::jvp(arguments, attention.options);
    const reference::JvpResult bounded = reference::jvp(arguments, attention.options, {}, 1);
    const auto forward_at = [&](double step) {
      for (const auto& [tensor, tangent] : moved) {
        for (std::int64_t i = 0; i < tensor->size(); ++i) tensor->set(i, tensor->get(i) + step * tangent->get(i));
      }
      return reference::plain::forward(inputs.forward_arguments(), attention.options);
    };
    const reference::plain::Output after = forward_at(kStep);
    const reference::plain::Output before = forward_at(-2.0 * kStep);
    for (std::size_t i = 0; i < plain.o.size(); ++i) {
      EXPECT_NEAR(plain.o[i], (after.o[i] - before.o[i]) / (2.0 * kStep), 1e-3) << i;
      EXPECT_NEAR(plain.o[i], bounded.o_tangent.value[i], 1e-11) << i;
    }
    for (std::size_t i = 0; i < plain.lse.size(); ++i) {
      EXPECT_NEAR(plain.lse[i], bounded.lse_tangent.value[i], 1e-11) << i;
      if (std::isinf(after.lse[i])) continue;  // sees no key
      EXPECT_NEAR(plain.lse[i], (after.lse[i] - before.lse[i]) / (2.0 * kStep), 1e-3) << i;
    }
  }
}

struct JvpMisuse {
  std::string name;
  std::function<void(JvpArguments&, AttentionOptions&)> change;
  StatusCode code;
  std::string message;
};

std::vector<JvpMisuse> jvp_misuses() {
  using A = JvpArguments;
  using O = AttentionOptions;
  return {
      {"EightBitQueries", [](A& a, O&) { a.q.dtype = DType::int8; }, kUnsupported,
       "q is int8: no engine has the JVP of 8-bit inputs"},
      {"EightBitKeys", [](A& a, O&) { a.k.dtype = DType::float8_e4m3; }, kUnsupported,
       "k is float8_e4m3: no engine has the JVP of 8-bit inputs"},
      {"Cache", [](A& a, O&) { a.sequences.leftpad_k = lengths_of({0, 0}); }, kUnsupported,
       "leftpad_k is given: no engine has the JVP of a key-value cache"},
      {"NoOutput", [](A& a, O&) { a.o_tangent = {}; }, kInvalid,
       "o_tangent is missing: give a tensor [batch, seqlen_q, heads_q, head_dim_v]"},
      {"RankOfTangent", [](A& a, O&) { a.q_tangent.rank = 3; }, kInvalid,
       "q_tangent has rank 3: it must have rank 4 as q"},
      {"ShapeOfTangent", [](A& a, O&) { a.k_tangent.shape[1] = 4; }, kInvalid,
       "k_tangent has shape [2, 4, 2, 8]: it must be [2, 5, 2, 8] as k"},
      {"DTypeOfTangent", [](A& a, O&) { a.v_tangent.dtype = DType::float16; }, kInvalid,
       "v_tangent is float16: it must be float32"},
      {"DeviceOfTangent", [](A& a, O&) { a.v_tangent.device = {DeviceType::cuda, 0}; }, kInvalid,
       "v_tangent is on cuda:0 and q on cpu: all tensors must be on one device"},
      {"NullTangent", [](A& a, O&) { a.q_tangent.data = nullptr; }, kInvalid,
       "q_tangent has shape [2, 3, 4, 8] and a null pointer"},
      {"ShapeOfOutput", [](A& a, O&) { a.o_tangent.shape[3] = 8; }, kInvalid,
       "o_tangent has shape [2, 3, 4, 8]: it must be [2, 3, 4, 6] [batch, seqlen_q, heads_q, head_dim_v]"},
      {"ShapeOfLse", [](A& a, O&) { a.lse_tangent.shape[2] = 4; }, kInvalid,
       "lse_tangent has shape [2, 4, 4]: it must be [2, 4, 3] [batch, heads_q, seqlen_q]"},
      {"Overlap", [](A& a, O&) { a.o_tangent = a.o; }, kInvalid,
       "o overlaps o_tangent: outputs must not share memory with any other tensor"},
      {"Softcap", [](A&, O& o) { o.softcap = -1.0F; }, kInvalid, "softcap is -1: it must be positive, or 0 for none"},
      {"QueriesWithoutKeys", [](A& a, O&) { a.k.rank = 0; }, kInvalid,
       "k is missing: give a tensor [batch, seqlen_k, heads_kv, head_dim]"},
  };
}

TEST(Jvp, RejectsWhatContradictsItsContractAndWritesNothing) {
  for (const JvpMisuse& misuse : jvp_misuses()) {
    SCOPED_TRACE(misuse.name);
    JvpTensors tensors(valid_case());
    JvpArguments arguments = tensors.arguments();
    AttentionOptions options;
    misuse.change(arguments, options);
    const Status status = jvp(arguments, options);
    EXPECT_EQ(status.code(), misuse.code);
    EXPECT_EQ(status.message(), misuse.message);
    for (const GuardedTensor* output : tensors.outputs()) EXPECT_TRUE(output->untouched());
  }
}

TEST(Jvp, APlanRunsThePassThatItWasMadeFor) {
  JvpTensors tensors(valid_case());
  const Result<Plan> plan = make_plan(tensors.arguments());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->run(tensors.inputs.forward_arguments()).message(),
            "the plan was made for another pass, other shapes or dtypes: make a new plan");
  std::vector<std::byte> memory(plan->workspace_size() + 64);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const Execution execution{.workspace = memory.data() + (64 - address % 64) % 64,
                            .workspace_bytes = plan->workspace_size()};
  EXPECT_TRUE(plan->run(tensors.arguments(), execution).ok());
  expect_jvp_matches_reference(tensors, tensors.arguments(), {}, {.engine = Engine::cpu});
}

}  // namespace
}  // namespace strobe::test
