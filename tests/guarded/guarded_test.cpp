// SPDX-License-Identifier: Apache-2.0
// Random calls of every kind on tensors between pages without access: a read or write beyond a tensor ends the program,
// one in the gaps of an output is found afterwards, and the results are those of the same call on plain memory. Pages
// lie before the first bytes or after the last ones, by the seed.
//
// STROBE_SEED=n runs the one call of that seed; STROBE_FIRST_SEED and STROBE_SEEDS choose a range. The seed of a call
// that ends the program is the last in the file that STROBE_SEED_FILE names.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "append/append_case.h"
#include "attention/c_call.h"
#include "attention/cache_copy.h"
#include "attention/matches_reference.h"
#include "attention/random_case.h"
#include "attention/seeds.h"
#include "eight_bit/packed_case.h"
#include "eight_bit/stored_case.h"
#include "guarded/guarded_call.h"
#include "merge/merge_case.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

constexpr std::uint64_t kKinds = 7;  // of calls

/// Runs calls twice, on the tensors that they have and on guarded copies.
class GuardedRun {
 public:
  explicit GuardedRun(std::uint64_t seed)
      : way_(seed / kKinds / 2 % 4), copies_(seed / kKinds % 2 == 0 ? Guard::page_after : Guard::page_before, seed) {
    execution_.threads = static_cast<int>(seed % 3) + 1;
  }

  /// `call(arguments, is_copy)` returns the Status of a run.
  template <class Arguments, class Call>
  void expect_the_same(const Arguments& plain, const Call& call) {
    Arguments guarded = plain;
    copies_.place(tensors_of(guarded));
    const Status expected = call(plain, false);
    ASSERT_TRUE(expected.ok()) << expected.message();
    const Status status = call(guarded, true);
    ASSERT_TRUE(status.ok()) << status.message();
    copies_.expect_same_results();
  }

  /// The copies from C, by a plan in a guarded workspace of just its size, or like the plain call.
  template <class Arguments>
  void attend(const Arguments& plain, const AttentionOptions& options) {
    expect_the_same(plain, [&](const Arguments& arguments, bool is_copy) {
      if (is_copy && is_from_c(arguments.sequences)) return call_from_c(arguments, options);
      const Result<Plan> plan = make_plan(arguments, options, execution_);
      if (!plan.ok()) return plan.status();
      if (!is_copy || way_ == 2) return plan->run(arguments, execution_);
      const GuardedMemory workspace(plan->workspace_size(), Guard::page_after);
      Execution own = execution_;
      if (plan->workspace_size() > 0) {
        own.workspace = workspace.data();
        own.workspace_bytes = plan->workspace_size();
      }
      return plan->run(arguments, own);
    });
  }

  /// Whether the copies' call comes from C, where a bound of 0 on the longest sequence means that there is none.
  bool is_from_c(const Sequences& sequences = {}) const {
    return way_ == 1 && sequences.max_seqlen_q != 0 && sequences.max_seqlen_k != 0;
  }

  const Execution& execution() const { return execution_; }

 private:
  std::uint64_t way_;
  Execution execution_;
  GuardedCopies copies_;
};

AttentionCase small_case(std::uint64_t seed) {
  EngineLimits limits{.longest = 160};
  if (seed % 4 == 3) limits = {.longest = 400, .most_queries = 16};
  AttentionCase attention = random_case(seed, limits);
  attention.placement = {};
  return attention;
}

void run_attention(std::uint64_t seed) {
  const AttentionCase attention = small_case(seed);
  SCOPED_TRACE(describe(attention));
  const CaseTensors tensors(attention);
  GuardedRun(seed).attend(tensors.forward_arguments(), attention.options);
  if (!has_backward(attention)) return;
  GuardedRun(seed).attend(tensors.backward_arguments(), attention.options);
}

