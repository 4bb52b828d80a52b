// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <new>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "cpu/bfloat16/kernels.h"
#include "cpu/call.h"
#include "cpu/kernels/kernels.h"
#include "cpu/modifier_gradients.h"
#include "cpu/modifiers.h"
#include "cpu/workers.h"

namespace strobe::cpu {
namespace {

/// The three phases of a backward over one call's blocks, or over one sequence and key head after another.
class Backward {
 public:
  Backward(const Call& call, const BackwardArguments& arguments)
      : call_(call),
        problem_(call.problem),
        tiles_(call.plan.tiles),
        arguments_(arguments),
        workspace_(call.workspace, problem_, call.plan),
        batch_(make_batch(call, arguments.sequences, workspace_.sequences)),
        modifiers_(problem_, arguments.modifiers, arguments.random),
        bias_turns_(problem_, batch_, workspace_.bias_turns),
        capture_turns_(call.plan, problem_, workspace_.capture_turns) {}

  void run() {
    clear_unused(problem_, batch_, Side::query, arguments_.dq);
    if (problem_.has_qv) clear_unused(problem_, batch_, Side::query, arguments_.dqv);
    clear_unused(problem_, batch_, Side::key, arguments_.dk);
    clear_unused(problem_, batch_, Side::key, arguments_.dv);
    clear_bias_gradient(call_, arguments_.d_bias);
    bias_turns_.start();
    capture_turns_.start(batch_, arguments_.d_captures);
    call_.plan.whole_sequences ? each_sequence() : each_phase();
    sink_gradients();
  }

 private:
  void each_phase() {
    each_row_block([this](const BlockPlace& place, int worker) { start_rows(place, first_block(place), worker); });
    const auto keys = [this](std::int64_t index, int worker) {
      const BlockPlace place = key_block_place(problem_, batch_, index);
      key_block(place, first_block({place.sequence, first_group(place.head), 0}), worker);
    };
    for_each_task((Checked(batch_.key_blocks) * problem_.heads_kv).value(), call_.plan.threads, call_.parallel_for,
                  keys);
    each_row_block([this](const BlockPlace& place, int) { finish_rows(place, first_block(place)); });
  }

  /// A task has all the keys of its rows: it sums their dQ in memory of its worker's, where the next task's follow.
  void each_sequence() {
    const std::int64_t heads_kv = problem_.heads_kv;
    const std::int64_t longest = ceil_div(problem_.seqlen_q * heads_per_group(problem_), tiles_.block_m) * groups();
    for_each_task((Checked(problem_.batch) * heads_kv).value(), call_.plan.threads, call_.parallel_for,
                  [&](std::int64_t index, int worker) {
                    const Sequence& sequence = batch_.sequences[static_cast<std::size_t>(index / heads_kv)];
                    whole_sequence({sequence, index % heads_kv, 0}, worker * longest, worker);
                  });
  }

  void whole_sequence(const BlockPlace& place, std::int64_t dq_block, int worker) {
    const std::int64_t blocks = row_blocks(place.sequence);
    const auto each_row_block = [&](const auto& visit) {
      for (std::int64_t index = 0; index < groups() * blocks; ++index) {
        const std::int64_t group = index / blocks;
        visit(BlockPlace{place.sequence, first_group(place.head) + group, index % blocks}, dq_block + group * blocks);
      }
    };
    each_row_block([this, worker](const BlockPlace& rows, std::int64_t sums) { start_rows(rows, sums, worker); });
    if (place.sequence.k.length > 0) key_block(place, dq_block, worker);
    each_row_block([this](const BlockPlace& rows, std::int64_t sums) { finish_rows(rows, sums); });
  }

  /// Groups of heads that share a key head: more than one only where they are computed one by one.
  std::int64_t groups() const { return heads_per_key_head(problem_) / heads_per_group(problem_); }
  std::int64_t first_group(std::int64_t head_kv) const { return head_kv * groups(); }

  template <class Visit>
  void each_row_block(const Visit& visit) {
    for_each_task((Checked(batch_.row_blocks) * head_groups(problem_)).value(), call_.plan.threads, call_.parallel_for,
                  [&](std::int64_t index, int worker) { visit(row_block_place(problem_, batch_, index), worker); });
  }

  /// delta and normalizers of the block's rows, zeroed dQ sums, and whose turn it is to add to them. The sums of the
  /// group's first block of rows are `dq_block`.
  void start_rows(const BlockPlace& place, std::int64_t dq_block, int worker) {
    const std::int64_t row_begin = place.block * tiles_.block_m;
    const std::int64_t row_end = std::min(row_begin + tiles_.block_m, rows(place.sequence));
    if (is_normalized(problem_)) correct_rows(place, row_begin, row_end, worker);
    std::fill_n(dq_sums(dq_block + place.block), workspace_.dq_block, 0.0F);
    new (turns(place) + place.block)
        std::atomic<std::int32_t>(first_key_block(place, row_begin / heads_per_group(problem_)));
  }

