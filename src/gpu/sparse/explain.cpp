// SPDX-License-Identifier: Apache-2.0
// What explain_sparse_forward() says of a call on a GPU: how its queries are launched, how each source's rows are read,
// and its forward's plan.
#include <fmt/format.h>

#include <string>

#include "call/row_format.h"
#include "gpu/sparse/launches.h"
#include "gpu/sparse/sparse.h"

namespace strobe::gpu {
namespace {

std::string rows_text(const SourcePlaces& places, DType dtype) {
  if (!places.in_format()) return fmt::format("{}, read where they lie", name_of(dtype));
  const auto bytes = [](const RowFormat& format) { return fmt::format("of {} bytes", format.row_bytes); };
  const std::string format = places.v_apart()
                                 ? fmt::format("{} of K and {} of V", bytes(places.k_format), bytes(places.v_format))
                                 : bytes(places.k_format);
  if (places.in_place) return fmt::format("{}, converted to {} as the forward reads them", format, name_of(dtype));
  return fmt::format("{}, converted to {} in the workspace first: {}", format, name_of(dtype), places.not_in_place);
}

}  // namespace

Result<std::string> explain_sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options,
                                           const Execution& execution, const runtime::CudaDevice& device) {
  const Result<SparseCall> call = sparse_call(arguments, options, execution, device);
  if (!call.ok()) return call.status();
  const std::vector<Queries> launches = launches_of(*call);
  if (launches.empty()) return std::string("engine        gpu: there are no queries\n");
  const std::int64_t queries = launches.front().count();
  const Result<std::shared_ptr<const SparsePlan>> plan = SparsePlan::find(*call, queries, options, execution, device);
  if (!plan.ok()) return plan.status();
  const SparseLayout& layout = (*plan)->layout();
  std::string text =
      fmt::format("launches      {} of {} queries, {} lists of each\n", launches.size(), queries, call->lists);
  text += fmt::format("workspace     {} bytes\n", layout.bytes);
  if (call->merges) text += "parts         of the sources, the sink and LSE are put together by a kernel\n";
  for (std::size_t i = 0; i < layout.sources.size(); ++i) {
    if (!arguments.sources[i].k.given()) continue;
    text += fmt::format("source {}      rows {}\n", i, rows_text(call->places[i], arguments.q.dtype));
    text += layout.sources[i].forward->explain();
  }
  return text;
}

}  // namespace strobe::gpu
