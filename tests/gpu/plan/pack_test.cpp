// SPDX-License-Identifier: Apache-2.0
// Which calls' kernels are compiled with the library.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "gpu/auxiliary/pack.h"
#include "gpu/choose_family.h"
#include "gpu/plan/plan_problem.h"
#include "gpu/variant/pack_list.h"
#include "runtime/pack/common_variants.h"
#include "sm80/list_kernels.h"
#include "sm90/few_rows.h"
#include "sm90/list_kernels.h"

namespace strobe::gpu {
namespace {

std::string key_of(const runtime::CommonVariant& kernel) {
  return kernel.variant.architecture + ' ' + kernel.variant.expression;
}

const std::set<std::string>& packed_kernels() {
  static const std::set<std::string> kernels = [] {
    std::set<std::string> keys;
    for (const runtime::CommonVariant& kernel : runtime::common_variants()) keys.insert(key_of(kernel));
    return keys;
  }();
  return kernels;
}

/// Of one sequence with used lengths.
AttentionProblem over_8_bits(DType stored, std::int64_t head_dim, std::int64_t group, std::int64_t queries,
                             std::int64_t page_size) {
  AttentionProblem problem = test::problem_of(16384, head_dim, head_dim);
  problem.batch = 1;
  problem.heads_q = 8 * group;
  problem.seqlen_q = problem.total_q = queries;
  problem.total_k = problem.seqlen_k;
  problem.has_seqused_k = true;
  problem.page_size = page_size;
  problem.causal = queries == 1 ? CausalMask::none : CausalMask::bottom_right;
  problem.stored = {stored, problem.seqlen_k, problem.seqlen_k};
  return problem;
}

void expect_all_in_pack(PackList& list) {
  for (const runtime::CommonVariant& kernel : list.take()) {
    EXPECT_TRUE(packed_kernels().contains(key_of(kernel))) << kernel.variant.expression;
  }
}

/// Whether a call of few rows takes the kernels of sm80, and of others the kernels of sm90, all of them in the pack.
void expect_in_pack(const AttentionProblem& problem) {
  PackList list;
  const bool is_decode = sm90::is_decode(problem);
  EXPECT_EQ(is_decode, problem.seqlen_q == 1);
  const Status status = is_decode ? sm80::list_kernels(problem, test::kH200, {}, list)
                                  : sm90::list_kernels(problem, test::kH200, {}, list);
  ASSERT_TRUE(status.ok()) << status.message();
  expect_all_in_pack(list);
}

TEST(Pack, HasServersStepsOverCachesIn8Bits) {
  for (const DType stored : {DType::int8, DType::float8_e4m3}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const std::int64_t group : {4, 8}) {
        for (const std::int64_t page_size : {0, 16}) {
          expect_in_pack(over_8_bits(stored, head_dim, group, 1, page_size));
          for (const std::int64_t queries : {512, 2048, 8192}) {
            expect_in_pack(over_8_bits(stored, head_dim, group, queries, page_size));
          }
        }
        if (head_dim == 256) continue;
        AttentionProblem many = over_8_bits(stored, head_dim, group, 1, 16);
        many.batch = many.total_q = 256;
        expect_in_pack(many);
      }
    }
  }
}

/// A model as a server runs it on one device.
struct ServedModel {
  const char* name = "";
  std::int64_t heads = 1, heads_kv = 1, head_dim = 128;
  std::int64_t window = -1;
  bool sink = false;
};

constexpr ServedModel kServedModels[] = {{"Llama 3.1 8B", 32, 8, 128},
                                         {"Llama 3.2 1B", 32, 8, 64},
                                         {"Llama 2 7B", 32, 32, 128},
                                         {"Qwen 3 30B", 32, 4, 128},
                                         {"Qwen 2.5 7B", 28, 4, 128},
                                         {"Qwen 3 0.6B", 16, 8, 128},
                                         {"Qwen 2.5 14B", 40, 8, 128},
                                         {"Gemma 3 4B", 8, 4, 256},
                                         {"Gemma 3 4B's windows", 8, 4, 256, 1023},
                                         {"Gemma 3 12B", 16, 8, 256},
                                         {"Mistral 7B's windows", 32, 8, 128, 4095},
                                         {"gpt-oss 20B", 64, 8, 64, -1, true},
                                         {"gpt-oss 20B's windows", 64, 8, 64, 127, true}};

