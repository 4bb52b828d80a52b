// SPDX-License-Identifier: Apache-2.0
#include "sm80/pack.h"

#include "gpu/plan/known_devices.h"
#include "sm80/list_kernels.h"

namespace strobe::sm80 {
namespace {

// One of each amount of shared memory among the devices that run machine code for 8.0.
constexpr gpu::DeviceShape kA100 = gpu::device_named("A100 80GB");
// For calls of few query rows, which the kernels of sm90 are slower for.
constexpr gpu::DeviceShape kH200 = gpu::device_named("H200");
constexpr gpu::DeviceShape kL40 = gpu::device_named("L40S");

/// Calls that the kernels lack are left out: they need none.
void add(AttentionProblem problem, Pass pass, const gpu::DeviceShape& shape, gpu::PackList& list) {
  problem.pass = pass;
  static_cast<void>(list_kernels(problem, shape, {}, list));
}

/// A query at a time in bfloat16. Servers' steps over a cache of used lengths, contiguous, in 8 bits or in pages; on
/// 9.0 in both, and a batch without lengths, too.
void add_decodes(AttentionProblem problem, gpu::PackList& list) {
  problem.dtype = DType::bfloat16;
  problem.causal = CausalMask::none;
  problem.seqlen_q = problem.total_q = 1;
  const auto add_decode = [&](const gpu::DeviceShape& shape, std::int64_t head_dim, std::int64_t group, auto change) {
    AttentionProblem decode = problem;
    decode.head_dim = decode.head_dim_v = head_dim;
    decode.heads_q = group;
    change(decode);
    add(decode, Pass::forward, shape, list);
  };
  const auto used_lengths = [](AttentionProblem& decode) { decode.has_seqused_k = true; };
  const auto pages = [](AttentionProblem& decode) {
    decode.has_seqused_k = true;
    decode.page_size = 16;
  };
  const auto add_stored = [&](const gpu::DeviceShape& shape, std::int64_t head_dim, std::int64_t group, auto change) {
    for (const DType stored : {DType::int8, DType::float8_e4m3}) {
      add_decode(shape, head_dim, group, [&](AttentionProblem& decode) {
        change(decode);
        decode.stored = {stored, decode.seqlen_k, decode.seqlen_k};
      });
    }
  };
  for (const std::int64_t group : {4, 8}) {
    for (const gpu::DeviceShape& shape : {kA100, kL40}) add_stored(shape, 128, group, used_lengths);
    for (const std::int64_t head_dim : {64, 128, 256}) {
      add_stored(kH200, head_dim, group, used_lengths);
      add_stored(kH200, head_dim, group, pages);
      if (head_dim == 256) continue;
      add_stored(kH200, head_dim, group, [&](AttentionProblem& decode) {  // many sequences, whose keys are not split
        pages(decode);
        decode.batch = 1024;
      });
    }
    for (const gpu::DeviceShape& shape : {kA100, kL40}) {
      add_decode(shape, 128, group, used_lengths);
      add_decode(shape, 128, group, pages);
    }
  }
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t group : {1, 4, 8}) {
      add_decode(kH200, head_dim, group, used_lengths);
      if (head_dim == 128) add_decode(kH200, head_dim, group, pages);
      for (const std::int64_t batch : {1, 1024}) {  // few sequences, whose keys are split, and many
        add_decode(kH200, head_dim, group, [=](AttentionProblem& decode) { decode.batch = batch; });
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
  for (const gpu::DeviceShape& shape : {kA100, kL40}) {
    gpu::for_common_shapes([&](DType dtype, std::int64_t head_dim, CausalMask causal) {
      AttentionProblem common = problem;
      common.dtype = dtype;
      common.head_dim = common.head_dim_v = head_dim;
      common.causal = causal;
      add(common, Pass::forward, shape, list);
      add(common, Pass::backward, shape, list);
    });
  }
  add_decodes(problem, list);
  return list.take();
}

}  // namespace strobe::sm80
