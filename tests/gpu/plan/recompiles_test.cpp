// SPDX-License-Identifier: Apache-2.0
// What is compiled for calls with texts: a few kernels, whatever the lengths, the batch, the scale and the captures.
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

class Sweep {
 public:
  Sweep(const Text& text, Pass pass, bool deterministic) : pass_(pass), deterministic_(deterministic) {
    if (*text.score == '\0') return;
    const std::vector<CaptureType> captures{
        {"bias", DType::float32, 2}, {"heat", DType::float32, 1}, {"kind", DType::int32, 1}};
    const Result<ScoreFunction> function = ScoreFunction::parse(text.score, text.mask, captures);
    EXPECT_TRUE(function.ok()) << function.status().message();
    formula_ = function->formula();
  }

  /// The kernels of calls of random sizes.
  Kernels kernels(std::uint32_t seed, int calls) const {
    std::mt19937 random(seed);
    Kernels all;
    for (int i = 0; i < calls; ++i) {
      const AttentionProblem problem = draw(random);
      for (const gpu::DeviceShape& shape : {kH200, device_named("A100")}) {
        const auto needed = gpu::kernels_of(problem, "a GPU", shape);
        EXPECT_TRUE(needed.ok()) << needed.status().message();
        for (const runtime::Variant& kernel : *needed) {
          all.emplace(kernel.architecture, kernel.expression, kernel.code, kernel.options);
        }
      }
    }
    return all;
  }

 private:
  AttentionProblem draw(std::mt19937& random) const {
    const auto length = [&] {
      return static_cast<std::int64_t>(std::exp2(std::uniform_real_distribution(0.0, 17.0)(random)));
    };
    AttentionProblem problem = problem_of(length(), 128, 128);
    problem.pass = pass_;
    problem.batch = std::uniform_int_distribution<std::int64_t>(1, 40)(random);
    problem.seqlen_k = length();
    problem.total_q = problem.batch * problem.seqlen_q;
    problem.total_k = problem.batch * problem.seqlen_k;
    problem.scale = std::uniform_real_distribution(0.01F, 2.0F)(random);
    problem.deterministic = deterministic_;
    if (formula_ == nullptr) return problem;
    problem.expression.formula = formula_;
    if (pass_ == Pass::forward) return problem;
    problem.expression.gradients = 1;
    if (deterministic_) problem.expression.gradient_elements = length();
    return problem;
  }

  Pass pass_;
  bool deterministic_;
  std::shared_ptr<const expression::Formula> formula_;
};

TEST(Recompiles, SizesAndScalarsOfTextsCompileNothing) {
  // Of both devices: for decodes, few queries and many, each with what goes with it; backwards with and without the
  // block mask and the causal mask that a text implies, and masks as texts and as bits of their pairs.
  constexpr std::size_t kMostKernels = 34;
  constexpr int kEnoughCalls = 3000;  // the rarest kernel is that of one call in 800
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const bool deterministic : {false, true}) {
      for (const Text& text : kTexts) {
        const Sweep sweep(text, pass, deterministic);
        const Kernels known = sweep.kernels(1, kEnoughCalls);
        for (const auto& kernel : sweep.kernels(2, 400)) {
          EXPECT_TRUE(known.contains(kernel)) << text.score << ": " << std::get<1>(kernel);
        }
        EXPECT_LE(known.size(), kMostKernels) << text.score;
      }
    }
  }
}

}  // namespace
}  // namespace strobe::test