/// A step of queries of several sequences, packed, of which the longest has so many, over pages of 16.
AttentionProblem step_of(const ServedModel& model, std::int64_t sequences, std::int64_t most, std::int64_t total) {
  AttentionProblem problem = test::problem_of(16384, model.head_dim, model.head_dim);
  problem.batch = sequences;
  problem.heads_q = model.heads;
  problem.heads_kv = model.heads_kv;
  problem.seqlen_q = most;
  problem.total_q = total;
  problem.packed_q = true;
  problem.has_seqused_k = true;
  problem.page_size = 16;
  problem.causal = CausalMask::bottom_right;
  problem.window.left = model.window;
  problem.modifiers.has_sink = model.sink;
  return problem;
}

void expect_served(AttentionProblem problem, const char* name) {
  SCOPED_TRACE(name);
  problem = planned_problem(problem);
  PackList list;
  const Status status = sm90::is_decode(problem) ? sm80::list_kernels(problem, test::kH200, {}, list)
                                                 : sm90::list_kernels(problem, test::kH200, {}, list);
  ASSERT_TRUE(status.ok()) << status.message();
  expect_all_in_pack(list);
}

TEST(Pack, HasStepsOfServedModels) {
  for (const ServedModel& model : kServedModels) {
    for (const DType stored : {DType::bfloat16, DType::float8_e4m3}) {
      const bool in_8_bits = stored != DType::bfloat16;
      if (in_8_bits && (model.window >= 0 || model.sink)) continue;
      for (const auto& [sequences, most, total] :
           {std::tuple{8, 1, 8}, {64, 1, 64}, {256, 1, 256}, {64, 2048, 2111}, {4, 512, 2048}, {1, 8192, 8192}}) {
        if (model.sink && model.window >= 0 && total >= 64 * sequences)
          continue;  // prompts alone: a kernel that spills
        AttentionProblem step = step_of(model, sequences, most, total);
        if (in_8_bits) step.stored = {stored, step.seqlen_k, step.seqlen_k};
        expect_served(step, model.name);
      }
    }
  }
}

TEST(Pack, HasMasksThatAreTexts) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const char* const mask : {"k <= q && document[k] == document[q]", "k < 512 || k <= q", "k % 2 == q % 2"}) {
        AttentionProblem problem = test::problem_of(4096, head_dim, head_dim);
        problem.pass = pass;
        problem = with_text_mask(problem, mask);
        expect_served(problem, mask);
      }
    }
  }
}

/// A step of a server over used lengths: so many queries of each sequence.
void expect_step_in_pack(AttentionProblem problem, std::int64_t batch, std::int64_t queries) {
  problem.batch = batch;
  problem.seqlen_q = queries;
  problem.total_q = batch * queries;
  problem.causal = CausalMask::bottom_right;
  problem.has_seqused_k = true;
  PackList list;
  ASSERT_TRUE(sm90::list_kernels(planned_problem(problem), test::kH200, {}, list).ok());
  expect_all_in_pack(list);
}

TEST(Pack, HasServersStepsOfWideHeadsInPages) {
  for (const std::int64_t group : {4, 8}) {
    for (const std::int64_t page_size : {1, 16, 64, 256}) {
      for (const auto& [batch, queries] : {std::pair{1, 1}, {8, 1}, {64, 1}, {1024, 1}, {1, 2048}, {4, 512}}) {
        AttentionProblem problem = test::problem_of(16384, 512, 512);
        problem.heads_q = 4 * group;
        problem.heads_kv = 4;
        problem.page_size = page_size;
        expect_step_in_pack(problem, batch, queries);
      }
    }
  }
}

TEST(Pack, HasServersStepsOfLatentAttention) {
  for (const std::int64_t heads : {16, 128}) {
    for (const std::int64_t page_size : {0, 1, 64}) {
      for (const auto& [batch, queries] : {std::pair{1, 1}, {8, 1}, {200, 1}, {1, 2048}, {2, 10'000}}) {
        AttentionProblem problem = test::problem_of(16384, 64, 512);
        problem.heads_q = heads;
        problem.heads_kv = 1;
        problem.has_qv = true;
        problem.page_size = page_size;
        expect_step_in_pack(problem, batch, queries);
      }
    }
  }
}

}  // namespace
}  // namespace strobe::gpu
