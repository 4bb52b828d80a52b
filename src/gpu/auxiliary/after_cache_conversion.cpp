// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/after_cache_conversion.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/workspace.h"
#include "engine/wrapped_call.h"
#include "gpu/auxiliary/convert_cache_variant.h"
#include "gpu/call/find_kernel.h"
#include "gpu/call/shared_or_any.h"
#include "gpu/call/shared_pool.h"
#include "gpu/call/with_workspace.h"
#include "gpu/params/cache.h"
#include "gpu/params/rows.h"
#include "gpu/params/scales.h"
#include "gpu/plan/converted_cache.h"
#include "gpu/variant/architecture.h"
#include "runtime/launch.h"

namespace strobe::gpu {
namespace {

/// K or V as 16-bit rows.
ConstTensorView rows_at(const AttentionProblem& problem, void* data, std::int64_t columns) {
  ConstTensorView view;
  view.data = data;
  view.dtype = problem.dtype;
  view.device = problem.device;
  const std::int64_t row = problem.heads_kv * columns;
  if (problem.packed_k) {
    view.rank = 3;
    view.shape = {problem.total_k, problem.heads_kv, columns};
    view.strides = {row, columns, 1};
  } else {
    view.rank = 4;
    view.shape = {problem.batch, problem.seqlen_k, problem.heads_kv, columns};
    view.strides = {problem.seqlen_k * row, row, columns, 1};
  }
  return view;
}

/// Whether V is K's first columns, scales and all.
bool shares_columns(const AttentionProblem& problem, const ForwardArguments& given) {
  return problem.stored.k_rows == problem.stored.v_rows && latent_rows_are_stored(given);
}

auxiliary::ConvertedTensor tensor_of(const RowsView& from, const ConstTensorView& scales, std::int64_t scale_rows,
                                     const ConstTensorView& to) {
  const auto last = static_cast<std::size_t>(to.rank - 1);
  const auto pieces = static_cast<int>(to.shape[last] / auxiliary::kConvertedElements);
  const int row_pieces = static_cast<int>(to.shape[last - 1]) * pieces;
  return {.from = rows_of_pairs(from),
          .scales = scale_params(scales, scale_rows),
          .to = static_cast<unsigned short*>(const_cast<void*>(to.data)),
          .row_pieces = row_pieces,
          .by_row_pieces = Divisor::of(row_pieces),
          .by_head_pieces = Divisor::of(pieces)};
}

class AfterCacheConversion final : public engine::WrappedCall {
 public:
  AfterCacheConversion(const AttentionProblem& problem, const runtime::CudaDevice& device,
                       const runtime::Kernel& kernel, std::shared_ptr<const engine::PlannedCall> call)
      : WrappedCall(std::move(call)),
        problem_(problem),
        device_(device),
        kernel_(kernel),
        values_(converted_bytes(problem, problem.head_dim).value<std::size_t>()),
        own_(values_ + converted_bytes(problem, problem.head_dim_v).value<std::size_t>()) {}

  std::size_t workspace_bytes() const override { return own_ + wrapped().workspace_bytes(); }
  std::string explain() const override {
    return wrapped().explain() +
           fmt::format("stored K, V   {}; converted to {} first, once for all query rows, {} bytes\n",
                       strobe::name_of(problem_.stored.dtype), strobe::name_of(problem_.dtype), own_);
  }

  using PlannedCall::run;
  Status run(const ForwardArguments& given, const Execution& execution) const override {
    if (Status status = check_alignments(problem_, given); !status.ok()) return status;
    const runtime::ContextScope context(device_);
    if (!context.status().ok()) return context.status();
    const auto stream = static_cast<runtime::CUstream>(execution.stream);
    const std::size_t bytes = workspace_bytes();
    return with_workspace(shared_pool(device_, bytes), bytes, execution, stream, [&](std::byte* workspace) {
      ForwardArguments arguments = given;
      arguments.k = rows_at(problem_, workspace, problem_.head_dim);
      arguments.v = rows_at(problem_, workspace + values_, problem_.head_dim_v);
      if (shares_columns(problem_, given)) {
        arguments.v = arguments.k;
        arguments.v.shape[static_cast<std::size_t>(arguments.v.rank - 1)] = problem_.head_dim_v;
      }
      arguments.k_descale = arguments.v_descale = arguments.page_table = {};
      arguments.sequences.cache_batch_idx = {};
      Status status = convert(given, arguments, context.current(), stream);
      if (!status.ok()) return status;
      return wrapped().run(arguments, execution_in(workspace + own_, bytes - own_, execution));
    });
  }

 private:
  Status convert(const ForwardArguments& from, const ForwardArguments& to, runtime::CUcontext context,
                 runtime::CUstream stream) const {
    auxiliary::ConvertCacheParams params{};
    params.k = tensor_of({"k", from.k}, from.k_descale, problem_.stored.k_rows, to.k);
    params.v = tensor_of({"v", from.v}, from.v_descale, problem_.stored.v_rows, to.v);
    if (to.v.data == to.k.data) params.v.to = nullptr;
    params.cache = cache_params(problem_, from, 0);
    params.seqused = static_cast<const int*>(from.sequences.seqused_k.data);
    params.cu_seqlens = static_cast<const int*>(from.sequences.cu_seqlens_k.data);
    params.seqlen = static_cast<int>(problem_.seqlen_k);
    params.total = problem_.total_k;
    params.chunks = static_cast<int>(ceil_div<std::int64_t>(problem_.seqlen_k, auxiliary::kConvertedRows));
    params.by_chunks = Divisor::of(params.chunks);
    params.in_pages = problem_.page_size != 0;
    params.has_entries = problem_.has_cache_batch_idx;
    return runtime::launch(*device_.driver, kernel_.launched_in(context),
                           runtime::row_of_blocks(2 * problem_.batch * params.chunks, auxiliary::kConvertThreads),
                           stream, params);
  }

  AttentionProblem problem_;
  const runtime::CudaDevice& device_;
  runtime::Kernel kernel_;
  std::size_t values_;  // where V lies in the workspace
  std::size_t own_;     // what K and V take of it
};

}  // namespace

engine::PlannedCallResult after_cache_conversion(const AttentionProblem& problem, const runtime::CudaDevice& device,
                                                 const engine::PlannedCallResult& call) {
  if (!call.ok()) return call;
  const auxiliary::ConvertCacheConfig config = convert_cache_config(problem);
  const Result<runtime::Kernel> kernel =
      find_kernel(config, device, 0, [&] { return convert_cache_variant(config, architecture_of(device)); });
  if (!kernel.ok()) return kernel.status();
  return engine::make_planned<AfterCacheConversion>(problem, device, *kernel, *call);
}

}  // namespace strobe::gpu
