#include <algorithm>
#include <new>

#include "cpu/call.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/scratch.h"
#include "cpu/workers.h"

namespace strobe::cpu {
namespace {

/// The three phases of a backward over one call's blocks.
class Backward {
 public:
  Backward(const Call& call, const BackwardArguments& arguments)
      : call_(call),
        problem_(call.problem),
        tiles_(call.plan.tiles),
        arguments_(arguments),
        batch_(make_batch(call, arguments.sequences)),
        dq_stride_(padded(problem_.head_dim, cpu_shape().kernels.wide_panel)),
        score_map_(score_map(problem_, ScaleSign::in_scale)) {}

  void run() {
    clear_unused(problem_, batch_, Side::query, arguments_.dq);
    clear_unused(problem_, batch_, Side::key, arguments_.dk);
    clear_unused(problem_, batch_, Side::key, arguments_.dv);
    each_row_block([this](const BlockPlace& place) { start_rows(place); });
    const auto keys = [this](std::int64_t index, int worker) {
      key_block(key_block_place(problem_, batch_, index), worker);
    };
    for_each_task(batch_.key_blocks * problem_.heads_k, call_.plan.threads, call_.parallel_for, keys);
    each_row_block([this](const BlockPlace& place) { finish_rows(place); });
  }

 private:
  template <class Visit>
  void each_row_block(const Visit& visit) {
    for_each_task(batch_.row_blocks * problem_.heads_k, call_.plan.threads, call_.parallel_for,
                  [&](std::int64_t index, int) { visit(row_block_place(problem_, batch_, index)); });
  }

  /// delta of the block's rows, zeroed dQ sums, and whose turn it is to add to them.
  void start_rows(const BlockPlace& place) {
    const std::int64_t row_begin = place.block * tiles_.block_m;
    const std::int64_t row_end = std::min(row_begin + tiles_.block_m, rows(place.sequence));
    compute_delta({.dtype = problem_.dtype,
                   .o = query_rows(problem_, arguments_.o, place.sequence, place.head_k),
                   .d_o = query_rows(problem_, arguments_.d_o, place.sequence, place.head_k),
                   .d_lse = lse_rows(problem_, arguments_.d_lse, place.sequence, place.head_k),
                   .delta = delta(place),
                   .row_begin = row_begin,
                   .row_end = row_end,
                   .head_dim_v = problem_.head_dim_v});
    std::fill_n(dq_sums(place) + row_begin * dq_stride_, tiles_.block_m * dq_stride_, 0.0F);
    // Key blocks add in the order of the keys, beginning with the first that any row of the block sees.
    const std::int64_t first_key = visible_keys(problem_, place.sequence).begin(row_begin / group_of(problem_));
    new (turns(place) + place.block) std::atomic<std::int32_t>(static_cast<std::int32_t>(first_key / tiles_.block_n));
  }

  void key_block(const BlockPlace& place, int worker) {
    const std::int64_t key_begin = place.block * tiles_.block_n;
    const BackwardTask task{.dtype = problem_.dtype,
                            .queries = {.q = query_rows(problem_, arguments_.q, place.sequence, place.head_k),
                                        .d_o = query_rows(problem_, arguments_.d_o, place.sequence, place.head_k),
                                        .lse = lse_rows(problem_, arguments_.lse, place.sequence, place.head_k),
                                        .delta = delta(place),
                                        .dq = dq_sums(place),
                                        .turn = turns(place),
                                        .rows = rows(place.sequence)},
                            .k = key_rows(problem_, arguments_.k, place.sequence, place.head_k),
                            .v = key_rows(problem_, arguments_.v, place.sequence, place.head_k),
                            .dk = key_rows(problem_, arguments_.dk, place.sequence, place.head_k),
                            .dv = key_rows(problem_, arguments_.dv, place.sequence, place.head_k),
                            .key_begin = key_begin,
                            .key_end = std::min(key_begin + tiles_.block_n, place.sequence.k.length),
                            .head_dim = problem_.head_dim,
                            .head_dim_v = problem_.head_dim_v,
                            .scale = problem_.scale,
                            .visible = visible_keys(problem_, place.sequence),
                            .score_map = score_map_,
                            .tiles = tiles_};
    backward_block(task, call_.workspace + call_.plan.workspace.scratch + worker * call_.plan.workspace.worker_bytes);
  }

  void finish_rows(const BlockPlace& place) {
    const std::int64_t row_begin = place.block * tiles_.block_m;
    write_query_gradient({.dtype = problem_.dtype,
                          .dq = query_rows(problem_, arguments_.dq, place.sequence, place.head_k),
                          .sums = dq_sums(place),
                          .row_begin = row_begin,
                          .row_end = std::min(row_begin + tiles_.block_m, rows(place.sequence)),
                          .head_dim = problem_.head_dim,
                          .row_stride = dq_stride_,
                          .scale = problem_.scale});
  }

  std::int64_t rows(const Sequence& sequence) const { return sequence.q.length * group_of(problem_); }

  /// Row blocks of all sequences and key heads before this one's: where its rows begin in the workspace.
  std::int64_t first_block(const BlockPlace& place) const {
    const std::int64_t own = (rows(place.sequence) + tiles_.block_m - 1) / tiles_.block_m;
    return place.sequence.first_row_block * problem_.heads_k + place.head_k * own;
  }

  template <class T>
  T* workspace(std::size_t offset) const {
    return reinterpret_cast<T*>(call_.workspace + offset);
  }

  float* delta(const BlockPlace& place) const {
    return workspace<float>(call_.plan.workspace.delta) + first_block(place) * tiles_.block_m;
  }
  float* dq_sums(const BlockPlace& place) const {
    return workspace<float>(call_.plan.workspace.dq) + first_block(place) * tiles_.block_m * dq_stride_;
  }
  std::atomic<std::int32_t>* turns(const BlockPlace& place) const {
    return workspace<std::atomic<std::int32_t>>(call_.plan.workspace.turns) + first_block(place);
  }

  const Call& call_;
  const AttentionProblem& problem_;
  const Tiles tiles_;
  const BackwardArguments& arguments_;
  const Batch batch_;
  const std::int64_t dq_stride_;
  const ScoreMap score_map_;
};

}  // namespace

void backward(const Call& call, const BackwardArguments& arguments) { Backward(call, arguments).run(); }

}  // namespace strobe::cpu
