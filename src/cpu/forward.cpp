// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "call/checked.h"
#include "call/eight_bit.h"
#include "cpu/bfloat16/kernels.h"
#include "cpu/call.h"
#include "cpu/few_queries.h"
#include "cpu/kernels/kernels.h"
#include "cpu/modifiers.h"
#include "cpu/workers.h"

namespace strobe::cpu {
namespace {

/// max_logits before any task has raised it.
void clear_max_logits(const AttentionProblem& problem, const TensorView& max_logits) {
  if (!max_logits.given()) return;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    std::fill_n(static_cast<float*>(max_logits.data) + b * max_logits.strides[0], problem.heads_q, -kInfinity);
  }
}

/// Leaves `scale` positive: the online softmax takes the largest product for the largest exponent. Returns what the
/// queries are to be multiplied by instead, which is exact: the sign, or 0 where the scale is 0.
float move_sign_to_queries(ScoreScale& scale) {
  const float signed_scale = scale.capped ? scale.softcap_scale : scale.scale_log2;
  const auto without_sign = [](float factor) { return factor == 0.0F ? 1.0F : std::abs(factor); };
  scale.softcap_scale = without_sign(scale.softcap_scale);
  scale.scale_log2 = without_sign(scale.scale_log2);
  scale.scale = without_sign(scale.scale);
  return signed_scale == 0.0F ? 0.0F : (signed_scale < 0.0F ? -1.0F : 1.0F);
}

float* max_logits_of(const TensorView& max_logits, std::int64_t batch, std::int64_t first_head) {
  if (!max_logits.given()) return nullptr;
  return static_cast<float*>(max_logits.data) + batch * max_logits.strides[0] + first_head;
}

/// Rows of keys; of 8-bit operands rows of V's columns.
ConstRows value_rows(const AttentionProblem& problem, const ForwardArguments& arguments, const Sequence& sequence,
                     std::int64_t batch, std::int64_t head_kv) {
  const ConstTensorView& v = arguments.v;
  if (!problem.eight_bit.given()) return cache_rows(problem, v, arguments.page_table, sequence, head_kv);
  if (problem.packed_k) {
    const auto* columns = static_cast<const std::byte*>(v.data) + packed_value_start(sequence.k.begin, batch);
    return {.data = columns + head_kv * v.strides[0], .position_stride = v.strides[1]};
  }
  const auto* data = static_cast<const std::byte*>(v.data) + sequence.k.begin * v.strides[0] + head_kv * v.strides[1];
  return {.data = data, .position_stride = v.strides[2]};
}

/// The scales of a head and those after it; extents of 1 are every entry's.
RowScales row_scales(const ConstTensorView& scales, std::int64_t batch, std::int64_t head, std::int64_t rows) {
  const std::int64_t batch_stride = scales.shape[0] == 1 ? 0 : scales.strides[0];
  const std::int64_t head_stride = scales.shape[1] == 1 ? 0 : scales.strides[1];
  const auto* data = static_cast<const float*>(scales.data) + batch * batch_stride + head * head_stride;
  return {.data = data, .head_stride = head_stride, .rows = rows};
}

EightBitOperands eight_bit_operands(const AttentionProblem& problem, const ForwardArguments& arguments,
                                    std::int64_t batch, std::int64_t group, std::int64_t head_kv) {
  const EightBitShape& shape = problem.eight_bit;
  if (!shape.given()) return {};
  const std::int64_t head = group * heads_per_group(problem);
  EightBitOperands operands{.q = row_scales(arguments.q_descale, batch, head, shape.q_rows),
                            .k = row_scales(arguments.k_descale, batch, head_kv, shape.k_rows),
                            .v = row_scales(arguments.v_descale, batch, head_kv, shape.v_rows),
                            .rotation = arguments.v_rotation};
  if (shape.has_q_shift) operands.q_shift = row_scales(arguments.q_shift, batch, head, 1);
  return operands;
}

StoredOperands stored_operands(const AttentionProblem& problem, const ForwardArguments& arguments, std::int64_t batch,
                               std::int64_t head_kv) {
  const StoredShape& shape = problem.stored;
  if (!shape.given()) return {};
  return {.dtype = shape.dtype,
          .k = row_scales(arguments.k_descale, batch, head_kv, shape.k_rows),
          .v = row_scales(arguments.v_descale, batch, head_kv, shape.v_rows)};
}

/// The key head that a group of heads reads.
std::int64_t head_kv_of(const AttentionProblem& problem, std::int64_t group) {
  return group * heads_per_group(problem) / heads_per_key_head(problem);
}

TreeMask tree_mask(const AttentionProblem& problem, const ConstTensorView& mask, const Sequence& sequence) {
  if (!mask.given()) return {};
  const std::int64_t stride = problem.packed_q ? 1 : mask.strides[0];
  return {.words = static_cast<const std::int64_t*>(mask.data) + sequence.q.begin * stride,
          .queries = sequence.q.length,
          .begin = sequence.k.length - sequence.q.length};
}

/// Runs all tasks of a call, row blocks by run_block(task, sequence, group, scratch).
template <class RunBlock>
void run(const Call& call, const ForwardArguments& arguments, const Workspace& workspace, const Batch& batch,
         const RunBlock& run_block) {
  const AttentionProblem& problem = call.problem;
  const CallPlan& plan = call.plan;
  const GroupModifiers modifiers(problem, arguments.modifiers, arguments.random);
  const auto task_of = [&](const Sequence& sequence, std::int64_t group, int worker) {
    const std::int64_t b = &sequence - batch.sequences.data();
    const std::int64_t head_kv = head_kv_of(problem, group);
    ScoreScale scale = score_scale(problem, sequence.k.length);
    const float query_factor = move_sign_to_queries(scale);
    return ForwardTask{.dtype = problem.dtype,
                       .dtype_o = output_dtype(problem),
                       .q = query_rows(problem, arguments.q, sequence, group),
                       .k = cache_rows(problem, arguments.k, arguments.page_table, sequence, head_kv),
                       .v = value_rows(problem, arguments, sequence, b, head_kv),
                       .qv = problem.has_qv ? query_rows(problem, arguments.qv, sequence, group) : ConstRows(),
                       .o = query_rows(problem, arguments.o, sequence, group),
                       .lse = lse_rows(problem, arguments.lse, sequence, group),
                       .row_begin = 0,
                       .row_end = sequence.q.length * heads_per_group(problem),
                       .head_dim = problem.head_dim,
                       .head_dim_v = problem.head_dim_v,
                       .qv_columns = qv_columns(problem),
                       .visible = visible_keys(problem, sequence.q, sequence.k),
                       .query_factor = query_factor,
                       .score_scale = scale,
                       .blocks = modifiers.blocks(b, group),
                       .tree = tree_mask(problem, arguments.tree_mask, sequence),
                       .terms = modifiers.terms(b, group),
                       .expression = modifiers.expression(plan.expressions.get(), sequence, b, group,
                                                          workspace.expressions_of(worker)),
                       .dropout = modifiers.dropout(sequence, b, group),
                       .sinks = modifiers.sinks(group),
                       .max_logits = max_logits_of(arguments.max_logits, b, group * heads_per_group(problem)),
                       .eight_bit = eight_bit_operands(problem, arguments, b, group, head_kv),
                       .stored = stored_operands(problem, arguments, b, head_kv),
                       .normalized = is_normalized(problem),
                       .row_invariant = problem.row_invariant,
                       .tiles = plan.tiles};
  };
  if (plan.few_queries.serves()) return forward_few_queries(call, workspace, task_of);
  const auto block = [&](std::int64_t index, int worker) {
    const BlockPlace place = row_block_place(problem, batch, index);
    ForwardTask task = task_of(place.sequence, place.head, worker);
    task.row_begin = place.block * plan.tiles.block_m;
    task.row_end = std::min(task.row_begin + plan.tiles.block_m, task.row_end);
    run_block(task, place.sequence, place.head, workspace.scratch_of(worker));
  };
  for_each_task((Checked(batch.row_blocks) * head_groups(problem)).value(), plan.threads, call.parallel_for, block);
}

/// Gradients of unused positions are zero, and so are their tangents.
void clear_unused_tangents(const AttentionProblem& problem, const Batch& batch, const JvpArguments& arguments) {
  clear_unused(problem, batch, Side::query, arguments.o_tangent);
  clear_unused_lse(problem, batch, arguments.lse_tangent, 0.0F);
}

}  // namespace

