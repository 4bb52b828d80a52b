// SPDX-License-Identifier: Apache-2.0
// Queries in waves. Tasks of a first phase have the heads of one query that share a key head: they write dQ, and the
// weights of its keys to memory. Tasks of a second phase have some columns of a key head's dK or dV: each goes through
// the wave's queries and their lists in order and adds what they give, so that no thread and no size of a wave changes
// the order of a sum.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "call/checked.h"
#include "cpu/passes.h"
#include "cpu/sparse/call.h"
#include "cpu/sparse/sparse.h"
#include "cpu/workers.h"

namespace strobe::cpu {
namespace {

constexpr std::int64_t kWeightBytes = std::int64_t{1} << 26;  // of a wave
constexpr std::int64_t kSliceColumns = 64;                    // of a task of the second phase

/// The float32 gradient of a source's k or v: rows of `stride` floats, [pages][rows][heads_kv].
struct Accumulated {
  Accumulated() = default;
  Accumulated(Arena& arena, const ConstTensorView& rows, std::int64_t columns)
      : stride(panel_stride(columns)),
        heads(rows.shape[static_cast<std::size_t>(rows.rank - 2)]),
        page_rows(rows.shape[static_cast<std::size_t>(rows.rank - 3)]),
        count((Checked(rows.rank == 4 ? rows.shape[0] : 1) * page_rows * heads).value()),
        data(arena.take<float>(count, stride)) {}

  float* at(const SourceRow& row, std::int64_t head) const {
    return data + ((row.page * page_rows + row.row) * heads + head) * stride;
  }

  std::int64_t stride = 0, heads = 0, page_rows = 0, count = 0;
  float* data = nullptr;
};

class SparseBackward {
 public:
  SparseBackward(const SparseBackwardArguments& arguments, const SparseCall& call, const Execution& execution)
      : b_(arguments), call_(call), execution_(execution), workers_(worker_count(execution.threads)) {
    const Checked of_query =
        Checked(call.heads_kv) * std::max<std::int64_t>(call.list_keys, 1) * call.group * 2 * sizeof(float);
    wave_ =
        std::clamp<std::int64_t>(kWeightBytes / of_query.value(), 1, std::max<std::int64_t>(call.queries.total(), 1));
    Arena worker(nullptr);
    ListedGradientScratch(worker, call.group, call.head_dim, call.head_dim_v, call.v_apart);
    worker_bytes_ = worker.bytes();
    Arena shared(nullptr);
    take_shared(shared);
    shared_bytes_ = shared.bytes();
  }

  void run() {
    const CallMemory memory((Checked(worker_bytes_) * workers_ + Checked(shared_bytes_)).value<std::size_t>());
    memory_ = &memory;
    Arena shared(memory.at(worker_bytes_ * static_cast<std::size_t>(workers_)));
    take_shared(shared);
    clear();
    for (std::int64_t first = 0; first < call_.queries.total(); first += wave_) {
      const std::int64_t count = std::min(wave_, call_.queries.total() - first);
      for_each_task(count * call_.heads_kv, workers_, execution_.parallel_for,
                    [&](std::int64_t unit, int worker) { differentiate(first, unit, worker); });
      for_each_task(slices() * call_.heads_kv, workers_, execution_.parallel_for,
                    [&](std::int64_t task, int worker) { scatter(first, count, task, worker); });
    }
    for (std::size_t i = 0; i < call_.sources.size(); ++i) {
      if (call_.sources[i]) store_gradients(i);
    }
    if (b_.d_sink.given()) store_sink();
  }

 private:
  void take_shared(Arena& arena) {
    const std::int64_t weights = (Checked(wave_) * call_.heads_kv * call_.list_keys * call_.group).value();
    p_ = arena.take<float>(weights);
    ds_ = arena.take<float>(weights);
    corrections_ = arena.take<float>(call_.queries.total(), call_.heads_q);
    for (std::size_t i = 0; i < call_.sources.size(); ++i) {
      if (!call_.sources[i]) continue;
      dk_[i] = Accumulated(arena, call_.a.sources[i].k, call_.head_dim);
      dv_[i] = Accumulated(arena, call_.a.sources[i].k, call_.head_dim_v);
    }
  }

  void clear() const {
    for (std::size_t i = 0; i < dk_.size(); ++i) {
      std::fill_n(dk_[i].data, dk_[i].count * dk_[i].stride, 0.0F);
      std::fill_n(dv_[i].data, dv_[i].count * dv_[i].stride, 0.0F);
    }
  }

  ListedGradientScratch scratch_of(int worker) const {
    Arena arena(memory_->at(worker_bytes_ * static_cast<std::size_t>(worker)));
    return {arena, call_.group, call_.head_dim, call_.head_dim_v, call_.v_apart};
  }
  std::int64_t weights_offset(std::int64_t unit) const { return unit * call_.list_keys * call_.group; }

