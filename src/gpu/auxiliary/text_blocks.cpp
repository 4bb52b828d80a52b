// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/text_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/heads.h"
#include "call/workspace.h"
#include "engine/wrapped_call.h"
#include "expression/formula.h"
#include "gpu/call/find_kernel.h"
#include "gpu/call/with_workspace.h"
#include "gpu/params/captures.h"
#include "gpu/params/score.h"
#include "gpu/variant/architecture.h"
#include "gpu/variant/text_code.h"
#include "runtime/launch.h"

namespace strobe::gpu {
namespace {

using auxiliary::TextBlocksConfig;
using expression::bit;
using expression::Variable;

constexpr int kWarpsPerBlock = auxiliary::kTextBlocksThreads / 32;

TextBlocksConfig config_of(const AttentionProblem& problem) {
  const ScoreRule rule = score_rule(problem);
  TextBlocksConfig config;
  config.rule.varlen = rule.varlen;
  config.rule.leftpad = rule.leftpad;
  config.rule.offsets = rule.offsets;
  config.rule.block_mask = rule.block_mask;
  config.rule.text = rule.text;
  return config;
}

/// The shape of the block mask of such a problem.
struct BlocksShape {
  std::int64_t batches, heads, q_blocks, k_blocks;

  explicit BlocksShape(const AttentionProblem& problem)
      : batches(problem.modifiers.blocks_per_batch ? std::max<std::int64_t>(problem.batch, 1) : 1),
        heads(problem.modifiers.blocks_per_head ? std::max<std::int64_t>(problem.heads_q, 1) : 1),
        q_blocks(std::max<std::int64_t>(1, ceil_div(problem.seqlen_q, problem.modifiers.block_size))),
        k_blocks(std::max<std::int64_t>(1, ceil_div(problem.seqlen_k, problem.modifiers.block_size))) {}

  Checked count() const { return Checked(batches) * heads * q_blocks * k_blocks; }

  ConstTensorView view(void* data, const Device& device) const {
    ConstTensorView view;
    view.data = data;
    view.dtype = DType::uint8;
    view.device = device;
    view.rank = 4;
    view.shape = {batches, heads, q_blocks, k_blocks};
    view.strides = {heads * q_blocks * k_blocks, q_blocks * k_blocks, k_blocks, 1};
    return view;
  }
};

class AfterTextBlocks final : public engine::WrappedCall {
 public:
  AfterTextBlocks(const AttentionProblem& problem, const runtime::CudaDevice& device, const runtime::Kernel& kernel,
                  std::shared_ptr<const engine::PlannedCall> call)
      : WrappedCall(std::move(call)),
        problem_(problem),
        shape_(problem),
        device_(device),
        kernel_(kernel),
        offset_(round_up(Checked(static_cast<std::int64_t>(wrapped().workspace_bytes())), kWorkspaceAlignment)
                    .value<std::size_t>()),
        pool_(device, workspace_bytes()) {}

  std::size_t workspace_bytes() const override { return offset_ + shape_.count().value<std::size_t>(); }
  std::string explain() const override {
    return wrapped().explain() +
           fmt::format("mask          a text, over blocks of {0} x {0} first: {1} x {2} x {3} x {4}\n",
                       problem_.modifiers.block_size, shape_.batches, shape_.heads, shape_.q_blocks, shape_.k_blocks);
  }

  Status run(const ForwardArguments& arguments, const Execution& execution) const override {
    return run_any(arguments, execution);
  }
  Status run(const BackwardArguments& arguments, const Execution& execution) const override {
    return run_any(arguments, execution);
  }

 private:
  template <class Arguments>
  Status run_any(const Arguments& given, const Execution& execution) const {
    const runtime::ContextScope context(device_);
    if (!context.status().ok()) return context.status();
    const auto stream = static_cast<runtime::CUstream>(execution.stream);
    return with_workspace(pool_, workspace_bytes(), execution, stream, [&](std::byte* workspace) {
      Arguments arguments = given;
      arguments.modifiers.block_mask = shape_.view(workspace + offset_, problem_.device);
      arguments.modifiers.block_size = problem_.modifiers.block_size;
      Status status = find_blocks(given, workspace + offset_, context.current(), stream);
      if (!status.ok()) return status;
      return wrapped().run(arguments, execution_in(workspace, offset_, execution));
    });
  }

