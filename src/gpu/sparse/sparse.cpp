// SPDX-License-Identifier: Apache-2.0
#include "gpu/sparse/sparse.h"

#include <vector>

#include "call/workspace.h"
#include "gpu/auxiliary/merge.h"
#include "gpu/call/find_kernel.h"
#include "gpu/call/with_workspace.h"
#include "gpu/sparse/launches.h"
#include "gpu/sparse/listed_places.h"
#include "gpu/sparse/listed_rows.h"
#include "gpu/sparse/sparse_plan.h"
#include "gpu/variant/architecture.h"

namespace strobe::gpu {
namespace {

std::byte* bytes_of(const void* data) { return static_cast<std::byte*>(const_cast<void*>(data)); }

template <class View>
View moved(View view, std::int64_t elements) {
  view.data = bytes_of(view.data) + elements * static_cast<std::int64_t>(size_of(view.dtype));
  return view;
}

/// q or o as [entries, rows, heads, columns].
template <class View>
View rows_of_queries(const View& tensor, const Queries& queries) {
  const bool packed = tensor.rank == 3;
  const std::size_t at = packed ? 0 : 1;
  const std::int64_t entry_stride = packed ? 0 : tensor.strides[0];
  View view = moved(tensor, queries.entry * entry_stride + queries.row * tensor.strides[at]);
  view.rank = 4;
  view.shape = {queries.entries, queries.rows, tensor.shape[at + 1], tensor.shape[at + 2]};
  view.strides = {entry_stride, tensor.strides[at], tensor.strides[at + 1], 1};
  return view;
}

/// LSE as [entries, heads, rows].
TensorView lse_of_queries(const TensorView& lse, const Queries& queries) {
  if (!lse.given()) return lse;
  const bool packed = lse.rank == 2;
  const std::size_t at = packed ? 0 : 1;
  const std::int64_t entry_stride = packed ? 0 : lse.strides[0];
  TensorView view = moved(lse, queries.entry * entry_stride + queries.row * lse.strides[at + 1]);
  view.rank = 3;
  view.shape = {queries.entries, lse.shape[at], queries.rows};
  view.strides = {entry_stride, lse.strides[at], lse.strides[at + 1]};
  return view;
}

/// [entries, rows, heads, columns] as the forward has it: a sequence of one query for each list.
template <class View>
View one_query_each(const View& rows, std::int64_t lists) {
  View view = rows;
  const std::int64_t query_stride = rows.shape[1] > 1 ? rows.strides[1] : rows.strides[0];
  view.shape = {rows.shape[0] * rows.shape[1] * lists, 1, rows.shape[2] / lists, rows.shape[3]};
  const std::int64_t stride = lists == 1 ? query_stride : view.shape[2] * rows.strides[2];
  view.strides = {stride, stride, rows.strides[2], 1};
  return view;
}

/// What one launch enqueues.
class Launch {
 public:
  Launch(const SparseCall& call, const SparsePlan& plan, const Queries& queries, const Execution& execution,
         const runtime::CudaDevice& device, std::byte* workspace)
      : call_(call), plan_(plan), queries_(queries), execution_(execution), device_(device), workspace_(workspace) {}

  Status enqueue(runtime::CUcontext context) const {
    for (std::size_t i = 0; i < plan_.layout().sources.size(); ++i) {
      Status status = find_places(i, context);
      if (status.ok() && call_.places[i].converted()) status = convert_source(i, context);
      if (status.ok()) status = attend(i);
      if (!status.ok()) return status;
    }
    return call_.merges ? merge_parts() : Status();
  }

 private:
  const SparseForwardArguments& a() const { return call_.arguments; }
  const PlannedSource& source(std::size_t index) const { return plan_.layout().sources[index]; }
  runtime::CUstream stream() const { return static_cast<runtime::CUstream>(execution_.stream); }

  ConstTensorView in_workspace(std::size_t offset, DType dtype, std::initializer_list<std::int64_t> shape) const {
    ConstTensorView view = tensor(static_cast<const float*>(nullptr), shape);
    view.data = workspace_ + offset;
    view.dtype = dtype;
    view.device = a().q.device;
    return view;
  }

