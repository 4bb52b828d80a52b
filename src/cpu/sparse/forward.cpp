// SPDX-License-Identifier: Apache-2.0
// A task has the query heads of one query that share a key head. Where there are few, the places of their lists are
// split among tasks, as many as shapes alone say, and their parts are joined in the order of the list.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "call/checked.h"
#include "cpu/kernels/task.h"
#include "cpu/passes.h"
#include "cpu/sparse/call.h"
#include "cpu/sparse/list_split.h"
#include "cpu/sparse/sparse.h"
#include "cpu/workers.h"

namespace strobe::cpu {
namespace {

constexpr double kNaturalLog2 = 0.693147180559945309417232;

class SparseForward {
 public:
  SparseForward(const SparseCall& call, const Execution& execution)
      : call_(call),
        execution_(execution),
        workers_(worker_count(execution.threads)),
        units_((Checked(call.queries.total()) * call.heads_kv).value()),
        split_(units_, call.list_keys),
        states_(split_.parts > 1 ? (Checked(units_) * split_.parts).value() : workers_) {
    Arena worker(nullptr);
    ListedScratch(worker, call.group, call.head_dim, call.head_dim_v, call.v_apart);
    worker_bytes_ = worker.bytes();
    Arena state(nullptr);
    ListedState(state, call.group, call.head_dim_v);
    state_bytes_ = state.bytes();
  }

  void run() {
    const Checked bytes = Checked(worker_bytes_) * workers_ + Checked(state_bytes_) * states_;
    const CallMemory memory(bytes.value<std::size_t>());
    memory_ = &memory;
    const auto compute = [&](std::int64_t index, int worker) {
      const std::int64_t unit = index / split_.parts;
      const ListedState state = state_at(split_.parts > 1 ? index : worker);
      compute_part(unit, index % split_.parts, worker, state);
      if (split_.parts == 1) finish(unit, {&state, 1});
    };
    for_each_task((Checked(units_) * split_.parts).value(), workers_, execution_.parallel_for, compute);
    if (split_.parts == 1) return;
    const auto join = [&](std::int64_t unit, int) {
      std::array<ListedState, kWantedTasks> parts;
      for (std::int64_t part = 0; part < split_.parts; ++part) {
        parts[static_cast<std::size_t>(part)] = state_at(unit * split_.parts + part);
      }
      finish(unit, {parts.data(), static_cast<std::size_t>(split_.parts)});
    };
    for_each_task(units_, workers_, execution_.parallel_for, join);
  }

 private:
  ListedState state_at(std::int64_t index) const {
    Arena arena(memory_->at(worker_bytes_ * static_cast<std::size_t>(workers_) +
                            state_bytes_ * static_cast<std::size_t>(index)));
    return ListedState(arena, call_.group, call_.head_dim_v);
  }

  void compute_part(std::int64_t unit, std::int64_t part, int worker, const ListedState& state) const {
    Arena arena(memory_->at(worker_bytes_ * static_cast<std::size_t>(worker)));
    const ListedScratch scratch(arena, call_.group, call_.head_dim, call_.head_dim_v, call_.v_apart);
    const SparseQuery query = call_.queries.at(unit / call_.heads_kv);
    const std::int64_t head_kv = unit % call_.heads_kv;
    widen_heads(call_, call_.a.q, query, head_kv, call_.head_dim, scratch.q, scratch.k_stride);
    clear_listed(state);
    const std::int64_t begin = part * split_.places;
    call_.for_each_block(query, head_kv, begin, begin + split_.places,
                         [&](std::span<const ListedKey> keys, const auto&) {
                           add_listed(keys, call_.scores, call_.head_dim, call_.head_dim_v, scratch, state);
                         });
  }

  void finish(std::int64_t unit, std::span<const ListedState> parts) const {
    const SparseQuery query = call_.queries.at(unit / call_.heads_kv);
    const std::int64_t head_kv = unit % call_.heads_kv;
    const TensorView& o = call_.a.o;
    auto* const to = static_cast<std::byte*>(o.data) + call_.offset(o, query, head_kv);
    const std::int64_t stride = SparseCall::head_stride(o) * static_cast<std::int64_t>(size_of(o.dtype));
    for (std::int64_t row = 0; row < call_.group; ++row) {
      const std::int64_t head = head_kv * call_.group + row;
      const float sink = call_.a.sink.given()
                             ? static_cast<const float*>(call_.a.sink.data)[head * call_.a.sink.strides[0]] * kLog2E
                             : -kInfinity;
      const Normalizer normalizer = join_row(parts, row, sink);
      store_listed(parts[0].o + row * parts[0].stride, normalizer.inverse, o.dtype, to + row * stride,
                   call_.head_dim_v);
      if (!call_.a.lse.given()) continue;
      static_cast<float*>(call_.a.lse.data)[call_.lse_index(call_.a.lse, query, head)] = normalizer.lse;
    }
  }

  struct Normalizer {
    float inverse;
    float lse;
  };

  /// Leaves the row's sum over all parts in the first one's O. `sink` is an exponent of 2, -inf for none.
  static Normalizer join_row(std::span<const ListedState> parts, std::int64_t row, float sink) {
    float maximum = sink;
    bool defined = true;  // a part without numbers makes a row without numbers
    for (const ListedState& part : parts) {
      maximum = std::max(maximum, part.maximum[row]);
      defined = defined && !std::isnan(part.maximum[row]);
    }
    if (maximum == -kInfinity && defined) {
      std::fill_n(parts[0].o + row * parts[0].stride, parts[0].stride, 0.0F);
      return {1.0F, -kInfinity};
    }
    std::array<float, kWantedTasks> weights;
    float total = std::exp2(sink - maximum);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      weights[i] = std::exp2(parts[i].maximum[row] - maximum);
      total += parts[i].sum[row] * weights[i];
    }
    join_listed(parts, {weights.data(), parts.size()}, row);
    const double lse = static_cast<double>(maximum) * kNaturalLog2 + std::log(static_cast<double>(total));
    return {1.0F / total, static_cast<float>(lse)};
  }

  const SparseCall& call_;
  const Execution& execution_;
  int workers_;
  std::int64_t units_;
  ListSplit split_;
  std::int64_t states_;
  std::size_t worker_bytes_, state_bytes_;
  const CallMemory* memory_ = nullptr;
};

}  // namespace

void widen_heads(const SparseCall& call, const ConstTensorView& tensor, const SparseQuery& query, std::int64_t head_kv,
                 std::int64_t columns, float* to, std::int64_t stride) {
  const auto* from = static_cast<const std::byte*>(tensor.data) + call.offset(tensor, query, head_kv);
  const std::int64_t bytes = SparseCall::head_stride(tensor) * static_cast<std::int64_t>(size_of(tensor.dtype));
  for (std::int64_t row = 0; row < call.group; ++row) {
    widen_columns(tensor.dtype, from + row * bytes, columns, to + row * stride);
    std::fill(to + row * stride + columns, to + (row + 1) * stride, 0.0F);
  }
}

void sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options, const Execution& execution) {
  const SparseCall call(arguments, options);
  SparseForward(call, execution).run();
}

}  // namespace strobe::cpu