  template <class Arguments>
  Status find_blocks(const Arguments& given, std::byte* blocks, runtime::CUcontext context,
                     runtime::CUstream stream) const {
    auxiliary::TextBlocksParams params{};
    params.sequences = sequence_params(problem_, given.sequences);
    params.visibility = visibility_params(problem_);
    params.offsets = offset_params(given.sequences);
    params.captures = captures(given.modifiers.captures);
    const ConstTensorView& mask = given.modifiers.block_mask;
    if (mask.given()) {
      params.given = {.data = static_cast<const unsigned char*>(mask.data),
                      .batch_stride = mask.shape[0] > 1 ? mask.strides[0] : 0,
                      .head_stride = mask.shape[1] > 1 ? mask.strides[1] : 0,
                      .row_stride = mask.strides[2]};
    }
    params.blocks = reinterpret_cast<unsigned char*>(blocks);
    params.batches = static_cast<int>(shape_.batches);
    params.heads = static_cast<int>(shape_.heads);
    params.q_blocks = static_cast<int>(shape_.q_blocks);
    params.k_blocks = static_cast<int>(shape_.k_blocks);
    params.heads_per_kv = static_cast<int>(std::max<std::int64_t>(1, heads_per_key_head(problem_)));
    params.count = shape_.count().value();
    return runtime::launch(
        *device_.driver, kernel_.launched_in(context),
        runtime::row_of_blocks(ceil_div<std::int64_t>(params.count, kWarpsPerBlock), auxiliary::kTextBlocksThreads),
        stream, params);
  }

  AttentionProblem problem_;
  BlocksShape shape_;
  const runtime::CudaDevice& device_;
  runtime::Kernel kernel_;
  std::size_t offset_;  // of the blocks in the workspace
  mutable runtime::WorkspacePool pool_;
};

}  // namespace

bool takes_text_blocks(const AttentionProblem& problem) {
  constexpr std::int64_t kFewQueries = 64;
  if (problem.row_invariant && problem.pass == Pass::forward) return false;  // whose kernels have no block mask
  return text_rule(problem).mask && problem.seqlen_q > kFewQueries && problem.seqlen_k > 0 && problem.batch > 0 &&
         problem.heads_q > 0;
}

AttentionProblem with_text_blocks(AttentionProblem problem) {
  if (!takes_text_blocks(problem)) return problem;
  constexpr std::int64_t kBlockSize = 128;
  const expression::Variables variables = problem.expression.formula->mask_variables();
  const auto reads = [&](Variable variable) { return (variables & bit(variable)) != 0; };
  ModifierShape& modifiers = problem.modifiers;
  if (modifiers.block_size == 0) modifiers.block_size = kBlockSize;
  // Of sequences of their own lengths or places every block is one's own.
  const bool own = score_rule(problem).varlen;
  modifiers.blocks_per_batch = modifiers.blocks_per_batch || own || reads(Variable::batch);
  modifiers.blocks_per_head = modifiers.blocks_per_head || reads(Variable::head) || reads(Variable::head_kv);
  return problem;
}

runtime::Variant text_blocks_variant(const AttentionProblem& problem, std::string_view architecture) {
  const TextBlocksConfig config = config_of(problem);
  return {.name = fmt::format("blocks of a mask ({})", short_text(config)),
          .include = "kernels/auxiliary/text_blocks.h",
          .expression = fmt::format("strobe::auxiliary::find_text_blocks<{}>", cpp_text(config)),
          .architecture = std::string(architecture),
          .code = code_of(config.rule.text),
          .options = {}};
}

engine::PlannedCallResult after_text_blocks(const AttentionProblem& given, const runtime::CudaDevice& device,
                                            const engine::PlannedCallResult& call) {
  if (!call.ok() || !takes_text_blocks(given)) return call;
  const AttentionProblem problem = with_text_blocks(given);
  const Result<runtime::Kernel> kernel =
      find_kernel(config_of(problem), device, 0, [&] { return text_blocks_variant(problem, architecture_of(device)); });
  if (!kernel.ok()) return kernel.status();
  return engine::make_planned<AfterTextBlocks>(problem, device, *kernel, *call);
}

}  // namespace strobe::gpu
