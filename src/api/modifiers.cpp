// SPDX-License-Identifier: Apache-2.0
#include "api/modifiers.h"

#include <fmt/ranges.h>

#include <cstddef>
#include <optional>
#include <span>

#include "api/expression.h"
#include "call/limits.h"
#include "call/text_options.h"
#include "expression/formula.h"

namespace strobe::api {
namespace {

/// The first two axes have the problem's extents or 1, the others those of `wanted`.
Status check_shared_shape(const NamedTensor& tensor, std::span<const std::int64_t, 4> wanted, std::string_view layout) {
  bool fits = true;
  for (std::size_t axis = 0; axis < 4; ++axis) {
    const std::int64_t extent = tensor.view.shape[axis];
    fits = fits && (extent == wanted[axis] || (axis < 2 && extent == 1));
  }
  if (fits) return {};
  return invalid("{} has shape {}: it must be [{} or 1, {} or 1, {}, {}] {}", tensor.name, shape_text(tensor.view),
                 wanted[0], wanted[1], wanted[2], wanted[3], layout);
}

/// A float32 tensor [heads_q] or, where `per_batch` may be, [batch, heads_q].
Status check_head_values(const NamedTensor& values, const AttentionProblem& problem, bool per_batch,
                         std::string_view layout) {
  const int rank = per_batch ? 2 : 1;
  return first_failure([&] { return check_layout(values, rank, layout); },
                       [&] { return check_dtype(values, DType::float32, ""); },
                       [&] { return check_device(values, problem.device); },
                       [&] {
                         return per_batch ? check_shape(values, {problem.batch, problem.heads_q}, layout)
                                          : check_shape(values, {problem.heads_q}, layout);
                       });
}

Status read_alibi(const NamedTensor& slopes, AttentionProblem& problem) {
  if (!slopes.view.given()) return {};
  const bool per_batch = slopes.view.rank == 2;
  if (!per_batch && slopes.view.rank != 1) {
    return invalid("{} has rank {}: it must be [heads_q] or [batch, heads_q]", slopes.name, slopes.view.rank);
  }
  problem.modifiers.has_alibi = true;
  problem.modifiers.alibi_per_batch = per_batch;
  return check_head_values(slopes, problem, per_batch, per_batch ? "[batch, heads_q]" : "[heads_q]");
}

Status read_bias(const NamedTensor& bias, AttentionProblem& problem) {
  if (!bias.view.given()) return {};
  constexpr std::string_view kLayout = "[batch or 1, heads_q or 1, seqlen_q, seqlen_k]";
  if (problem.packed_q || problem.packed_k) {
    return invalid("bias is given with {}: a bias needs batched q and k",
                   problem.packed_q ? "cu_seqlens_q" : "cu_seqlens_k");
  }
  Status status = check_layout(bias, 4, kLayout);
  if (!status.ok()) return status;
  if (problem.dtype == DType::float32) {
    status = check_dtype(bias, DType::float32, ", as q is");
    if (!status.ok()) return status;
  } else if (bias.view.dtype != DType::float32 && bias.view.dtype != problem.dtype) {
    return invalid("bias is {}: it must be float32 or {}, as q is", name_of(bias.view.dtype), name_of(problem.dtype));
  }
  const std::int64_t wanted[] = {problem.batch, problem.heads_q, problem.seqlen_q, problem.seqlen_k};
  status = first_failure([&] { return check_device(bias, problem.device); },
                         [&] { return check_shared_shape(bias, wanted, kLayout); });
  problem.modifiers.has_bias = true;
  problem.modifiers.bias_dtype = bias.view.dtype;
  problem.modifiers.bias_per_batch = bias.view.shape[0] != 1;
  problem.modifiers.bias_per_head = bias.view.shape[1] != 1;
  return status;
}

Status read_sink(const NamedTensor& sink, AttentionProblem& problem) {
  if (!sink.view.given()) return {};
  problem.modifiers.has_sink = true;
  return check_head_values(sink, problem, false, "[heads_q]");
}

Status read_block_mask(const NamedTensor& mask, std::int64_t size, AttentionProblem& problem) {
  if (!mask.view.given()) return {};
  constexpr std::string_view kLayout = "[batch or 1, heads_q or 1, blocks of queries, blocks of keys]";
  if (size != 64 && size != 128) return invalid("block_size is {}: it must be 64 or 128", size);
  const std::int64_t wanted[] = {problem.batch, problem.heads_q, (problem.seqlen_q + size - 1) / size,
                                 (problem.seqlen_k + size - 1) / size};
  problem.modifiers.block_size = size;
  problem.modifiers.blocks_per_batch = mask.view.shape[0] != 1;
  problem.modifiers.blocks_per_head = mask.view.shape[1] != 1;
  return first_failure(
      [&] { return check_layout(mask, 4, kLayout); }, [&] { return check_dtype(mask, DType::uint8, ""); },
      [&] { return check_device(mask, problem.device); }, [&] { return check_shared_shape(mask, wanted, kLayout); });
}

/// Whether a call could have the capture as that option: read(view, problem) is the option's own check.
template <class Read>
bool fits(const expression::CapturedTensor& tensor, const ScoreModifiers& given, const AttentionProblem& problem,
          const Read& read) {
  if (!tensor.given()) return false;
  const ConstTensorView& capture = given.captures[static_cast<std::size_t>(tensor.capture)];
  if (!covers(tensor, problem, capture, /*exactly=*/false)) return false;
  AttentionProblem with_option = problem;
  return read(option_view(tensor, problem, capture), with_option).ok();
}

/// What planners cannot see of captures that the score reads as options are read.
void read_captured_options(const ScoreModifiers& given, AttentionProblem& problem) {
  if (!problem.expression.given()) return;
  const std::optional<expression::ScoreTerms>& terms = problem.expression.formula->score_terms();
  if (!terms) return;
  problem.expression.bias_fits =
      fits(terms->bias, given, problem, [](const ConstTensorView& bias, AttentionProblem& with_option) {
        return read_bias({"bias", bias}, with_option);
      });
  problem.expression.slopes_fit =
      fits(terms->slopes, given, problem, [](const ConstTensorView& slopes, AttentionProblem& with_option) {
        return read_alibi({"alibi_slopes", slopes}, with_option);
      });
}

/// A bias of whose capture a gradient is wanted, too, must have it as a call has d_bias.
void read_captured_bias_gradient(const BackwardArguments& arguments, AttentionProblem& problem) {
  if (!problem.expression.bias_fits || arguments.d_captures.empty()) return;
  const expression::CapturedTensor& bias = problem.expression.formula->score_terms()->bias;
  const TensorView& gradient = arguments.d_captures[static_cast<std::size_t>(bias.capture)];
  if (!gradient.given()) return;
  problem.expression.bias_fits = covers(bias, problem, gradient, /*exactly=*/true) &&
                                 check_layout({"d_bias", option_view(bias, problem, gradient)}, 4,
                                              "[batch or 1, heads_q or 1, seqlen_q, seqlen_k]")
                                     .ok();
}

}  // namespace

Status check_offsets(const Sequences& sequences, const AttentionOptions& options) {
  for (const auto& [name, view] :
       {NamedTensor{"offset_q", sequences.offset_q}, NamedTensor{"offset_k", sequences.offset_k}}) {
    if (!view.given() || options.log_length == 0) continue;
    return invalid("{} is given with log_length: how many keys a whole sequence has is not known of a part of it",
                   name);
  }
  return {};
}

Status read_modifiers(const ScoreModifiers& given, AttentionProblem& problem) {
  Status status =
      first_failure([&] { return read_alibi({"alibi_slopes", given.alibi_slopes}, problem); },
                    [&] { return read_bias({"bias", given.bias}, problem); },
                    [&] { return read_sink({"sink", given.sink}, problem); },
                    [&] { return read_block_mask({"block_mask", given.block_mask}, given.block_size, problem); },
                    [&] { return read_expression(given, problem); });
  if (status.ok()) read_captured_options(given, problem);
  return status;
}

Status read_tree_mask(const NamedTensor& mask, AttentionProblem& problem) {
  if (!mask.view.given()) return {};
  problem.has_tree_mask = true;
  const std::string_view layout = problem.packed_q ? "[total_q]" : "[batch, seqlen_q]";
  Status status = first_failure(
      [&] { return check_layout(mask, problem.packed_q ? 1 : 2, layout); },
      [&] { return check_dtype(mask, DType::int64, ""); }, [&] { return check_device(mask, problem.device); },
      [&] {
        return problem.packed_q ? check_shape(mask, {problem.total_q}, layout)
                                : check_shape(mask, {problem.batch, problem.seqlen_q}, layout);
      });
  if (!status.ok()) return status;
  if (problem.seqlen_q > kMaxTreeQueries) {
    return invalid("tree_mask is given with {} of {}: it has a bit for each of at most {} queries",
                   problem.packed_q ? "max_seqlen_q" : "seqlen_q", problem.seqlen_q, kMaxTreeQueries);
  }
  if (problem.has_offsets) {
    return invalid("tree_mask is given with offset_q or offset_k: it names the last keys of whole sequences");
  }
  if (problem.modifiers.block_size == 0) return {};
  return unsupported("tree_mask is given with block_mask: no engine combines the two");
}

Status check_modifier_gradients(const BackwardArguments& arguments, AttentionProblem& problem) {
  if (Status status = read_capture_gradients(arguments, problem); !status.ok()) return status;
  read_captured_bias_gradient(arguments, problem);
  const NamedTensor d_bias{"d_bias", arguments.d_bias};
  const NamedTensor d_sink{"d_sink", arguments.d_sink};
  if (d_bias.view.given()) {
    if (!problem.modifiers.has_bias) return invalid("d_bias is given without a bias: give modifiers.bias, too");
    constexpr std::string_view kLayout = "as bias is";
    const auto& shape = arguments.modifiers.bias.shape;
    Status status =
        first_failure([&] { return check_layout(d_bias, 4, "[batch or 1, heads_q or 1, seqlen_q, seqlen_k]"); },
                      [&] { return check_dtype(d_bias, DType::float32, ": it is a sum over many rows"); },
                      [&] { return check_device(d_bias, problem.device); },
                      [&] { return check_shape(d_bias, {shape[0], shape[1], shape[2], shape[3]}, kLayout); },
                      [&] { return check_distinct_elements(d_bias); });
    if (!status.ok()) return status;
  }
  if (!d_sink.view.given()) return {};
  if (!problem.modifiers.has_sink) return invalid("d_sink is given without a sink: give modifiers.sink, too");
  return first_failure([&] { return check_head_values(d_sink, problem, false, "[heads_q]"); },
                       [&] { return check_distinct_elements(d_sink); });
}

Status check_max_logits(const NamedTensor& max_logits, const AttentionProblem& problem) {
  if (!max_logits.view.given()) return {};
  return first_failure([&] { return check_head_values(max_logits, problem, true, "[batch, heads_q]"); },
                       [&] { return check_distinct_elements(max_logits); });
}

}  // namespace strobe::api
