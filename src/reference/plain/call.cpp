// SPDX-License-Identifier: Apache-2.0
#include "reference/plain/call.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "reference/dense_cache.h"
#include "reference/plain/attention.h"
#include "reference/tensors.h"

namespace strobe::reference::plain {
namespace {

Matrix read_matrix(const ConstTensorView& view, std::int64_t first, std::int64_t rows, std::int64_t head) {
  return {rows, head_dim_of(view), read_head(view, first, rows, head)};
}

/// Adds to the rows of one head in a tensor of `heads` heads, row-major.
void add_head(const Matrix& from, std::int64_t first, std::int64_t head, std::int64_t heads, std::vector<double>& to) {
  for (std::int64_t row = 0; row < from.rows; ++row) {
    for (std::int64_t c = 0; c < from.columns; ++c) {
      to[((first + row) * heads + head) * from.columns + c] += from(row, c);
    }
  }
}

const ConstTensorView& tree_mask_of(const ForwardArguments& arguments) { return arguments.tree_mask; }
template <class Arguments>
ConstTensorView tree_mask_of(const Arguments&) {
  return {};
}

template <class Arguments>
ConstTensorView qv_of(const Arguments& arguments) {
  if constexpr (requires { arguments.qv; }) return arguments.qv;
  return {};
}

/// What the products of Q and K of a sequence that has `keys` keys are multiplied by.
double product_scale(const AttentionOptions& options, std::int64_t head_dim, std::int64_t keys) {
  const double scale =
      options.scale ? static_cast<double>(*options.scale) : 1.0 / std::sqrt(static_cast<double>(head_dim));
  if (options.log_length == 0 || keys < 1) return scale;
  return scale * std::max(1.0, std::log(static_cast<double>(keys)) / std::log(static_cast<double>(options.log_length)));
}

/// Calls visit(head, rows, h, head_kv) for every query head h of every sequence; it reads key head
/// h / (heads_q / heads_kv).
template <class Arguments, class Visit>
void for_each_head(const Arguments& arguments, const AttentionOptions& options, const Visit& visit) {
  const ConstTensorView& q = arguments.q;
  const ConstTensorView& k = arguments.k;
  const ConstTensorView qv = qv_of(arguments);
  const std::int64_t columns = head_dim_of(q) + (qv.given() ? head_dim_of(qv) : 0);
  const std::int64_t heads_q = heads_of(q);
  for (const SequenceRows& rows : sequence_rows(q, k, arguments.sequences)) {
    for (std::int64_t h = 0; h < heads_q; ++h) {
      const std::int64_t head_kv = h / (heads_q / heads_of(k));
      const HeadModifiers modifiers(arguments.modifiers, options, arguments.random, rows, h, heads_q, heads_of(k));
      const Head head{
          .q = read_matrix(q, rows.first_q, rows.seqlen_q, h),
          .k = read_matrix(k, rows.first_k, rows.seqlen_k, head_kv),
          .v = read_matrix(arguments.v, rows.first_k, rows.seqlen_k, head_kv),
          .scale = product_scale(options, columns, rows.seqlen_k),
          .options = options,
          .modifiers = modifiers.with_tree(tree_mask_of(arguments), rows.first_q),
          .part = rows.is_part ? std::optional(PartPositions{rows.position_q, rows.position_k}) : std::nullopt,
          .qv = qv.given() ? read_matrix(qv, rows.first_q, rows.seqlen_q, h) : Matrix{0, 0}};
      visit(head, rows, h, head_kv);
    }
  }
}

}  // namespace

Output forward(const ForwardArguments& arguments, const AttentionOptions& options) {
  if (DenseCache::needed(arguments)) return plain::forward(DenseCache(arguments).arguments(), options);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::int64_t heads = heads_of(arguments.q);
  const std::int64_t rows_in_all = element_count(arguments.q) / head_dim_of(arguments.q);
  Output out{.o = std::vector<double>(rows_in_all * head_dim_of(arguments.v), 0.0),
             .lse = std::vector<double>(rows_in_all, -kInfinity),
             .max_logits = {}};
  for_each_head(arguments, options, [&](const Head& head, const SequenceRows& rows, std::int64_t h, std::int64_t) {
    const HeadOutput of_head = forward(head);
    add_head(of_head.o, rows.first_q, h, heads, out.o);
    for (std::int64_t i = 0; i < rows.seqlen_q; ++i) {
      out.lse[lse_index(rows.first_q + i, h, heads, rows_per_entry(arguments.q))] = of_head.lse[i];
    }
    out.max_logits.push_back(of_head.max_logit);
  });
  return out;
}

Tangents jvp(const JvpArguments& arguments, const AttentionOptions& options) {
  const std::int64_t heads = heads_of(arguments.q);
  const std::int64_t rows_in_all = element_count(arguments.q) / head_dim_of(arguments.q);
  Tangents out{.o = std::vector<double>(rows_in_all * head_dim_of(arguments.v), 0.0),
               .lse = std::vector<double>(rows_in_all, 0.0)};
  const auto tangent = [](const ConstTensorView& view, const Matrix& like, std::int64_t first, std::int64_t head) {
    return view.given() ? read_matrix(view, first, like.rows, head) : Matrix{like.rows, like.columns};
  };
  for_each_head(arguments, options,
                [&](const Head& head, const SequenceRows& rows, std::int64_t h, std::int64_t head_kv) {
                  const HeadTangents tangents{tangent(arguments.q_tangent, head.q, rows.first_q, h),
                                              tangent(arguments.k_tangent, head.k, rows.first_k, head_kv),
                                              tangent(arguments.v_tangent, head.v, rows.first_k, head_kv)};
                  const OutputTangents of_head = jvp(head, forward(head), tangents);
                  add_head(of_head.o, rows.first_q, h, heads, out.o);
                  for (std::int64_t i = 0; i < rows.seqlen_q; ++i) {
                    out.lse[lse_index(rows.first_q + i, h, heads, rows_per_entry(arguments.q))] = of_head.lse[i];
                  }
                });
  return out;
}

Gradients backward(const BackwardArguments& arguments, const AttentionOptions& options) {
  const std::int64_t heads_q = heads_of(arguments.q);
  const std::int64_t heads_kv = heads_of(arguments.k);
  const auto zeros = [](const ConstTensorView& view) { return std::vector<double>(element_count(view), 0.0); };
  Gradients out{.dq = zeros(arguments.dq),
                .dk = zeros(arguments.dk),
                .dv = zeros(arguments.dv),
                .d_bias = zeros(arguments.d_bias),
                .d_sink = zeros(arguments.d_sink),
                .d_captures = {},
                .dqv = zeros(arguments.dqv)};
  for (const TensorView& gradient : arguments.d_captures) out.d_captures.push_back(zeros(gradient));
  for_each_head(
      arguments, options, [&](const Head& head, const SequenceRows& rows, std::int64_t h, std::int64_t head_kv) {
        std::vector<double> d_lse;
        for (std::int64_t i = 0; i < rows.seqlen_q; ++i) {
          d_lse.push_back(d_lse_at(arguments.d_lse, rows.first_q + i, h, rows_per_entry(arguments.q)));
        }
        const Matrix d_o = read_matrix(arguments.d_o, rows.first_q, rows.seqlen_q, h);
        const HeadGradients of_head = backward(head, forward(head), d_o, d_lse, !arguments.d_captures.empty());
        add_head(of_head.dq, rows.first_q, h, heads_q, out.dq);
        if (arguments.qv.given()) add_head(of_head.dqv, rows.first_q, h, heads_q, out.dqv);
        add_head(of_head.dk, rows.first_k, head_kv, heads_kv, out.dk);
        add_head(of_head.dv, rows.first_k, head_kv, heads_kv, out.dv);
        for (const CaptureGradient& one : of_head.d_captures) {
          std::vector<double>& gradient = out.d_captures[one.capture];
          if (!gradient.empty()) gradient[one.element] += one.value;
        }
        if (arguments.d_sink.given()) out.d_sink[h] += of_head.d_sink;
        if (!arguments.d_bias.given()) return;
        // A bias of [batch or 1, heads_q or 1, seqlen_q, seqlen_k]: what shares an element adds to its
        // gradient.
        const auto& shape = arguments.d_bias.shape;
        const std::int64_t plane = (shape[0] == 1 ? 0 : rows.sequence) * shape[1] + (shape[1] == 1 ? 0 : h);
        for (std::int64_t i = 0; i < rows.seqlen_q; ++i) {
          for (std::int64_t j = 0; j < rows.seqlen_k; ++j) {
            out.d_bias[(plane * shape[2] + i) * shape[3] + j] += of_head.d_bias(i, j);
          }
        }
      });
  return out;
}

}  // namespace strobe::reference::plain
