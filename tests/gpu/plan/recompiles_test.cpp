// SPDX-License-Identifier: Apache-2.0
// What is compiled for calls: a few kernels for each text and each option, whatever the lengths, the batch, the scale,
// the sizes of captures and the options' values. What a call hands over on the device is no part of a plan at all:
// seeds of dropout, slopes of ALiBi, used lengths, page tables and what captures hold.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "expression/formula.h"
#include "gpu/compile_ahead.h"
#include "gpu/plan/plan_problem.h"
#include "strobe/expression.h"

namespace strobe::test {
namespace {

/// What a kernel is: the store's key is a hash of it.
using Kernels = std::set<std::tuple<std::string, std::string, std::string, std::vector<std::string>>>;

struct Text {
  const char* score;
  const char* mask;
};

constexpr Text kTexts[] = {{"", ""},
                           {"score + bias[head][k - q + 511]", "k <= q + k_len - q_len && kind[k] == kind[q]"},
                           {"tanh(score) * heat[head] + bias[head][kind[max(q - k, 0)]]", ""}};

using Random = std::mt19937;

std::int64_t length(Random& random) {
  return static_cast<std::int64_t>(std::exp2(std::uniform_real_distribution(0.0, 17.0)(random)));
}

float real(Random& random, float least, float most) { return std::uniform_real_distribution(least, most)(random); }

/// An option that a call has, with any value.
struct Option {
  const char* name;
  void (*draw)(AttentionProblem& problem, Random& random);
};

void draw_softcap(AttentionProblem& problem, Random& random) { problem.softcap = real(random, 0.1F, 100.0F); }

void draw_dropout(AttentionProblem& problem, Random& random) { problem.dropout = real(random, 0.001F, 0.999F); }

void draw_window(AttentionProblem& problem, Random& random) { problem.window = {length(random), length(random)}; }

void draw_left_window(AttentionProblem& problem, Random& random) {
  problem.causal = CausalMask::bottom_right;
  problem.window.left = length(random);
}

void draw_chunk(AttentionProblem& problem, Random& random) {
  problem.causal = CausalMask::bottom_right;
  problem.chunk = length(random);
}

void draw_log_length(AttentionProblem& problem, Random& random) { problem.log_length = length(random) + 1; }

void draw_modifiers(AttentionProblem& problem, Random& random) {
  problem.modifiers.has_alibi = problem.modifiers.has_sink = true;
  draw_softcap(problem, random);
}

void draw_used_lengths(AttentionProblem& problem, Random& random) {
  problem.has_seqused_q = problem.has_seqused_k = true;
  draw_softcap(problem, random);
}

void draw_packed(AttentionProblem& problem, Random& random) {
  problem.packed_q = problem.packed_k = true;
  problem.total_q = problem.seqlen_q + length(random);
  problem.total_k = problem.seqlen_k + length(random);
}

/// Pages of 64 rows, any number of them. A forward's.
void draw_pages(AttentionProblem& problem, Random& random) {
  problem.page_size = 64;
  problem.has_seqused_k = true;
  problem.seqlen_k = 64 * ((length(random) + 63) / 64);
  problem.total_k = problem.batch * problem.seqlen_k;
}

void draw_all(AttentionProblem& problem, Random& random) {
  problem.modifiers.has_alibi = true;
  draw_softcap(problem, random);
  draw_left_window(problem, random);
  if (problem.pass == Pass::backward) draw_dropout(problem, random);
}

constexpr Option kNone{"none", [](AttentionProblem&, Random&) {}};

constexpr Option kOptions[] = {{"softcap", draw_softcap},
                               {"dropout", draw_dropout},
                               {"window", draw_window},
                               {"causal and a window", draw_left_window},
                               {"chunk", draw_chunk},
                               {"log_length", draw_log_length},
                               {"alibi, sink and softcap", draw_modifiers},
                               {"used lengths", draw_used_lengths},
                               {"packed", draw_packed},
                               {"all", draw_all}};

/// Calls of random sizes that have a text, or none, and an option.
class Sweep {
 public:
  Sweep(const Text& text, Pass pass, bool deterministic, const Option& option = kNone)
      : pass_(pass), deterministic_(deterministic), option_(option) {
    if (*text.score == '\0') return;
    const std::vector<CaptureType> captures{
        {"bias", DType::float32, 2}, {"heat", DType::float32, 1}, {"kind", DType::int32, 1}};
    const Result<ScoreFunction> function = ScoreFunction::parse(text.score, text.mask, captures);
    EXPECT_TRUE(function.ok()) << function.status().message();
    formula_ = function->formula();
  }

