// SPDX-License-Identifier: Apache-2.0
// What a call of a forward knows beside its problem and plan: pointers and strides, as the kernels of every family name
// them in their parameters.
#pragma once

#include "gpu/params/captures.h"
#include "gpu/params/rows.h"
#include "gpu/params/score.h"
#include "strobe/attention.h"

namespace strobe::gpu {

/// All but the tiles. Rows of K and V stored in 8 bits count pairs of elements.
template <class Params>
WithTexts<Params> forward_params(const AttentionProblem& problem, const ForwardArguments& arguments) {
  WithTexts<Params> params{};
  params.q = rows_of({"q", arguments.q}, problem.dtype);
  const auto key_rows = [&](const RowsView& tensor) {
    return problem.stored.given() ? rows_of_pairs(tensor) : rows_of(tensor, problem.dtype);
  };
  params.k = key_rows({"k", arguments.k});
  params.v = key_rows({"v", arguments.v});
  params.o = rows_of({"o", arguments.o}, problem.dtype);
  if (problem.has_qv) params.qv = rows_of({"qv", arguments.qv});
  // Copies of nothing name an address all the same.
  if (params.k.data == nullptr) params.k.data = params.o.data;
  if (params.v.data == nullptr) params.v.data = params.o.data;
  if (arguments.lse.given()) {
    params.lse = static_cast<float*>(arguments.lse.data);
    params.lse_batch_stride = problem.packed_q ? 0 : arguments.lse.strides[0];
    params.lse_head_stride = arguments.lse.strides[problem.packed_q ? 0 : 1];
  }
  params.head_dim = static_cast<int>(problem.head_dim);
  params.head_dim_v = static_cast<int>(problem.head_dim_v);
  params.sequences = sequence_params(problem, arguments.sequences);
  params.visibility = visibility_params(problem);
  if (problem.has_tree_mask) {
    params.tree = tree_params(problem, arguments.tree_mask);
  } else {
    params.blocks = block_mask_params(problem, arguments.modifiers.block_mask);
  }
  params.score = score_params(problem, arguments.modifiers, arguments.random);
  params.max_logits = {static_cast<float*>(arguments.max_logits.data), arguments.max_logits.strides[0]};
  params.offsets = offset_params(arguments.sequences);
  if (problem.expression.given()) params.captures = captures(arguments.modifiers.captures);
  return params;
}

}  // namespace strobe::gpu