  /// Phase 1: unit `unit` of the wave that begins with query `first`.
  void differentiate(std::int64_t first, std::int64_t unit, int worker) const {
    const ListedGradientScratch scratch = scratch_of(worker);
    const SparseQuery query = call_.queries.at(first + unit / call_.heads_kv);
    const std::int64_t head_kv = unit % call_.heads_kv;
    widen_heads(call_, call_.a.q, query, head_kv, call_.head_dim, scratch.forward.q, scratch.forward.k_stride);
    widen_heads(call_, b_.d_o, query, head_kv, call_.head_dim_v, scratch.d_o, scratch.forward.v_stride);
    read_rows(query, head_kv, scratch);
    std::fill_n(scratch.dq, call_.group * scratch.forward.k_stride, 0.0F);
    float* p = p_ + weights_offset(unit);
    float* ds = ds_ + weights_offset(unit);
    call_.for_each_block(query, head_kv, 0, call_.list_keys, [&](std::span<const ListedKey> keys, const auto&) {
      differentiate_listed(keys, call_.scores, call_.head_dim, call_.head_dim_v, scratch, p, ds);
      p += static_cast<std::int64_t>(keys.size()) * call_.group;
      ds += static_cast<std::int64_t>(keys.size()) * call_.group;
    });
    auto* const to = static_cast<std::byte*>(b_.dq.data) + call_.offset(b_.dq, query, head_kv);
    const std::int64_t stride = SparseCall::head_stride(b_.dq) * static_cast<std::int64_t>(size_of(b_.dq.dtype));
    for (std::int64_t row = 0; row < call_.group; ++row) {
      store_listed(scratch.dq + row * scratch.forward.k_stride, call_.scale, b_.dq.dtype, to + row * stride,
                   call_.head_dim);
    }
  }

  /// LSE in base 2, and D - dLSE of each row, with D the product of the rows of dO and O.
  void read_rows(const SparseQuery& query, std::int64_t head_kv, const ListedGradientScratch& scratch) const {
    std::array<float, kMaxRowColumns> o;
    const auto* from = static_cast<const std::byte*>(call_.a.o.data) + call_.offset(call_.a.o, query, head_kv);
    const std::int64_t bytes = SparseCall::head_stride(call_.a.o) * static_cast<std::int64_t>(size_of(call_.a.o.dtype));
    for (std::int64_t row = 0; row < call_.group; ++row) {
      const std::int64_t head = head_kv * call_.group + row;
      widen_columns(call_.a.o.dtype, from + row * bytes, call_.head_dim_v, o.data());
      const float* const d_o = scratch.d_o + row * scratch.forward.v_stride;
      float sum = 0.0F;
      for (std::int64_t c = 0; c < call_.head_dim_v; ++c) sum += d_o[c] * o[static_cast<std::size_t>(c)];
      if (b_.d_lse.given()) sum -= static_cast<const float*>(b_.d_lse.data)[call_.lse_index(b_.d_lse, query, head)];
      const float lse = static_cast<const float*>(call_.a.lse.data)[call_.lse_index(call_.a.lse, query, head)];
      // A row without weights: its probabilities are 0.
      scratch.lse_log2[row] = lse == -kInfinity ? kInfinity : lse * kLog2E;
      scratch.correction[row] = sum;
      corrections_[query.row * call_.heads_q + head] = sum;
    }
  }

  std::int64_t slices_of_k() const { return ceil_div(panel_stride(call_.head_dim), kSliceColumns); }
  std::int64_t slices() const { return slices_of_k() + ceil_div(panel_stride(call_.head_dim_v), kSliceColumns); }

  /// Phase 2: columns of dK, from dS and Q, or of dV, from P and dO, of all queries of the wave.
  void scatter(std::int64_t first, std::int64_t count, std::int64_t task, int worker) const {
    const ListedGradientScratch scratch = scratch_of(worker);
    const std::int64_t head_kv = task / slices();
    const std::int64_t slice = task % slices();
    const bool of_k = slice < slices_of_k();
    const auto& sums = of_k ? dk_ : dv_;
    const float* const weights = of_k ? ds_ : p_;
    const std::int64_t begin = (of_k ? slice : slice - slices_of_k()) * kSliceColumns;
    const std::int64_t columns =
        std::min(kSliceColumns, panel_stride(of_k ? call_.head_dim : call_.head_dim_v) - begin);
    const std::int64_t given = std::min(columns, (of_k ? call_.head_dim : call_.head_dim_v) - begin);
    float* const rows = of_k ? scratch.forward.q : scratch.d_o;  // [group][columns], which are no more than theirs
    for (std::int64_t q = 0; q < count; ++q) {
      const SparseQuery query = call_.queries.at(first + q);
      widen_slice(of_k ? call_.a.q : b_.d_o, query, head_kv, begin, given, columns, rows);
      const float* at = weights + weights_offset(q * call_.heads_kv + head_kv);
      call_.for_each_block(query, head_kv, 0, call_.list_keys, [&](const auto&, std::span<const SourcePlace> places) {
        std::array<float*, kSparseBlock> to;
        for (std::size_t n = 0; n < places.size(); ++n) {
          to[n] = sums[places[n].source].at(places[n].row, head_kv) + begin;
        }
        scatter_listed(at, call_.group, rows, columns, columns, {to.data(), places.size()});
        at += static_cast<std::int64_t>(places.size()) * call_.group;
      });
    }
  }
  using SourcePlace = SparseCall::SourcePlace;

