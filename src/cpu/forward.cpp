#include <algorithm>

#include "cpu/call.h"
#include "cpu/kernels/kernels.h"
#include "cpu/workers.h"

namespace strobe::cpu {

void forward(const Call& call, const ForwardArguments& arguments) {
  const AttentionProblem& problem = call.problem;
  const plan::CpuPlan& plan = call.plan;
  const Batch batch = make_batch(call, arguments.sequences);
  clear_unused(problem, batch, Side::query, arguments.o);
  clear_unused_lse(problem, batch, arguments.lse);

  const ScoreMap map = score_map(problem, ScaleSign::in_query);
  const auto block = [&](std::int64_t index, int worker) {
    const BlockPlace place = row_block_place(problem, batch, index);
    const std::int64_t rows = place.sequence.q.length * group_of(problem);
    const std::int64_t row_begin = place.block * plan.tiles.block_m;
    const ForwardTask task{.dtype = problem.dtype,
                           .q = query_rows(problem, arguments.q, place.sequence, place.head_k),
                           .k = key_rows(problem, arguments.k, place.sequence, place.head_k),
                           .v = key_rows(problem, arguments.v, place.sequence, place.head_k),
                           .o = query_rows(problem, arguments.o, place.sequence, place.head_k),
                           .lse = lse_rows(problem, arguments.lse, place.sequence, place.head_k),
                           .row_begin = row_begin,
                           .row_end = std::min(row_begin + plan.tiles.block_m, rows),
                           .head_dim = problem.head_dim,
                           .head_dim_v = problem.head_dim_v,
                           .visible = visible_keys(problem, place.sequence),
                           .score_map = map,
                           .tiles = plan.tiles};
    forward_block(task, call.workspace + plan.workspace.scratch + worker * plan.workspace.worker_bytes);
  };
  for_each_task(batch.row_blocks * problem.heads_k, plan.threads, call.parallel_for, block);
}

}  // namespace strobe::cpu