  Kernels kernels(std::uint32_t seed, int calls) const {
    Random random(seed);
    Kernels all;
    for (int i = 0; i < calls; ++i) all.merge(kernels_of_call(draw(random)));
    return all;
  }

  /// A call, and its kernels with other scalars of the same sizes.
  void expect_same_kernels(std::uint32_t seed, int calls) const {
    Random random(seed);
    for (int i = 0; i < calls; ++i) {
      AttentionProblem problem = draw(random);
      const Kernels wanted = kernels_of_call(problem);
      EXPECT_FALSE(wanted.empty()) << option_.name;
      problem.scale = real(random, 0.01F, 2.0F);
      option_.draw(problem, random);
      EXPECT_EQ(kernels_of_call(problem), wanted) << option_.name;
    }
  }

 private:
  static Kernels kernels_of_call(const AttentionProblem& problem) {
    Kernels all;
    for (const gpu::DeviceShape& shape : {kH200, device_named("A100")}) {
      const auto needed = gpu::kernels_of(problem, "a GPU", shape);
      EXPECT_TRUE(needed.ok()) << needed.status().message();
      if (!needed.ok()) continue;
      for (const runtime::Variant& kernel : *needed) {
        all.emplace(kernel.architecture, kernel.expression, kernel.code, kernel.options);
      }
    }
    return all;
  }

  AttentionProblem draw(Random& random) const {
    AttentionProblem problem = problem_of(length(random), 128, 128);
    problem.pass = pass_;
    problem.batch = std::uniform_int_distribution<std::int64_t>(1, 40)(random);
    problem.seqlen_k = length(random);
    problem.total_q = problem.batch * problem.seqlen_q;
    problem.total_k = problem.batch * problem.seqlen_k;
    problem.scale = real(random, 0.01F, 2.0F);
    problem.deterministic = deterministic_;
    option_.draw(problem, random);
    if (formula_ == nullptr) return problem;
    problem.expression.formula = formula_;
    if (pass_ == Pass::forward) return problem;
    problem.expression.gradients = 1;
    if (deterministic_) problem.expression.gradient_elements = length(random);
    return problem;
  }

  Pass pass_;
  bool deterministic_;
  const Option& option_;
  std::shared_ptr<const expression::Formula> formula_;
};

/// What further calls compile after many: nothing.
void expect_no_more(const Sweep& sweep, const std::string& name) {
  // Of both devices: for decodes, few queries and many, each with what goes with it; backwards with and without the
  // block mask and the causal mask that a text implies, and masks as texts and as bits of their pairs.
  constexpr std::size_t kMostKernels = 34;
  constexpr int kEnoughCalls = 3000;  // the rarest kernel is that of one call in 800
  const Kernels known = sweep.kernels(1, kEnoughCalls);
  for (const auto& kernel : sweep.kernels(2, 400)) {
    EXPECT_TRUE(known.contains(kernel)) << name << ": " << std::get<1>(kernel);
  }
  EXPECT_LE(known.size(), kMostKernels) << name;
}

TEST(Recompiles, SizesAndScalarsOfTextsCompileNothing) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const bool deterministic : {false, true}) {
      for (const Text& text : kTexts) expect_no_more(Sweep(text, pass, deterministic), text.score);
    }
  }
}

TEST(Recompiles, ValuesOfOptionsCompileNothing) {
  for (const Option& option : kOptions) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const Text& text : {kTexts[0], kTexts[1]}) {
        const std::string name = std::string(option.name) + (*text.score == '\0' ? "" : " and a text");
        expect_no_more(Sweep(text, pass, false, option), name);
      }
    }
  }
}

TEST(Recompiles, NumbersOfPagesCompileNothing) {
  const Option pages{"pages", draw_pages};
  for (const Text& text : {kTexts[0], kTexts[1]}) {
    expect_no_more(Sweep(text, Pass::forward, false, pages), pages.name);
  }
}

TEST(Recompiles, ScalarsAloneChangeNoKernel) {
  for (const Option& option : {Option{"softcap", draw_softcap}, Option{"dropout", draw_dropout}, kNone}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const Text& text : kTexts) Sweep(text, pass, false, option).expect_same_kernels(3, 200);
    }
  }
}

}  // namespace
}  // namespace strobe::test