void forward(const Call& call, const ForwardArguments& arguments) {
  const Workspace workspace(call.workspace, call.problem, call.plan);
  const Batch batch = make_batch(call, arguments.sequences, workspace.sequences);
  clear_unused(call.problem, batch, Side::query, arguments.o);
  clear_unused_lse(call.problem, batch, arguments.lse);
  clear_max_logits(call.problem, arguments.max_logits);
  const bf16::Unit unit = call.plan.bfloat16;
  run(call, arguments, workspace, batch,
      [unit](const ForwardTask& task, const Sequence&, std::int64_t, std::byte* scratch) {
        unit != bf16::Unit::none ? bf16::forward_block(unit, task, scratch) : forward_block(task, scratch);
      });
}

void jvp(const Call& call, const JvpArguments& arguments) {
  const AttentionProblem& problem = call.problem;
  const Workspace workspace(call.workspace, problem, call.plan);
  const Batch batch = make_batch(call, arguments.sequences, workspace.sequences);
  const bool wants_o = arguments.o.given();
  if (wants_o) clear_unused(problem, batch, Side::query, arguments.o);
  clear_unused_lse(problem, batch, arguments.lse);
  clear_unused_tangents(problem, batch, arguments);
  const ForwardArguments forward{.q = arguments.q,
                                 .k = arguments.k,
                                 .v = arguments.v,
                                 .o = wants_o ? arguments.o : arguments.o_tangent,
                                 .lse = arguments.lse,
                                 .sequences = arguments.sequences,
                                 .modifiers = arguments.modifiers,
                                 .random = arguments.random};
  run(call, forward, workspace, batch,
      [&](const ForwardTask& task, const Sequence& sequence, std::int64_t group, std::byte* scratch) {
        const std::int64_t head_kv = head_kv_of(problem, group);
        const auto of_keys = [&](const ConstTensorView& tensor) {
          return tensor.given() ? key_rows(problem, tensor, sequence, head_kv) : ConstRows();
        };
        jvp_block({.forward = task,
                   .wants_o = wants_o,
                   .q_tangent = arguments.q_tangent.given() ? query_rows(problem, arguments.q_tangent, sequence, group)
                                                            : ConstRows(),
                   .k_tangent = of_keys(arguments.k_tangent),
                   .v_tangent = of_keys(arguments.v_tangent),
                   .o_tangent = query_rows(problem, arguments.o_tangent, sequence, group),
                   .lse_tangent = lse_rows(problem, arguments.lse_tangent, sequence, group)},
                  scratch);
      });
}

}  // namespace strobe::cpu