void run_cache(std::uint64_t seed) {
  const AttentionCase attention = small_case(seed);
  SCOPED_TRACE(describe(attention));
  const CaseTensors tensors(attention);
  Random random(seed);
  const CacheCopy cache(tensors.forward_arguments(), random.one_of({CacheKind::pages, CacheKind::entries}), random);
  GuardedRun(seed).attend(cache.arguments(), attention.options);
}

void run_eight_bit(std::uint64_t seed) {
  PackedCase call = random_packed_case(seed);
  ASSERT_TRUE(call.prepare().ok());
  GuardedRun run(seed);
  run.expect_the_same(call.quantize_arguments(), [&](const QuantizeArguments& arguments, bool is_copy) {
    if (is_copy && run.is_from_c(arguments.sequences)) return call_from_c(arguments, call.quantize);
    return quantize(arguments, call.quantize, {.threads = call.threads});
  });
  GuardedRun(seed).attend(call.arguments(), call.options);
}

void run_stored(std::uint64_t seed) {
  StoredCase call = random_stored_case(seed);
  GuardedRun(seed).attend(call.with_outputs(call.stored()), call.options);
}

void run_append(std::uint64_t seed) {
  Random random(seed);
  const AppendShape shape = AppendShape::random(random);
  SCOPED_TRACE(shape.text());
  const AppendCase call(shape, {}, seed);
  GuardedRun run(seed);
  run.expect_the_same(call.arguments(), [&](const AppendArguments& arguments, bool is_copy) {
    return is_copy && run.is_from_c() ? call_from_c(arguments) : append(arguments, run.execution());
  });
}

/// As arguments whose parts can be replaced.
struct MergeParts {
  std::vector<PartialResult> parts;
  TensorView o, lse;
};

CallTensors tensors_of(MergeParts& merged) {
  CallTensors tensors{{}, {&merged.o, &merged.lse}};
  for (PartialResult& part : merged.parts) tensors.inputs.insert(tensors.inputs.end(), {&part.o, &part.lse});
  return tensors;
}

void run_merge(std::uint64_t seed) {
  Random random(seed);
  const auto dtype = [&] { return random.one_of({DType::float32, DType::float16, DType::bfloat16}); };
  const MergeShape shape{random.integer(0, 3), random.integer(0, 40), random.integer(1, 4), random.integer(1, 130)};
  const DType source = dtype();
  MergeCase call(shape, static_cast<std::size_t>(random.integer(1, 9)), source, dtype(), {}, seed);
  const MergeArguments arguments = call.arguments([](const GuardedTensor& tensor) { return tensor.view(); });
  GuardedRun run(seed);
  const MergeParts parts{{arguments.parts.begin(), arguments.parts.end()}, arguments.o, arguments.lse};
  run.expect_the_same(parts, [&](const MergeParts& given, bool is_copy) {
    const MergeArguments merged{given.parts, given.o, given.lse};
    return is_copy && run.is_from_c() ? call_from_c(merged) : merge(merged, run.execution());
  });
}

void run_seed(std::uint64_t seed) {
  constexpr std::pair<const char*, void (*)(std::uint64_t)> kCalls[kKinds] = {
      {"attention", run_attention},     {"attention", run_attention}, {"cache", run_cache}, {"8-bit", run_eight_bit},
      {"stored in 8 bits", run_stored}, {"append", run_append},       {"merge", run_merge}};
  const auto& [name, run] = kCalls[seed % kKinds];
  SCOPED_TRACE(std::string(name) + ", seed " + std::to_string(seed));
  run(seed);
}

TEST(Guarded, RandomCalls) {
  const char* const path = std::getenv("STROBE_SEED_FILE");
  for (const std::uint64_t seed : chosen_seeds(400)) {
    if (path != nullptr) std::ofstream(path, std::ios::app) << seed << '\n';
    run_seed(seed);
    if (HasFailure()) FAIL() << "reproduce with: STROBE_SEED=" << seed << " build/release/bin/guarded_tests";
  }
}

}  // namespace
}  // namespace strobe::test
