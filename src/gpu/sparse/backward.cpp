// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "gpu/call/find_kernel.h"
#include "gpu/call/shared_pool.h"
#include "gpu/call/with_workspace.h"
#include "gpu/params/element.h"
#include "gpu/params/rows.h"
#include "gpu/plan/supported.h"
#include "gpu/sparse/backward_params.h"
#include "gpu/sparse/backward_variants.h"
#include "gpu/sparse/listed_places.h"
#include "gpu/sparse/sparse.h"
#include "gpu/variant/architecture.h"
#include "runtime/launch.h"

namespace strobe::gpu {
namespace {

using auxiliary::kSparseKeys;
using auxiliary::kSparseTile;
using auxiliary::SparseBackwardConfig;
using auxiliary::SparseBackwardParams;

/// Whether rows are whole accesses.
bool is_aligned(const ConstTensorView& tensor) {
  if (!tensor.given()) return true;
  const std::int64_t elements = access_elements(tensor.dtype);
  const auto last = static_cast<std::size_t>(tensor.rank - 1);
  for (std::size_t axis = 0; axis < last; ++axis) {
    if (tensor.shape[axis] > 1 && tensor.strides[axis] % elements != 0) return false;
  }
  return tensor.shape[last] % elements == 0 && reinterpret_cast<std::uintptr_t>(tensor.data) % kAccessBytes == 0;
}

SparseBackwardConfig config_of(const SparseBackwardArguments& b, const SparseGradientLayout& layout) {
  constexpr std::int64_t kFewHeads = 16;
  const SparseForwardArguments& a = b.forward;
  const auto source_is_aligned = [](const SparseSource& source) {
    return is_aligned(source.k) && is_aligned(source.v);
  };
  return {.element = element_of(a.q.dtype),
          .aligned = is_aligned(a.q) && is_aligned(b.d_o) && layout.head_dim_v % access_elements(a.q.dtype) == 0 &&
                     std::ranges::all_of(a.sources, source_is_aligned),
          .heads = layout.group <= kFewHeads ? 16 : kSparseTile};
}

Status check_supported(const SparseForwardArguments& a) {
  if (size_of(a.q.dtype) != 2) {
    return unsupported(
        "q is {}: the gpu engine has gradients of sparse attention of float16 and bfloat16; the cpu engine has those "
        "of float32",
        name_of(a.q.dtype));
  }
  for (std::size_t i = 0; i < a.sources.size(); ++i) {
    if (!a.sources[i].k.given()) continue;
    if (Status status = check_elements(a.sources[i], fmt::format("sources[{}]", i), a.q.dtype); !status.ok()) {
      return status;
    }
  }
  return {};
}

/// What a call enqueues.
class SparseGradients {
 public:
  SparseGradients(const SparseGradientParams& params, const SparseGradientLayout& layout,
                  const SparseBackwardConfig& config, const SparseBackwardKernels& kernels,
                  const runtime::CudaDevice& device, runtime::CUcontext context, runtime::CUstream stream)
      : params_(params),
        layout_(layout),
        config_(config),
        kernels_(kernels),
        device_(device),
        context_(context),
        stream_(stream) {}

  Status enqueue(const SparseOptions& options, std::byte* workspace, bool sink) const {
    constexpr int kRowsOfCta = auxiliary::kSparsePrepareThreads / 32;
    Status status = launch(kernels_.prepare, ceil_div(Checked(layout_.padded_rows) * layout_.heads_q, kRowsOfCta),
                           auxiliary::kSparsePrepareThreads, params_.prepare());
    for (const SparseGradientRows& source : layout_.sources) {
      if (status.ok()) status = clear(source, workspace);
    }
    SparseBackwardParams products = params_.products(options);
    for (std::int64_t first = 0; layout_.heads_q > 0 && first < layout_.queries(); first += layout_.wave) {
      products.first_query = static_cast<int>(first);
      if (status.ok()) status = enqueue_wave(products, std::min(layout_.wave, layout_.queries() - first));
    }
    for (const SparseGradientRows& source : layout_.sources) {
      if (status.ok()) status = store(source);
    }
    if (!status.ok() || !sink) return status;
    return launch(kernels_.sink, layout_.heads_q, auxiliary::kSinkThreads, params_.sink());
  }

 private:
  template <class Params>
  Status launch(const runtime::Kernel& kernel, Checked blocks, int threads, const Params& params,
                std::int64_t blocks_y = 1, int shared_bytes = 0) const {
    if (blocks.value() == 0 || blocks_y == 0) return {};
    runtime::LaunchShape shape = runtime::row_of_blocks(blocks.value<int>(), threads, shared_bytes);
    shape.grid.y = static_cast<unsigned>(blocks_y);
    return runtime::launch(*device_.driver, kernel.launched_in(context_), shape, stream_, params);
  }

  /// Products of one matrix whose tiles have `rows` rows.
  Status launch_product(const runtime::Kernel& kernel, Checked blocks, std::int64_t blocks_y, int rows, int products,
                        const SparseBackwardParams& params) const {
    return launch(kernel, blocks, auxiliary::sparse_threads(rows), params, blocks_y,
                  auxiliary::sparse_tile_bytes(rows, products));
  }

