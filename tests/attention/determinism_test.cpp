// SPDX-License-Identifier: Apache-2.0
// The same bits from every thread count, pool, workspace and repetition, under every option.
#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <stdexcept>
#include <vector>

#include "matches_reference.h"
#include "random_case.h"
#include "run_on_threads.h"
#include "seeds.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

void run_serially(int count, const std::function<void(int)>& body) {
  for (int index = 0; index < count; ++index) body(index);
}

void run_backwards(int count, const std::function<void(int)>& body) {
  for (int index = count - 1; index >= 0; --index) body(index);
}

std::vector<GuardedTensor*> outputs_of(CaseTensors& tensors) {
  std::vector<GuardedTensor*> outputs = tensors.forward_outputs();
  for (GuardedTensor* output : tensors.backward_outputs()) outputs.push_back(output);
  return outputs;
}

std::vector<std::vector<std::byte>> result_bytes(CaseTensors& tensors, const AttentionCase& attention,
                                                 const Execution& execution) {
  for (GuardedTensor* output : outputs_of(tensors)) output->poison();
  Status status = forward(tensors.forward_arguments(), attention.options, execution);
  EXPECT_TRUE(status.ok()) << status.message();
  status = backward(tensors.backward_arguments(), attention.options, execution);
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<std::vector<std::byte>> bytes;
  for (const GuardedTensor* output : outputs_of(tensors)) bytes.push_back(output->element_bytes());
  return bytes;
}

std::vector<AttentionCase> cases() {
  AttentionCase one_head{.head_dim = 40, .head_dim_v = 24, .q = {.rows = 900}, .k = {.rows = 1100}, .seed = 1};
  AttentionCase grouped{
      .dtype = DType::bfloat16, .batch = 2, .heads_q = 6, .heads_kv = 2, .head_dim = 32, .head_dim_v = 32};
  grouped.q.rows = 300;
  grouped.k.rows = 300;
  grouped.options.causal = CausalMask::bottom_right;
  AttentionCase packed{
      .dtype = DType::float16, .batch = 3, .heads_q = 2, .heads_kv = 1, .head_dim = 64, .head_dim_v = 64};
  packed.q = {.rows = 500, .cu_seqlens = {0, 10, 400, 500}};
  packed.k = {.rows = 620, .cu_seqlens = {0, 300, 320, 620}};
  packed.options = {.window = {100, 50}, .softcap = 10.0F};
  packed.placement.layout = Layout::scrambled;
  AttentionCase modified{.batch = 2,
                         .heads_q = 4,
                         .heads_kv = 2,
                         .head_dim = 32,
                         .head_dim_v = 40,
                         .q = {.rows = 420},
                         .k = {.rows = 500}};
  modified.options.dropout = 0.2F;
  modified.alibi = Alibi::per_head;
  modified.bias = BiasCase{.hidden = 0.1};  // one for all: every task adds to the same gradient
  modified.has_sink = true;
  modified.wants_max_logits = true;
  AttentionCase sparse = grouped;
  sparse.bias = {.dtype = DType::bfloat16, .sharing = {.per_head = true}};
  sparse.blocks = {.size = 64, .sharing = {.per_head = true}};
  sparse.options.chunk = 170;
  sparse.q.seqused = {300, 171};
  return {one_head, grouped, packed, modified, sparse};
}

class SameBits : public testing::TestWithParam<AttentionCase> {};

INSTANTIATE_TEST_SUITE_P(Cases, SameBits, testing::ValuesIn(cases()));

TEST_P(SameBits, FromEveryThreadCount) {
  CaseTensors tensors(GetParam());
  const auto expected = result_bytes(tensors, GetParam(), {.threads = 1});
  for (const int threads : {1, 2, 3, 7, 0}) {
    EXPECT_TRUE(result_bytes(tensors, GetParam(), {.threads = threads}) == expected) << threads << " threads";
  }
}

