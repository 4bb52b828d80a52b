// SPDX-License-Identifier: Apache-2.0
#include "api/sparse.h"

#include <string>
#include <vector>

#include "api/call_memory.h"
#include "api/choose_engine.h"
#include "api/device_values.h"
#include "api/guarded.h"
#include "call/sparse_lists.h"

namespace strobe {
namespace {

using api::invalid;

/// Cumulative lengths from 0, never decreasing, that end with the tensor.
Status check_sparse_cumulative(const std::string& name, const ConstTensorView& lengths, std::int64_t rows) {
  if (!lengths.given()) return {};
  const std::int64_t batch = lengths.shape[0] - 1;
  if (int32_at(lengths, 0) != 0) return invalid("{}[0] is {}: it must be 0", name, int32_at(lengths, 0));
  for (std::int64_t b = 0; b < batch; ++b) {
    if (int32_at(lengths, b + 1) >= int32_at(lengths, b)) continue;
    return invalid("{}[{}] is {} after {}: cumulative lengths must not decrease", name, b + 1, int32_at(lengths, b + 1),
                   int32_at(lengths, b));
  }
  if (int32_at(lengths, batch) == rows) return {};
  return invalid("{}[{}] is {}: it must be the number of rows, which is {}", name, batch, int32_at(lengths, batch),
                 rows);
}

/// The numbers of one source.
class SourceValues {
 public:
  SourceValues(const SparseSource& source, const SparseQueries& queries, std::size_t index)
      : s_(source), queries_(queries), lists_(source, queries), name_(fmt::format("sources[{}]", index)) {}

  Status check() const {
    Status status = check_sparse_cumulative(name_ + ".cu_seqlens_k", s_.cu_seqlens_k, s_.k.shape[0]);
    for (std::int64_t b = 0; status.ok() && s_.seqused_k.given() && b < s_.seqused_k.shape[0]; ++b) {
      const std::int64_t used = int32_at(s_.seqused_k, b);
      if (used >= 0 && used <= lists_.capacity(b)) continue;
      status = invalid("{}.seqused_k[{}] is {}: it must be from 0 to {}", name_, b, used, lists_.capacity(b));
    }
    const std::int64_t heads = s_.indices.shape[static_cast<std::size_t>(s_.indices.rank - 2)];
    for (std::int64_t row = 0; status.ok() && row < queries_.total(); ++row) {
      const SparseQuery query = queries_.at(row);
      const std::int64_t count = lists_.count(query);
      if (count < 0 || count > lists_.topk()) {
        return invalid("{}.topk_length of query {} of sequence {} is {}: it must be from 0 to topk, which is {}", name_,
                       query.position, query.sequence, count, lists_.topk());
      }
      for (std::int64_t head = 0; status.ok() && head < heads; ++head) status = check_list(query, head, count);
    }
    return status;
  }

 private:
  Status check_list(const SparseQuery& query, std::int64_t head, std::int64_t count) const {
    const std::int32_t* const numbers = lists_.list(query, head);
    const std::int64_t length = lists_.length(query.sequence);
    const std::int64_t named = ceil_div(length, s_.block_size);
    for (std::int64_t i = 0; i < count; ++i) {
      if (numbers[i] == -1) continue;
      if (numbers[i] < -1 || numbers[i] >= named) {
        return invalid(
            "{}.indices names {} at place {} of query {}, head {} of sequence {}: it must be -1 or less than {}", name_,
            numbers[i], i, query.position, head, query.sequence, named);
      }
      if (!s_.page_table.given()) continue;
      const std::int64_t first = numbers[i] * s_.block_size;
      const std::int64_t last = std::min(first + s_.block_size, length) - 1;
      for (std::int64_t page = first / s_.k.shape[1]; page <= last / s_.k.shape[1]; ++page) {
        const std::int64_t number = lists_.page_of(query.sequence, page);
        if (number >= 0 && number < s_.k.shape[0]) continue;
        return invalid("{}.page_table[{}][{}] is {}, whose keys are listed: k has {} pages", name_, query.sequence,
                       page, number, s_.k.shape[0]);
      }
    }
    return {};
  }

  const SparseSource& s_;
  const SparseQueries& queries_;
  SparseLists lists_;
  std::string name_;
};

Status run_sparse(const SparseForwardArguments& arguments, const SparseOptions& options, const Execution& execution) {
  const Result<const engine::Implementation*> chosen =
      api::engine_for(api::check_sparse_shapes(arguments, options), arguments.q.device, execution);
  if (!chosen.ok()) return chosen.status();
  Status status = api::check_sparse_memory(arguments);
  if (status.ok()) {
    status = arguments.q.device.type == DeviceType::cpu ? api::check_sparse_values(arguments)
                                                        : api::check_device_values(arguments, execution);
  }
  return status.ok() ? (*chosen)->sparse_forward(arguments, options, execution) : status;
}

Result<std::string> explain_sparse(const SparseForwardArguments& arguments, const SparseOptions& options,
                                   const Execution& execution) {
  const Result<const engine::Implementation*> chosen =
      api::engine_for(api::check_sparse_shapes(arguments, options), arguments.q.device, execution);
  if (!chosen.ok()) return chosen.status();
  return (*chosen)->explain_sparse_forward(arguments, options, execution);
}

}  // namespace

namespace api {

Status check_sparse_memory(const SparseForwardArguments& a) {
  CallMemory memory;
  memory.add_output("o", a.o);
  memory.add_output("lse", a.lse);
  memory.add_input("q", a.q);
  memory.add_input("sink", a.sink);
  memory.add_input("cu_seqlens_q", a.cu_seqlens_q);
  add_sources(memory, a.sources);
  return memory.check();
}

void add_sources(CallMemory& memory, std::span<const SparseSource> sources) {
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const SparseSource& s = sources[i];
    const std::string name = fmt::format("sources[{}].", i);
    memory.add_input(name + "k", s.k);
    memory.add_input(name + "v", s.v);
    memory.add_input(name + "indices", s.indices);
    memory.add_input(name + "topk_length", s.topk_length);
    memory.add_input(name + "cu_seqlens_k", s.cu_seqlens_k);
    memory.add_input(name + "page_table", s.page_table);
    memory.add_input(name + "seqused_k", s.seqused_k);
  }
}

Status check_sparse_values(const SparseForwardArguments& a) {
  const SparseQueries queries(a.q, a.cu_seqlens_q);
  Status status = check_sparse_cumulative("cu_seqlens_q", a.cu_seqlens_q, queries.total());
  for (std::size_t i = 0; status.ok() && i < a.sources.size(); ++i) {
    if (a.sources[i].k.given()) status = SourceValues(a.sources[i], queries, i).check();
  }
  return status;
}

}  // namespace api

Status sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options,
                      const Execution& execution) {
  return api::guarded([&] { return run_sparse(arguments, options, execution); });
}

Result<std::string> explain_sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options,
                                           const Execution& execution) {
  return api::guarded([&] { return explain_sparse(arguments, options, execution); });
}

}  // namespace strobe
