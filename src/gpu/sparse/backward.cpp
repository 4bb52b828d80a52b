// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "gpu/call/find_kernel.h"
#include "gpu/call/shared_pool.h"
#include "gpu/call/with_workspace.h"
#include "gpu/params/element.h"
#include "gpu/params/rows.h"
#include "gpu/plan/supported.h"
#include "gpu/sparse/backward_layout.h"
#include "gpu/sparse/backward_variants.h"
#include "gpu/sparse/listed_places.h"
#include "gpu/sparse/sparse.h"
#include "gpu/variant/architecture.h"
#include "kernels/auxiliary/sink_gradient_params.h"
#include "kernels/math/constants.h"
#include "runtime/launch.h"

namespace strobe::gpu {
namespace {

using auxiliary::kSparseKeys;
using auxiliary::kSparseTile;
using auxiliary::SparseBackwardConfig;
using auxiliary::SparseBackwardParams;

Divisor divisor_of(std::int64_t number) { return Divisor::of(Checked(std::max<std::int64_t>(number, 1)).value<int>()); }

/// Whether rows are whole accesses.
bool is_aligned(const ConstTensorView& tensor) {
  if (!tensor.given()) return true;
  const std::int64_t elements = access_elements(tensor.dtype);
  const auto last = static_cast<std::size_t>(tensor.rank - 1);
  return tensor.shape[last] % elements == 0 && reinterpret_cast<std::uintptr_t>(tensor.data) % kAccessBytes == 0 &&
         std::all_of(tensor.strides.begin(), tensor.strides.begin() + tensor.rank - 1,
                     [&](std::int64_t stride) { return stride % elements == 0; });
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
  SparseGradients(const SparseBackwardArguments& arguments, const SparseOptions& options, const Execution& execution,
                  const SparseGradientLayout& layout, const runtime::CudaDevice& device,
                  const SparseBackwardKernels& kernels, const SparseBackwardConfig& config, std::byte* workspace)
      : b_(arguments),
        execution_(execution),
        layout_(layout),
        device_(device),
        kernels_(kernels),
        config_(config),
        workspace_(workspace),
        params_(params_of(options)) {}

  Status enqueue(runtime::CUcontext context) const {
    Status status = prepare(context);
    for (const SparseGradientRows& source : layout_.sources) {
      if (status.ok()) status = clear(source);
    }
    for (std::int64_t first = 0; status.ok() && first < layout_.queries(); first += layout_.wave) {
      if (layout_.heads_q == 0) break;
      status = enqueue_wave(first, std::min(layout_.wave, layout_.queries() - first), context);
    }
    for (const SparseGradientRows& source : layout_.sources) {
      if (status.ok()) status = store(source, context);
    }
    return status.ok() && b_.d_sink.given() ? differentiate_sink(context) : status;
  }

 private:
  const SparseForwardArguments& a() const { return b_.forward; }
  template <class Number>
  Number* at(std::size_t offset) const {
    return reinterpret_cast<Number*>(workspace_ + offset);
  }
  Rows rows_of(std::string_view name, const ConstTensorView& tensor) const {
    return gpu::rows_of({name, tensor}, a().q.dtype);
  }

  template <class Params>
  Status launch(const runtime::Kernel& kernel, Checked blocks, int threads, const Params& params,
                runtime::CUcontext context, std::int64_t blocks_y = 1, int shared_bytes = 0) const {
    if (blocks.value() == 0 || blocks_y == 0) return {};
    runtime::LaunchShape shape = runtime::row_of_blocks(blocks.value<int>(), threads, shared_bytes);
    shape.grid.y = static_cast<unsigned>(blocks_y);
    return runtime::launch(*device_.driver, kernel.launched_in(context), shape,
                           static_cast<runtime::CUstream>(execution_.stream), params);
  }

  /// Products of one matrix whose tiles have `rows` rows.
  Status launch_product(const runtime::Kernel& kernel, Checked blocks, std::int64_t blocks_y, int rows, int products,
                        const SparseBackwardParams& params, runtime::CUcontext context) const {
    return launch(kernel, blocks, auxiliary::sparse_threads(rows), params, context, blocks_y,
                  auxiliary::sparse_tile_bytes(rows, products));
  }

  SparseBackwardParams params_of(const SparseOptions& options) const {
    SparseBackwardParams params{};
    for (const SparseGradientRows& source : layout_.sources) {
      params.sources[params.source_count++] = rows_of_source(source);
    }
    params.q = rows_of("q", a().q);
    params.d_o = rows_of("d_o", b_.d_o);
    params.dq = rows_of("dq", b_.dq);
    params.by_seqlen_q = divisor_of(layout_.seqlen_q);
    params.heads_kv = static_cast<int>(layout_.heads_kv);
    params.group = static_cast<int>(layout_.group);
    params.head_dim = static_cast<int>(layout_.head_dim);
    params.head_dim_v = static_cast<int>(layout_.head_dim_v);
    params.unit_keys = Checked(layout_.unit_keys).value<int>();
    params.scale = options.scale.value_or(1.0F / std::sqrt(static_cast<float>(layout_.head_dim)));
    params.scale_log2 = params.scale * kLog2E;
    if (options.softcap != 0.0F) {
      params.cap_scale = params.scale / options.softcap;
      params.cap_log2 = options.softcap * kLog2E;
    }
    params.lse_log2 = at<float>(layout_.lse_log2);
    params.d_sum = at<float>(layout_.d_sum);
    params.rows = layout_.padded_rows;
    params.p = at<unsigned short>(layout_.p);
    params.ds = at<unsigned short>(layout_.ds);
    return params;
  }

  auxiliary::SparseRows rows_of_source(const SparseGradientRows& source) const {
    const SparseSource& of = a().sources[source.index];
    auxiliary::SparseRows rows{};
    rows.k = rows_of("k", of.k);
    rows.v = of.v.given() ? rows_of("v", of.v) : rows.k;
    rows.by_page_rows = divisor_of(source.page_rows);
    rows.places = at<int>(source.places);
    rows.counts = at<int>(source.counts);
    rows.lists = static_cast<int>(source.lists);
    rows.width = Checked(source.width).value<int>();
    rows.first_key = static_cast<int>(source.first_key);
    rows.v_apart = of.v.given();
    rows.first_v_column = static_cast<int>(source.first_v_column);
    rows.columns = static_cast<int>(source.columns);
    rows.shares = at<float>(source.shares);
    return rows;
  }

  Status prepare(runtime::CUcontext context) const {
    auxiliary::SparsePrepareParams params{};
    params.o = rows_of("o", a().o);
    params.d_o = rows_of("d_o", b_.d_o);
    const std::size_t heads_axis = layout_.packed ? 0 : 1;
    params.lse = static_cast<const float*>(a().lse.data);
    params.lse_batch_stride = layout_.packed ? 0 : a().lse.strides[0];
    params.lse_head_stride = a().lse.strides[heads_axis];
    params.lse_row_stride = a().lse.strides[heads_axis + 1];
    params.d_lse = static_cast<const float*>(b_.d_lse.data);
    params.d_lse_batch_stride = layout_.packed ? 0 : b_.d_lse.strides[0];
    params.d_lse_head_stride = b_.d_lse.strides[heads_axis];
    params.d_lse_row_stride = b_.d_lse.strides[heads_axis + 1];
    params.by_seqlen_q = params_.by_seqlen_q;
    params.queries = Checked(layout_.queries()).value<int>();
    params.heads = static_cast<int>(layout_.heads_q);
    params.head_dim_v = params_.head_dim_v;
    params.lse_log2 = at<float>(layout_.lse_log2);
    params.row_max = at<float>(layout_.row_max);
    params.d_sum = at<float>(layout_.d_sum);
    params.rows = layout_.padded_rows;
    constexpr int kThreads = auxiliary::kSparsePrepareThreads;
    return launch(kernels_.prepare, ceil_div(Checked(layout_.padded_rows) * layout_.heads_q, kThreads / 32), kThreads,
                  params, context);
  }

  Status clear(const SparseGradientRows& source) const {
    const auto floats = (Checked(source.rows) * layout_.heads_kv * source.columns).value<std::size_t>();
    if (floats == 0) return {};
    return device_.driver->check(
        device_.driver->MemsetD32Async(reinterpret_cast<runtime::CUdeviceptr>(workspace_ + source.sums), 0, floats,
                                       static_cast<runtime::CUstream>(execution_.stream)),
        "clearing gradients of rows");
  }

  Status enqueue_wave(std::int64_t first, std::int64_t queries, runtime::CUcontext context) const {
    SparseBackwardParams params = params_;
    params.first_query = static_cast<int>(first);
    const Checked units = Checked(queries) * layout_.heads_kv;
    const std::int64_t blocks_of_heads = ceil_div<std::int64_t>(auxiliary::weight_heads(params.group), config_.heads);
    Status status;
    for (std::size_t i = 0; status.ok() && i < layout_.sources.size(); ++i) {
      params.source = static_cast<int>(i);
      status = find_places(layout_.sources[i], first, queries, context);
      if (!status.ok()) break;
      status = launch_product(kernels_.weights, units * ceil_div<std::int64_t>(layout_.sources[i].width, kSparseKeys),
                              blocks_of_heads, kSparseKeys, 2, params, context);
    }
    if (status.ok()) {
      status = launch_product(kernels_.query_gradient, units * ceil_div<std::int64_t>(layout_.head_dim, kSparseTile),
                              blocks_of_heads, kSparseTile, 1, params, context);
    }
    for (std::size_t i = 0; status.ok() && i < layout_.sources.size(); ++i) {
      params.source = static_cast<int>(i);
      status = add_shares(layout_.sources[i], params, queries, context);
    }
    return status;
  }

  /// The rows that the lists name, counted through all pages.
  Status find_places(const SparseGradientRows& source, std::int64_t first, std::int64_t queries,
                     runtime::CUcontext context) const {
    const SourcePlaces places{.k = {}, .v = {}, .page_step = source.page_rows, .row_step = 1, .list_step = 0};
    auxiliary::ListedPlacesParams params = listed_places_params(a(), source.index, places, source.lists);
    params.first_query = static_cast<int>(first);
    params.places = at<int>(source.places);
    params.counts = at<int>(source.counts);
    const auxiliary::ListedPlacesConfig config{};
    const Result<runtime::Kernel> kernel =
        find_kernel(config, device_, 0, [&] { return listed_places_variant(config, architecture_of(device_)); });
    if (!kernel.ok()) return kernel.status();
    return launch(*kernel, Checked(queries) * source.lists, auxiliary::kListedPlacesThreads, params, context);
  }

  Status add_shares(const SparseGradientRows& source, const SparseBackwardParams& params, std::int64_t queries,
                    runtime::CUcontext context) const {
    const std::int64_t tiles_of_k = ceil_div<std::int64_t>(layout_.head_dim, kSparseTile);
    const bool v_apart = a().sources[source.index].v.given();
    const std::int64_t tiles = tiles_of_k + (v_apart ? ceil_div<std::int64_t>(layout_.head_dim_v, kSparseTile) : 0);
    const Checked units = Checked(queries) * layout_.heads_kv;
    Status status = launch_product(kernels_.shares, units * ceil_div<std::int64_t>(source.width, kSparseKeys), tiles,
                                   kSparseKeys, 1, params, context);
    if (!status.ok()) return status;
    auxiliary::SparseSumParams sum{};
    sum.places = at<int>(source.places);
    sum.counts = at<int>(source.counts);
    sum.queries = static_cast<int>(queries);
    sum.lists = static_cast<int>(source.lists);
    sum.width = static_cast<int>(source.width);
    sum.by_width = divisor_of(source.width);
    sum.heads_kv = params.heads_kv;
    sum.shares = at<float>(source.shares);
    sum.sums = at<float>(source.sums);
    sum.columns = static_cast<int>(source.columns);
    // Ranges of rows that fill the device: more would only read the lists more often.
    const std::int64_t ctas = std::max<std::int64_t>(1, device_.multiprocessors / layout_.heads_kv);
    sum.rows_of_cta = static_cast<int>(std::max<std::int64_t>(1, ceil_div(source.rows, ctas)));
    return launch(kernels_.sum, ceil_div(source.rows, static_cast<std::int64_t>(sum.rows_of_cta)),
                  auxiliary::kSparseSumThreads, sum, context, layout_.heads_kv);
  }

  Status store(const SparseGradientRows& source, runtime::CUcontext context) const {
    const SparseSourceGradient& gradient = b_.gradients[source.index];
    auxiliary::SparseStoreParams params{};
    params.sums = at<float>(source.sums);
    params.by_page_rows = divisor_of(source.page_rows);
    params.by_heads = divisor_of(layout_.heads_kv);
    params.rows = (Checked(source.rows) * layout_.heads_kv).value<int>();
    params.columns = static_cast<int>(source.columns);
    params.first_v_column = static_cast<int>(source.first_v_column);
    params.head_dim = params_.head_dim;
    params.head_dim_v = params_.head_dim_v;
    params.dk = rows_of("dk", gradient.dk);
    if (gradient.dv.given()) params.dv = rows_of("dv", gradient.dv);
    constexpr int kThreads = auxiliary::kSparseStoreThreads;
    return launch(kernels_.store, ceil_div(Checked(params.rows), kThreads / 32), kThreads, params, context);
  }

  Status differentiate_sink(runtime::CUcontext context) const {
    const auxiliary::SinkGradientParams params{.lse_log2 = at<float>(layout_.lse_log2),
                                               .row_max = at<float>(layout_.row_max),
                                               .score_scale = 0.0F,
                                               .d_sum = at<float>(layout_.d_sum),
                                               .sink = static_cast<const float*>(a().sink.data),
                                               .d_sink = static_cast<float*>(b_.d_sink.data),
                                               .rows = layout_.padded_rows};
    return launch(kernels_.sink, layout_.heads_q, auxiliary::kSinkThreads, params, context);
  }

  const SparseBackwardArguments& b_;
  const Execution& execution_;
  const SparseGradientLayout& layout_;
  const runtime::CudaDevice& device_;
  const SparseBackwardKernels& kernels_;
  const SparseBackwardConfig& config_;
  std::byte* workspace_;
  SparseBackwardParams params_;
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
  return with_workspace(shared_pool(device, layout.bytes), layout.bytes, execution,
                        static_cast<runtime::CUstream>(execution.stream), [&](std::byte* workspace) {
                          return SparseGradients(arguments, options, execution, layout, device, *kernels, config,
                                                 workspace)
                              .enqueue(context.current());
                        });
}

}  // namespace strobe::gpu