  Status clear(const SparseGradientRows& source, std::byte* workspace) const {
    const auto floats = (Checked(source.rows) * layout_.heads_kv * source.columns).value<std::size_t>();
    if (floats == 0) return {};
    const auto sums = reinterpret_cast<runtime::CUdeviceptr>(workspace + source.sums);
    return device_.driver->check(device_.driver->MemsetD32Async(sums, 0, floats, stream_),
                                 "clearing gradients of rows");
  }

  /// Of `queries` queries from params.first_query on.
  Status enqueue_wave(SparseBackwardParams& params, std::int64_t queries) const {
    const Checked units = Checked(queries) * layout_.heads_kv;
    const std::int64_t blocks_of_heads = ceil_div<std::int64_t>(auxiliary::weight_heads(params.group), config_.heads);
    Status status;
    for (params.source = 0; status.ok() && params.source < params.source_count; ++params.source) {
      const SparseGradientRows& source = layout_.sources[static_cast<std::size_t>(params.source)];
      status = find_places(source, params.first_query, queries);
      if (!status.ok()) break;
      status = launch_product(kernels_.weights, units * ceil_div<std::int64_t>(source.width, kSparseKeys),
                              blocks_of_heads, kSparseKeys, 2, params);
    }
    if (status.ok()) {
      status = launch_product(kernels_.query_gradient, units * ceil_div<std::int64_t>(layout_.head_dim, kSparseTile),
                              blocks_of_heads, kSparseTile, 1, params);
    }
    for (params.source = 0; status.ok() && params.source < params.source_count; ++params.source) {
      status = add_shares(params, queries);
    }
    return status;
  }

  Status find_places(const SparseGradientRows& source, std::int64_t first, std::int64_t queries) const {
    const auxiliary::ListedPlacesConfig config{};
    const Result<runtime::Kernel> kernel =
        find_kernel(config, device_, 0, [&] { return listed_places_variant(config, architecture_of(device_)); });
    if (!kernel.ok()) return kernel.status();
    return launch(*kernel, Checked(queries) * source.lists, auxiliary::kListedPlacesThreads,
                  params_.places(source, first));
  }

  Status add_shares(const SparseBackwardParams& params, std::int64_t queries) const {
    const SparseGradientRows& source = layout_.sources[static_cast<std::size_t>(params.source)];
    const std::int64_t tiles_of_v =
        params.sources[params.source].v_apart ? ceil_div<std::int64_t>(layout_.head_dim_v, kSparseTile) : 0;
    const std::int64_t tiles = ceil_div<std::int64_t>(layout_.head_dim, kSparseTile) + tiles_of_v;
    Status status = launch_product(
        kernels_.shares, Checked(queries) * layout_.heads_kv * ceil_div<std::int64_t>(source.width, kSparseKeys), tiles,
        kSparseKeys, 1, params);
    if (!status.ok()) return status;
    const auxiliary::SparseSumParams sum = params_.sum(source, queries, device_.multiprocessors);
    return launch(kernels_.sum, ceil_div(source.rows, static_cast<std::int64_t>(sum.rows_of_cta)),
                  auxiliary::kSparseSumThreads, sum, layout_.heads_kv);
  }

  Status store(const SparseGradientRows& source) const {
    const auxiliary::SparseStoreParams params = params_.store(source);
    constexpr int kRowsOfCta = auxiliary::kSparseStoreThreads / 32;
    return launch(kernels_.store, ceil_div(Checked(params.rows), kRowsOfCta), auxiliary::kSparseStoreThreads, params);
  }

  const SparseGradientParams& params_;
  const SparseGradientLayout& layout_;
  const SparseBackwardConfig& config_;
  const SparseBackwardKernels& kernels_;
  const runtime::CudaDevice& device_;
  runtime::CUcontext context_;
  runtime::CUstream stream_;
};

}  // namespace

Status sparse_backward(const SparseBackwardArguments& arguments, const SparseOptions& options,
                       const Execution& execution, const runtime::CudaDevice& device) {
  if (Status status = check_supported(arguments.forward); !status.ok()) return status;
  const SparseGradientLayout layout = sparse_gradient_layout(arguments.forward);
  const SparseBackwardConfig config = config_of(arguments, layout);
  const Result<SparseBackwardKernels> kernels = sparse_backward_kernels(config, arguments.d_sink.given(), device);
  if (!kernels.ok()) return kernels.status();
  const runtime::ContextScope context(device);
  if (!context.status().ok()) return context.status();
  if (layout.bytes == 0) return {};
  const auto stream = static_cast<runtime::CUstream>(execution.stream);
  return with_workspace(shared_pool(device, layout.bytes), layout.bytes, execution, stream, [&](std::byte* workspace) {
    const SparseGradientParams params(arguments, layout, workspace);
    const SparseGradients gradients(params, layout, config, *kernels, device, context.current(), stream);
    return gradients.enqueue(options, workspace, arguments.d_sink.given());
  });
}

}  // namespace strobe::gpu
