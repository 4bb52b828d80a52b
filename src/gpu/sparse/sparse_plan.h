// SPDX-License-Identifier: Apache-2.0
// A launch of sparse attention, planned: the forward of each source, in which every list is a sequence of one query
// whose page table names rows, of q's dtype or in a format, or whose rows are converted and lie one behind another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "gpu/sparse/source_places.h"
#include "runtime/device.h"
#include "runtime/workspace_pool.h"

namespace strobe::gpu {

/// What a call is, whatever its queries.
struct SparseCall {
  const SparseForwardArguments& arguments;
  std::vector<SourcePlaces> places;  // of each source
  std::int64_t lists = 1;            // of a query: 1, or as many as key heads
  bool merges = false;               // parts and the sink are put together; else one source's forward writes o
};

/// Or why the engine does not take it. Rows are converted in place where a family of kernels does.
Result<SparseCall> sparse_call(const SparseForwardArguments& arguments, const SparseOptions& options,
                               const Execution& execution, const runtime::CudaDevice& device);

/// One source of a plan.
struct PlannedSource {
  AttentionProblem problem;
  std::shared_ptr<const engine::PlannedCall> forward;
  std::size_t places = 0;  // offsets in the workspace
  std::size_t counts = 0;
  std::size_t k = 0;  // of converted rows, list by list
  std::size_t v = 0;
  std::size_t o = 0;  // of calls that merge
  std::size_t lse = 0;
};

/// What a plan computes, and where in its workspace.
struct SparseLayout {
  std::vector<PlannedSource> sources;
  std::size_t zeros = 0;    // a row of O: the sink's
  std::size_t forward = 0;  // the forwards' own workspace, which ends the whole
  std::size_t bytes = 0;
};

class SparsePlan {
 public:
  /// The plan of `queries` queries, which this thread made before or makes now.
  static Result<std::shared_ptr<const SparsePlan>> find(const SparseCall& call, std::int64_t queries,
                                                        const SparseOptions& options, const Execution& execution,
                                                        const runtime::CudaDevice& device);

  SparsePlan(SparseLayout layout, const runtime::CudaDevice& device)
      : layout_(std::move(layout)), pool_(device, layout_.bytes) {}

  const SparseLayout& layout() const { return layout_; }
  runtime::WorkspacePool& pool() const { return pool_; }

 private:
  SparseLayout layout_;
  mutable runtime::WorkspacePool pool_;
};

/// Key heads that a list's rows have in the forward's eyes.
std::int64_t heads_of_list(const SparseCall& call, std::size_t source);

/// Bytes of workspace that a query takes, but for what the forward itself needs.
std::int64_t bytes_of_query(const SparseCall& call);

}  // namespace strobe::gpu