TEST_P(SameBits, FromTwentyRepetitions) {
  CaseTensors tensors(GetParam());
  const auto expected = result_bytes(tensors, GetParam(), {.threads = 2});
  for (int repetition = 1; repetition < 20; ++repetition) {
    ASSERT_TRUE(result_bytes(tensors, GetParam(), {.threads = 2 + repetition % 3}) == expected) << repetition;
  }
}

TEST_P(SameBits, FromEveryPool) {
  CaseTensors tensors(GetParam());
  const auto expected = result_bytes(tensors, GetParam(), {.threads = 1});
  for (const ParallelFor& pool : {ParallelFor(run_serially), ParallelFor(run_backwards), ParallelFor(run_on_threads)}) {
    for (const int threads : {1, 2, 3, 7}) {
      EXPECT_TRUE(result_bytes(tensors, GetParam(), {.threads = threads, .parallel_for = &pool}) == expected)
          << threads;
    }
  }
}

TEST_P(SameBits, FromManyCallersAtOnce) {
  CaseTensors tensors(GetParam());
  const auto expected = result_bytes(tensors, GetParam(), {.threads = 1});
  std::vector<int> same(4, 0);
  run_on_threads(4, [&](int caller) {
    CaseTensors own(GetParam());
    same[caller] = result_bytes(own, GetParam(), {.threads = 2}) == expected ? 1 : 0;
  });
  EXPECT_EQ(same, std::vector<int>(4, 1));
}

// Twenty repetitions of random cases, options in any combination, on thread counts that come round.
TEST(SameBits, OfRandomCases) {
  for (const std::uint64_t seed : chosen_seeds(60)) {
    const AttentionCase attention = random_case(seed);
    if (!has_backward(attention)) continue;
    SCOPED_TRACE(describe(attention));
    CaseTensors tensors(attention);
    const auto expected = result_bytes(tensors, attention, {.threads = 1});
    for (int repetition = 1; repetition < 20; ++repetition) {
      ASSERT_TRUE(result_bytes(tensors, attention, {.threads = 1 + repetition % 4}) == expected) << repetition;
    }
  }
}

/// The exception as it was thrown, not as an error: those of the library's own kinds and what is no std::exception,
/// too.
template <class Thrown>
void expect_passed_on(const Thrown& thrown) {
  CaseTensors tensors(cases().front());
  const ParallelFor pool = [&](int, const std::function<void(int)>&) { throw thrown; };
  const Execution execution{.threads = 2, .parallel_for = &pool};
  EXPECT_THROW(static_cast<void>(forward(tensors.forward_arguments(), {}, execution)), Thrown);
  EXPECT_THROW(static_cast<void>(backward(tensors.backward_arguments(), {}, execution)), Thrown);
}

// Heads to which the mask shows nothing pass their turn at the bias's gradient on, not before they have it themselves.
TEST(SameBits, OfASharedBiasUnderABlockMask) {
  AttentionCase attention{.batch = 4, .heads_q = 6, .heads_kv = 3, .head_dim = 18, .head_dim_v = 18};
  attention.q.rows = 19;
  attention.k.rows = 6;
  attention.bias = BiasCase{.hidden = 0.1};
  attention.blocks = BlockCase{.sharing = {.per_batch = true, .per_head = true}};
  attention.seed = 5;
  CaseTensors tensors(attention);
  const auto expected = result_bytes(tensors, attention, {.threads = 1});
  for (int repetition = 0; repetition < 2000; ++repetition) {
    ASSERT_TRUE(result_bytes(tensors, attention, {.threads = 3}) == expected) << repetition;
  }
}

TEST(ParallelFor, ItsExceptionReachesTheCaller) {
  expect_passed_on(std::runtime_error("no thread left"));
  expect_passed_on(std::bad_alloc());
  expect_passed_on(std::length_error("too long"));
  expect_passed_on(7);
}

}  // namespace
}  // namespace strobe::test