  /// Columns [begin, begin + given) of the heads of a query, zeros behind them: [group][columns].
  void widen_slice(const ConstTensorView& tensor, const SparseQuery& query, std::int64_t head_kv, std::int64_t begin,
                   std::int64_t given, std::int64_t columns, float* to) const {
    const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
    const auto* from = static_cast<const std::byte*>(tensor.data) + call_.offset(tensor, query, head_kv) + begin * size;
    for (std::int64_t row = 0; row < call_.group; ++row) {
      widen_columns(tensor.dtype, from + row * SparseCall::head_stride(tensor) * size, given, to + row * columns);
      std::fill(to + row * columns + given, to + (row + 1) * columns, 0.0F);
    }
  }

  /// dk and dv of a source in their dtypes, row by row.
  void store_gradients(std::size_t index) const {
    const SparseSource& source = call_.a.sources[index];
    const Accumulated& dk = dk_[index];
    const Accumulated& dv = dv_[index];
    constexpr std::int64_t kRowsPerTask = 64;
    const auto task = [&](std::int64_t number, int) {
      for (std::int64_t i = number * kRowsPerTask; i < std::min((number + 1) * kRowsPerTask, dk.count); ++i) {
        float* const k = dk.data + i * dk.stride;
        const float* const v = dv.data + i * dv.stride;
        if (source.v.given()) {
          store_row(v, 1.0F, b_.gradients[index].dv, i, call_.head_dim_v);
          store_row(k, call_.scale, b_.gradients[index].dk, i, call_.head_dim);
          continue;
        }
        for (std::int64_t c = 0; c < call_.head_dim; ++c)
          k[c] = k[c] * call_.scale + (c < call_.head_dim_v ? v[c] : 0.0F);
        store_row(k, 1.0F, b_.gradients[index].dk, i, call_.head_dim);
      }
    };
    for_each_task(ceil_div(dk.count, kRowsPerTask), workers_, execution_.parallel_for, task);
  }

  /// Row `index` of [pages, rows, heads, ..] or [rows, heads, ..].
  static void store_row(const float* from, float factor, const TensorView& to, std::int64_t index,
                        std::int64_t columns) {
    const auto heads_axis = static_cast<std::size_t>(to.rank - 2);
    const std::int64_t head = index % to.shape[heads_axis];
    const std::int64_t row = index / to.shape[heads_axis];
    const std::int64_t offset =
        to.rank == 3 ? row * to.strides[0] : row / to.shape[1] * to.strides[0] + row % to.shape[1] * to.strides[1];
    store_listed(from, factor, to.dtype,
                 static_cast<std::byte*>(to.data) +
                     (offset + head * to.strides[heads_axis]) * static_cast<std::int64_t>(size_of(to.dtype)),
                 columns);
  }

  /// -exp(sink - LSE) (D - dLSE), summed over the queries in float64.
  void store_sink() const {
    for (std::int64_t head = 0; head < call_.heads_q; ++head) {
      const double sink = static_cast<const float*>(call_.a.sink.data)[head * call_.a.sink.strides[0]];
      double sum = 0.0;
      for (std::int64_t row = 0; row < call_.queries.total(); ++row) {
        const SparseQuery query = call_.queries.at(row);
        const double lse = static_cast<const float*>(call_.a.lse.data)[call_.lse_index(call_.a.lse, query, head)];
        const double weight = std::isinf(lse) && lse < 0.0 ? 0.0 : std::exp(sink - lse);
        sum -= weight * static_cast<double>(corrections_[row * call_.heads_q + head]);
      }
      static_cast<float*>(b_.d_sink.data)[head * b_.d_sink.strides[0]] = static_cast<float>(sum);
    }
  }

  const SparseBackwardArguments& b_;
  const SparseCall& call_;
  const Execution& execution_;
  int workers_;
  std::int64_t wave_ = 1;  // queries
  std::size_t worker_bytes_ = 0, shared_bytes_ = 0;
  const CallMemory* memory_ = nullptr;
  float* p_ = nullptr;            // [wave][heads_kv][list_keys][group]
  float* ds_ = nullptr;           // likewise
  float* corrections_ = nullptr;  // [queries][heads_q]
  std::array<Accumulated, kMaxSparseSources> dk_, dv_;
};

}  // namespace

void sparse_backward(const SparseBackwardArguments& arguments, const SparseOptions& options,
                     const Execution& execution) {
  const SparseCall call(arguments.forward, options);
  SparseBackward(arguments, call, execution).run();
}

}  // namespace strobe::cpu