  /// delta and normalizers of rows whose probabilities have a sum.
  void correct_rows(const BlockPlace& place, std::int64_t row_begin, std::int64_t row_end, int worker) {
    compute_delta({.dtype = problem_.dtype,
                   .o = query_rows(problem_, arguments_.o, place.sequence, place.head),
                   .d_o = query_rows(problem_, arguments_.d_o, place.sequence, place.head),
                   .d_lse = lse_rows(problem_, arguments_.d_lse, place.sequence, place.head),
                   .delta = delta(place),
                   .row_begin = row_begin,
                   .row_end = row_end,
                   .head_dim_v = problem_.head_dim_v});
    normalize(place, row_begin, row_end, worker);
  }

  void normalize(const BlockPlace& place, std::int64_t row_begin, std::int64_t row_end, int worker) {
    const std::int64_t b = batch_index(place);
    const NormalizerTask task{.dtype = problem_.dtype,
                              .q = query_rows(problem_, arguments_.q, place.sequence, place.head),
                              .k = key_rows(problem_, arguments_.k, place.sequence, place.head / groups()),
                              .qv = query_value_rows(place),
                              .v = key_rows(problem_, arguments_.v, place.sequence, place.head / groups()),
                              .lse = lse_rows(problem_, arguments_.lse, place.sequence, place.head),
                              .normalizers = normalizers(place),
                              .row_begin = row_begin,
                              .row_end = row_end,
                              .head_dim = problem_.head_dim,
                              .qv_columns = qv_columns(problem_),
                              .visible = visible(place.sequence),
                              .score_scale = score_scale(problem_, place.sequence.k.length),
                              .blocks = modifiers_.blocks(b, place.head),
                              .terms = modifiers_.terms(b, place.head),
                              .expression = expression(place, worker),
                              .sinks = modifiers_.sinks(place.head)};
    std::byte* scratch = workspace_.scratch_of(worker);
    call_.plan.bfloat16_serves() ? bf16::normalize_rows(call_.plan.bfloat16, task, scratch)
                                 : normalize_rows(task, scratch);
  }

  /// Key blocks add in the order of the keys, beginning with the first that any row of the block sees.
  std::int32_t first_key_block(const BlockPlace& place, std::int64_t position) const {
    const VisibleKeys keys = visible(place.sequence);
    const BlockMask blocks = modifiers_.blocks(batch_index(place), place.head);
    std::int64_t block = keys.begin(position) / tiles_.block_n;
    while (block * tiles_.block_n < keys.keys && !blocks.visible(position, block * tiles_.block_n)) ++block;
    return static_cast<std::int32_t>(block);
  }

  void key_block(const BlockPlace& place, std::int64_t dq_block, int worker) {
    const std::int64_t key_begin = place.block * tiles_.block_n;
    const BackwardTask task{.dtype = problem_.dtype,
                            .queries = queries({place.sequence, first_group(place.head), 0}, dq_block, worker),
                            .heads = groups(),
                            .bias_turn = bias_turns_.of(place),
                            .capture_turn = capture_turns_.of(place),
                            .k = key_rows(problem_, arguments_.k, place.sequence, place.head),
                            .v = key_rows(problem_, arguments_.v, place.sequence, place.head),
                            .dk = key_rows(problem_, arguments_.dk, place.sequence, place.head),
                            .dv = key_rows(problem_, arguments_.dv, place.sequence, place.head),
                            .key_begin = key_begin,
                            .key_end = std::min(key_begin + tiles_.block_n, place.sequence.k.length),
                            .head_dim = problem_.head_dim,
                            .head_dim_v = problem_.head_dim_v,
                            .normalized = is_normalized(problem_),
                            .qv_columns = qv_columns(problem_),
                            .scale = product_scale(problem_, place.sequence.k.length),
                            .visible = visible(place.sequence),
                            .score_scale = score_scale(problem_, place.sequence.k.length),
                            .tiles = tiles_};
    std::byte* scratch = workspace_.scratch_of(worker);
    call_.plan.bfloat16_serves() ? bf16::backward_block(call_.plan.bfloat16, task, scratch)
                                 : backward_block(task, scratch);
  }

  ConstRows query_value_rows(const BlockPlace& place) const {
    return problem_.has_qv ? query_rows(problem_, arguments_.qv, place.sequence, place.head) : ConstRows();
  }