  Status find_places(std::size_t index, runtime::CUcontext context) const {
    auxiliary::ListedPlacesParams params = listed_places_params(a(), index, call_.places[index], call_.lists);
    const std::int64_t seqlen_q = a().q.rank == 3 ? 0 : a().q.shape[1];
    params.first_query = static_cast<int>(queries_.entry * seqlen_q + queries_.row);
    params.places = reinterpret_cast<int*>(workspace_ + source(index).places);
    params.counts = reinterpret_cast<int*>(workspace_ + source(index).counts);
    const auxiliary::ListedPlacesConfig config{.pages = a().sources[index].page_table.given()};
    const Result<runtime::Kernel> kernel =
        find_kernel(config, device_, 0, [&] { return listed_places_variant(config, architecture_of(device_)); });
    if (!kernel.ok()) return kernel.status();
    return runtime::launch(*device_.driver, kernel->launched_in(context),
                           runtime::row_of_blocks(queries_.count() * call_.lists, auxiliary::kListedPlacesThreads),
                           stream(), params);
  }

  /// Rows of K or V that the lists name, as elements of q's dtype behind `offset` of the workspace.
  Status convert_rows(std::size_t index, const ConstTensorView& rows, const RowFormat& format, std::size_t offset,
                      runtime::CUcontext context) const {
    const AttentionProblem& problem = source(index).problem;
    auxiliary::ListedRowsParams params = listed_rows_params(rows, format, call_.lists, problem.seqlen_k);
    params.places = reinterpret_cast<const int*>(workspace_ + source(index).places);
    params.counts = reinterpret_cast<const int*>(workspace_ + source(index).counts);
    params.to = reinterpret_cast<unsigned short*>(workspace_ + offset);
    const auxiliary::ListedRowsConfig config = listed_rows_config(format, a().q.dtype);
    const Result<runtime::Kernel> kernel =
        find_kernel(config, device_, 0, [&] { return listed_rows_variant(config, architecture_of(device_)); });
    if (!kernel.ok()) return kernel.status();
    return runtime::launch(*device_.driver, kernel->launched_in(context),
                           runtime::row_of_blocks(problem.batch * params.blocks, auxiliary::kListedRowsThreads),
                           stream(), params);
  }

  Status convert_source(std::size_t index, runtime::CUcontext context) const {
    const SourcePlaces& places = call_.places[index];
    Status status = convert_rows(index, places.k, places.k_format, source(index).k, context);
    if (!status.ok() || !places.v_apart()) return status;
    return convert_rows(index, places.v, places.v_format, source(index).v, context);
  }

  /// K and V as they were converted; where V is part of K, its first columns.
  void set_converted(std::size_t index, ForwardArguments& forward) const {
    const AttentionProblem& problem = source(index).problem;
    const auto rows = [&](std::size_t offset, std::int64_t columns) {
      return in_workspace(offset, a().q.dtype, {problem.batch, problem.seqlen_k, problem.heads_kv, columns});
    };
    forward.k = rows(source(index).k, problem.head_dim);
    if (call_.places[index].v_apart()) {
      forward.v = rows(source(index).v, problem.head_dim_v);
    } else {
      forward.v = forward.k;
      forward.v.shape[3] = problem.head_dim_v;
    }
  }

  ConstTensorView part_of_o(std::size_t index) const {
    const AttentionProblem& problem = source(index).problem;
    return in_workspace(source(index).o, a().o.dtype, {problem.batch, 1, problem.heads_q, problem.head_dim_v});
  }

  ConstTensorView part_of_lse(std::size_t index) const {
    const AttentionProblem& problem = source(index).problem;
    return in_workspace(source(index).lse, DType::float32, {problem.batch, problem.heads_q, 1});
  }

