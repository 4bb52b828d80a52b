// SPDX-License-Identifier: Apache-2.0
#include "sm80/pack.h"

#include "gpu/auxiliary/backward_variant.h"
#include "kernels/sm80/backward/smem.h"
#include "kernels/sm80/forward/smem.h"
#include "sm80/backward_plan.h"
#include "sm80/backward_variant.h"
#include "sm80/forward_plan.h"
#include "sm80/forward_variant.h"

namespace strobe::sm80 {
namespace {

// One of each amount of shared memory among the devices that run machine code for 8.0.
constexpr DeviceShape kA100{
    .compute_major = 8, .compute_minor = 0, .multiprocessors = 108, .l2_bytes = 40 << 20, .shared_bytes = 163 << 10};
// For calls of few query rows, which the kernels of sm90 are slower for.
constexpr DeviceShape kH200{
    .compute_major = 9, .compute_minor = 0, .multiprocessors = 132, .l2_bytes = 60 << 20, .shared_bytes = 227 << 10};
constexpr DeviceShape kL40{
    .compute_major = 8, .compute_minor = 9, .multiprocessors = 142, .l2_bytes = 96 << 20, .shared_bytes = 99 << 10};

void add_forward(const AttentionProblem& problem, const DeviceShape& shape, gpu::PackList& list) {
  const Result<forward::Config> config = forward_config(problem, shape);
  if (config.ok()) list.add(forward_variant(*config, shape), smem_plan(*config).total_bytes);
}

void add_backward(const AttentionProblem& problem, const DeviceShape& shape, gpu::PackList& list) {
  const Result<backward::Config> config = backward_config(problem, shape);
  if (!config.ok()) return;
  const BackwardPlan plan = backward_plan(problem, shape, *config);
  list.add(gpu::large_rows_variant(gpu::large_rows_config(plan.prepare), architecture_of(shape)), 0);
  list.add(gpu::prepare_variant(plan.prepare, architecture_of(shape)), 0);
  list.add(backward_variant(*config, shape), smem_plan(*config).total_bytes);
  list.add(finish_variant(*config, shape), finish_smem_bytes(*config));
}

/// A query at a time in bfloat16. Servers' steps over a cache of used lengths, contiguous, in 8 bits or in pages; on
/// 9.0, where kernels of sm90 read pages, contiguous, and a batch without lengths.
void add_decodes(AttentionProblem problem, gpu::PackList& list) {
  problem.dtype = DType::bfloat16;
  problem.causal = CausalMask::none;
  problem.seqlen_q = problem.total_q = 1;
  const auto add = [&](const DeviceShape& shape, std::int64_t head_dim, std::int64_t group, auto change) {
    AttentionProblem decode = problem;
    decode.head_dim = decode.head_dim_v = head_dim;
    decode.heads_q = group;
    change(decode);
    add_forward(decode, shape, list);
  };
  const auto used_lengths = [](AttentionProblem& decode) { decode.has_seqused_k = true; };
  for (const std::int64_t group : {4, 8}) {
    for (const DType stored : {DType::int8, DType::float8_e4m3}) {
      for (const DeviceShape& shape : {kA100, kL40, kH200}) {
        add(shape, 128, group, [=](AttentionProblem& decode) {
          decode.has_seqused_k = true;
          decode.stored = {stored, decode.seqlen_k, decode.seqlen_k};
        });
      }
    }
    for (const DeviceShape& shape : {kA100, kL40}) {
      add(shape, 128, group, used_lengths);
      add(shape, 128, group, [](AttentionProblem& decode) {
        decode.has_seqused_k = true;
        decode.page_size = 16;
      });
    }
  }
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t group : {1, 4, 8}) {
      add(kH200, head_dim, group, used_lengths);
      for (const std::int64_t batch : {1, 1024}) {  // few sequences, whose keys are split, and many
        add(kH200, head_dim, group, [=](AttentionProblem& decode) { decode.batch = batch; });
      }
    }
  }
}

}  // namespace

std::vector<runtime::CommonVariant> pack() {
  gpu::PackList list;
  AttentionProblem problem;
  problem.batch = problem.heads_q = problem.heads_kv = 1;
  problem.seqlen_q = problem.seqlen_k = problem.total_q = problem.total_k = 4096;
  problem.scale = 1.0F;
  for (const DeviceShape& shape : {kA100, kL40}) {
    gpu::for_common_shapes([&](DType dtype, std::int64_t head_dim, CausalMask causal) {
      AttentionProblem common = problem;
      common.dtype = dtype;
      common.head_dim = common.head_dim_v = head_dim;
      common.causal = causal;
      add_forward(common, shape, list);
      add_backward(common, shape, list);
    });
  }
  add_decodes(problem, list);
  return list.take();
}

}  // namespace strobe::sm80