  /// The rows of one sequence and group of heads, which `place` names.
  BackwardQueries queries(const BlockPlace& place, std::int64_t dq_block, int worker) const {
    const std::int64_t b = batch_index(place);
    return {.q = query_rows(problem_, arguments_.q, place.sequence, place.head),
            .qv = query_value_rows(place),
            .d_o = query_rows(problem_, arguments_.d_o, place.sequence, place.head),
            .normalizers = normalizers(place),
            .delta = delta(place),
            .dq = dq_sums(dq_block),
            .turn = turns(place),
            .rows = rows(place.sequence),
            .blocks = modifiers_.blocks(b, place.head),
            .terms = modifiers_.terms(b, place.head),
            .expression = expression(place, worker),
            .dropout = modifiers_.dropout(place.sequence, b, place.head),
            .d_bias = modifiers_.d_bias(arguments_.d_bias, b, place.head)};
  }

  ExpressionTask expression(const BlockPlace& place, int worker) const {
    ExpressionTask task = modifiers_.expression(call_.plan.expressions.get(), place.sequence, batch_index(place),
                                                place.head, workspace_.expressions_of(worker));
    task.d_captures = arguments_.d_captures.data();
    return task;
  }

  void finish_rows(const BlockPlace& place, std::int64_t dq_block) {
    const std::int64_t row_begin = place.block * tiles_.block_m;
    const QueryGradientTask task{.dtype = problem_.dtype,
                                 .dq = query_rows(problem_, arguments_.dq, place.sequence, place.head),
                                 .sums = dq_sums(dq_block + place.block),
                                 .row_begin = row_begin,
                                 .row_end = std::min(row_begin + tiles_.block_m, rows(place.sequence)),
                                 .head_dim = problem_.head_dim,
                                 .row_stride = call_.plan.dq_columns,
                                 .scale = product_scale(problem_, place.sequence.k.length)};
    call_.plan.bfloat16_serves() ? bf16::write_query_gradient(task) : write_query_gradient(task);
    if (!problem_.has_qv) return;
    QueryGradientTask of_values = task;
    of_values.dq = query_rows(problem_, arguments_.dqv, place.sequence, place.head);
    of_values.sums += call_.plan.dq_columns - call_.plan.dqv_columns;
    of_values.head_dim = problem_.head_dim_v;
    write_query_gradient(of_values);
  }

  /// A head's rows are summed by one worker, in the order of the batch.
  void sink_gradients() {
    if (!arguments_.d_sink.given()) return;
    auto* d_sink = static_cast<float*>(arguments_.d_sink.data);
    for_each_task(problem_.heads_q, call_.plan.threads, call_.parallel_for, [&](std::int64_t head, int) {
      const std::int64_t group = head / heads_per_group(problem_);
      const float sink = modifiers_.sinks(group)[head % heads_per_group(problem_)];
      double sum = 0.0;
      for (const Sequence& sequence : batch_.sequences) {
        const RowNormalizers normalizers = this->normalizers({sequence, group, 0});
        const float* deltas = delta({sequence, group, 0});
        for (std::int64_t row = head % heads_per_group(problem_); row < rows(sequence);
             row += heads_per_group(problem_)) {
          sum += sink_gradient(sink, normalizers.shift[row], normalizers.log2_sum[row], deltas[row]);
        }
      }
      d_sink[head] = static_cast<float>(sum);
    });
  }

  VisibleKeys visible(const Sequence& sequence) const { return visible_keys(problem_, sequence.q, sequence.k); }
  std::int64_t rows(const Sequence& sequence) const { return sequence.q.length * heads_per_group(problem_); }
  std::int64_t row_blocks(const Sequence& sequence) const { return ceil_div(rows(sequence), tiles_.block_m); }
  std::int64_t batch_index(const BlockPlace& place) const { return &place.sequence - batch_.sequences.data(); }

  /// Row blocks of all sequences and groups before this one's: where its rows begin in the workspace.
  std::int64_t first_block(const BlockPlace& place) const {
    return place.sequence.first_row_block * head_groups(problem_) + place.head * row_blocks(place.sequence);
  }

  RowNormalizers normalizers(const BlockPlace& place) const {
    return workspace_.normalizers.from_row(first_block(place) * tiles_.block_m);
  }
  float* delta(const BlockPlace& place) const { return workspace_.delta + first_block(place) * tiles_.block_m; }
  float* dq_sums(std::int64_t block) const { return workspace_.dq + block * workspace_.dq_block; }
  std::atomic<std::int32_t>* turns(const BlockPlace& place) const { return workspace_.turns + first_block(place); }

  const Call& call_;
  const AttentionProblem& problem_;
  const Tiles tiles_;
  const BackwardArguments& arguments_;
  const Workspace workspace_;
  const Batch batch_;
  const GroupModifiers modifiers_;
  const BiasTurns bias_turns_;
  const CaptureTurns capture_turns_;
};

}  // namespace

void backward(const Call& call, const BackwardArguments& arguments) { Backward(call, arguments).run(); }

}  // namespace strobe::cpu