  Status attend(std::size_t index) const {
    const AttentionProblem& problem = source(index).problem;
    ForwardArguments forward;
    forward.q = one_query_each(rows_of_queries(a().q, queries_), call_.lists);
    if (call_.places[index].converted()) {
      set_converted(index, forward);
    } else {
      forward.k = call_.places[index].k;
      forward.v = call_.places[index].in_place ? forward.k : call_.places[index].v;
      forward.page_table = in_workspace(source(index).places, DType::int32, {problem.batch, problem.seqlen_k});
    }
    forward.sequences.seqused_k = in_workspace(source(index).counts, DType::int32, {problem.batch});
    if (call_.merges) {
      forward.o = writable(part_of_o(index));
      forward.lse = writable(part_of_lse(index));
    } else {
      forward.o = one_query_each(rows_of_queries(a().o, queries_), call_.lists);
    }
    const SparseLayout& layout = plan_.layout();
    return source(index).forward->run(
        forward, execution_in(workspace_ + layout.forward, layout.bytes - layout.forward, execution_));
  }

  static TensorView writable(const ConstTensorView& view) {
    return {const_cast<void*>(view.data), view.dtype, view.device, view.rank, view.shape, view.strides};
  }

  /// The sink as the part of a key without a value: its score is the sink, its O is zero.
  Result<PartialResult> sink_part(std::int64_t heads, std::int64_t columns) const {
    PartialResult part{.o = in_workspace(plan_.layout().zeros, a().o.dtype, {1, 1, 1, columns}), .lse = a().sink};
    part.o.shape = {queries_.entries, queries_.rows, heads, columns};
    part.o.strides = {0, 0, 0, 1};
    part.lse.rank = 3;
    part.lse.shape = {queries_.entries, heads, queries_.rows};
    part.lse.strides = {0, 1, 0};
    const auto bytes = static_cast<std::size_t>(columns) * size_of(a().o.dtype);
    const auto zeros = reinterpret_cast<runtime::CUdeviceptr>(workspace_ + plan_.layout().zeros);
    Status status =
        device_.driver->check(device_.driver->MemsetD32Async(zeros, 0, (bytes + 3) / 4, stream()), "clearing a row");
    if (!status.ok()) return status;
    return part;
  }

  Status merge_parts() const {
    const TensorView o = rows_of_queries(a().o, queries_);
    const std::int64_t heads = o.shape[2];
    const std::int64_t columns = o.shape[3];
    std::vector<PartialResult> parts;
    for (std::size_t i = 0; i < plan_.layout().sources.size(); ++i) {
      PartialResult part{.o = part_of_o(i), .lse = part_of_lse(i)};
      part.o.shape = {queries_.entries, queries_.rows, heads, columns};
      part.o.strides = {queries_.rows * heads * columns, heads * columns, columns, 1};
      part.lse.shape = {queries_.entries, heads, queries_.rows};
      part.lse.strides = {queries_.rows * heads, 1, heads};
      parts.push_back(part);
    }
    if (a().sink.given()) {
      const Result<PartialResult> part = sink_part(heads, columns);
      if (!part.ok()) return part.status();
      parts.push_back(*part);
    }
    return merge({.parts = parts, .o = o, .lse = lse_of_queries(a().lse, queries_)}, execution_, device_);
  }

  const SparseCall& call_;
  const SparsePlan& plan_;
  const Queries& queries_;
  const Execution& execution_;
  const runtime::CudaDevice& device_;
  std::byte* workspace_;
};

}  // namespace

Status sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options, const Execution& execution,
                      const runtime::CudaDevice& device) {
  const Result<SparseCall> call = sparse_call(arguments, options, execution, device);
  if (!call.ok()) return call.status();
  const runtime::ContextScope context(device);
  if (!context.status().ok()) return context.status();
  for (const Queries& queries : launches_of(*call)) {
    const Result<std::shared_ptr<const SparsePlan>> plan =
        SparsePlan::find(*call, queries.count(), options, execution, device);
    if (!plan.ok()) return plan.status();
    Status status =
        with_workspace((*plan)->pool(), (*plan)->layout().bytes, execution,
                       static_cast<runtime::CUstream>(execution.stream), [&](std::byte* workspace) {
                         return Launch(*call, **plan, queries, execution, device, workspace).enqueue(context.current());
                       });
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace strobe::gpu
