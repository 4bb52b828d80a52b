// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/merge.h"

#include <fmt/format.h>

#include <algorithm>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "gpu/auxiliary/merge_variant.h"
#include "gpu/call/find_kernel.h"
#include "gpu/params/element.h"
#include "gpu/variant/architecture.h"
#include "runtime/launch.h"

namespace strobe::gpu {
namespace {

static_assert(auxiliary::kMostMergedParts == kMaxMergedParts);

constexpr std::int64_t kVectorColumns = 4;

/// Whether every four columns of a row are one access.
bool is_aligned(const ConstTensorView& o) {
  const auto rank = static_cast<std::size_t>(o.rank);
  const auto bytes = kVectorColumns * static_cast<std::int64_t>(size_of(o.dtype));
  return o.shape[rank - 1] % kVectorColumns == 0 &&
         reinterpret_cast<std::uintptr_t>(o.data) % static_cast<std::uintptr_t>(bytes) == 0 &&
         std::all_of(o.strides.begin(), o.strides.begin() + o.rank - 1,
                     [](std::int64_t stride) { return stride % kVectorColumns == 0; });
}

/// Packed tensors are a batch of 1.
auxiliary::MergedTensor merged_tensor(const ConstTensorView& o, const ConstTensorView& lse) {
  const auto rows = static_cast<std::size_t>(o.rank - 3);
  auxiliary::MergedTensor tensor{};
  tensor.o = const_cast<void*>(o.data);
  tensor.o_batch = rows == 0 ? 0 : o.strides[0];
  tensor.o_row = o.strides[rows];
  tensor.o_head = o.strides[rows + 1];
  tensor.lse = static_cast<float*>(const_cast<void*>(lse.data));
  tensor.lse_batch = rows == 0 ? 0 : lse.strides[0];
  tensor.lse_head = lse.strides[rows];
  tensor.lse_row = lse.strides[rows + 1];
  return tensor;
}

auxiliary::MergeConfig config_of(const MergeArguments& a) {
  const auto parts_aligned = [](const PartialResult& part) { return is_aligned(part.o); };
  return {.source = element_of(a.parts.front().o.dtype),
          .destination = element_of(a.o.dtype),
          .aligned = is_aligned(a.o) && std::all_of(a.parts.begin(), a.parts.end(), parts_aligned),
          .most_parts = a.parts.size() <= auxiliary::kFewParts ? auxiliary::kFewParts : auxiliary::kMostMergedParts};
}

Result<runtime::Kernel> find_merge(const auxiliary::MergeConfig& config, const runtime::CudaDevice& device) {
  return find_kernel(config, device, 0, [&] { return merge_variant(config, architecture_of(device)); });
}

template <int most_parts>
Status launch(const MergeArguments& a, const Execution& execution, const runtime::CudaDevice& device,
              const auxiliary::MergeConfig& config) {
  const auto rows = static_cast<std::size_t>(a.o.rank - 3);
  const std::int64_t batch = rows == 0 ? 1 : a.o.shape[0];
  auxiliary::MergeParams<most_parts> params{};
  params.result = merged_tensor(a.o, a.lse);
  for (const PartialResult& part : a.parts) params.parts[params.count++] = merged_tensor(part.o, part.lse);
  params.rows = static_cast<int>(a.o.shape[rows]);
  params.heads = static_cast<int>(a.o.shape[rows + 1]);
  params.columns = static_cast<int>(a.o.shape[rows + 2]);
  params.jobs = (Checked(batch) * a.o.shape[rows] * a.o.shape[rows + 1]).value();
  if (params.jobs == 0) return {};
  const std::int64_t blocks = ceil_div<std::int64_t>(params.jobs, rows_per_block(config));
  constexpr std::int64_t kMostBlocks = (1LL << 31) - 1;
  if (blocks > kMostBlocks) {
    return {StatusCode::unsupported, fmt::format("merging {} rows is not supported: the gpu engine takes up to {}",
                                                 params.jobs, kMostBlocks * rows_per_block(config))};
  }
  const Result<runtime::Kernel> kernel = find_merge(config, device);
  if (!kernel.ok()) return kernel.status();
  const runtime::ContextScope context(device);
  if (!context.status().ok()) return context.status();
  return runtime::launch(*device.driver, kernel->launched_in(context.current()),
                         runtime::row_of_blocks(blocks, auxiliary::kCombineThreads),
                         static_cast<runtime::CUstream>(execution.stream), params);
}

}  // namespace

Status merge(const MergeArguments& arguments, const Execution& execution, const runtime::CudaDevice& device) {
  const auxiliary::MergeConfig config = config_of(arguments);
  return config.most_parts == auxiliary::kFewParts
             ? launch<auxiliary::kFewParts>(arguments, execution, device, config)
             : launch<auxiliary::kMostMergedParts>(arguments, execution, device, config);
}

}  // namespace strobe::gpu
