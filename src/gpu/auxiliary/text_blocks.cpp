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
#include "gpu/call/find_kernel.h"
#include "gpu/call/with_workspace.h"
#include "gpu/params/captures.h"
#include "gpu/params/score.h"
#include "gpu/plan/text_blocks.h"
#include "gpu/variant/architecture.h"
#include "gpu/variant/text_code.h"
#include "runtime/launch.h"

namespace strobe::gpu {
namespace {

using auxiliary::TextBlocksConfig;

/// With bits a CTA each while all run at once, as it then evaluates the mask of the block's pairs.
int blocks_of_cta(std::int64_t blocks, bool bits) {
  constexpr std::int64_t kFewBlocks = 1024;
  return bits && blocks <= kFewBlocks ? 1 : auxiliary::kMostTextBlocksOfCta;
}

TextBlocksConfig config_of(const AttentionProblem& problem) {
  const ScoreRule rule = score_rule(problem);
  TextBlocksConfig config;
  config.rule.varlen = rule.varlen;
  config.rule.leftpad = rule.leftpad;
  config.rule.offsets = rule.offsets;
  config.rule.block_mask = rule.block_mask;
  config.rule.block_bits = rule.block_bits;
  config.rule.text = mask_rule(problem);
  return config;
}

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

  std::size_t workspace_bytes() const override {
    const std::int64_t blocks = shape_.count().value();
    if (!problem_.expression.mask_is_bits) return offset_ + static_cast<std::size_t>(blocks);
    return offset_ +
           (shape_.bits_bytes() + block_bits_offset(blocks) + tile_claims_bytes(problem_)).value<std::size_t>();
  }
  std::string explain() const override {
    const std::string_view pairs = problem_.expression.mask_is_bits ? ", pairs as bits" : "";
    return wrapped().explain() +
           fmt::format("mask          a text, over blocks of {0} x {0} first: {1} x {2} x {3} x {4}{5}\n",
                       problem_.modifiers.block_size, shape_.batches, shape_.heads, shape_.q_blocks, shape_.k_blocks,
                       pairs);
  }

  Status run(const ForwardArguments& arguments, const Execution& execution) const override {
    return run_any(arguments, execution);
  }
  Status run(const BackwardArguments& arguments, const Execution& execution) const override {
    return run_any(arguments, execution);
  }

 private:
  ConstTensorView view(void* data) const {
    ConstTensorView view;
    view.data = data;
    view.dtype = DType::uint8;
    view.device = problem_.device;
    view.rank = 4;
    view.shape = {shape_.batches, shape_.heads, shape_.q_blocks, shape_.k_blocks};
    view.strides = {shape_.heads * shape_.q_blocks * shape_.k_blocks, shape_.q_blocks * shape_.k_blocks,
                    shape_.k_blocks, 1};
    return view;
  }

  template <class Arguments>
  Status run_any(const Arguments& given, const Execution& execution) const {
    const runtime::ContextScope context(device_);
    if (!context.status().ok()) return context.status();
    const auto stream = static_cast<runtime::CUstream>(execution.stream);
    return with_workspace(pool_, workspace_bytes(), execution, stream, [&](std::byte* workspace) {
      Arguments arguments = given;
      arguments.modifiers.block_mask = view(workspace + offset_);
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
                      .row_stride = mask.strides[2],
                      .bits = nullptr};
    }
    params.blocks = reinterpret_cast<unsigned char*>(blocks);
    params.bits = reinterpret_cast<unsigned*>(blocks + block_bits_offset(shape_.count().value()));
    if (problem_.expression.mask_is_bits && problem_.pass == Pass::forward) {
      params.tiles_taken = tile_claims(problem_, view(blocks)).count;
    }
    params.batches = static_cast<int>(shape_.batches);
    params.heads = static_cast<int>(shape_.heads);
    params.q_blocks = static_cast<int>(shape_.q_blocks);
    params.k_blocks = static_cast<int>(shape_.k_blocks);
    params.heads_per_kv = static_cast<int>(std::max<std::int64_t>(1, heads_per_key_head(problem_)));
    params.count = shape_.count().value();
    params.blocks_of_cta = blocks_of_cta(params.count, problem_.expression.mask_is_bits);
    return runtime::launch(*device_.driver, kernel_.launched_in(context),
                           runtime::row_of_blocks(ceil_div<std::int64_t>(params.count, params.blocks_of_cta),
                                                  auxiliary::kTextBlocksThreads),
                           stream, params);
  }

  AttentionProblem problem_;
  TextBlocksShape shape_;
  const runtime::CudaDevice& device_;
  runtime::Kernel kernel_;
  std::size_t offset_;  // of the blocks in the workspace
  mutable runtime::WorkspacePool pool_;
};

}  // namespace

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
