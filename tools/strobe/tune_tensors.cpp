// SPDX-License-Identifier: Apache-2.0
#include "tune_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "call/problem_fields.h"

namespace strobe::program {
namespace {

template <class T>
io::HostTensor filled(DType dtype, std::vector<std::int64_t> shape, T value) {
  io::HostTensor tensor = io::make_tensor(dtype, std::move(shape));
  constexpr std::size_t kBytes = sizeof(T);
  for (std::size_t at = 0; at + kBytes <= tensor.bytes.size(); at += kBytes) {
    std::memcpy(tensor.bytes.data() + at, &value, kBytes);
  }
  return tensor;
}

/// first + i * step for each element.
io::HostTensor counted(std::vector<std::int64_t> shape, std::int64_t step, std::int64_t most) {
  io::HostTensor tensor = io::make_tensor(DType::int32, std::move(shape));
  for (std::size_t i = 0; i < io::element_count(tensor); ++i) {
    const auto value = static_cast<std::int32_t>(std::min(static_cast<std::int64_t>(i) * step, most));
    std::memcpy(tensor.bytes.data() + sizeof value * i, &value, sizeof value);
  }
  return tensor;
}

/// Where sequences of equal length begin.
io::HostTensor cumulative(std::int64_t batch, std::int64_t total) {
  const std::int64_t step = (total + batch - 1) / std::max<std::int64_t>(1, batch);
  return counted({batch + 1}, step, total);
}

Modifiers modifiers_of(const AttentionProblem& p) {
  const ModifierShape& shape = p.modifiers;
  Modifiers modifiers;
  const std::vector<std::int64_t> heads = {p.heads_q};
  const std::vector<std::int64_t> batch_heads = {p.batch, p.heads_q};
  if (shape.has_alibi)
    modifiers.alibi_slopes = filled(DType::float32, shape.alibi_per_batch ? batch_heads : heads, 0.1F);
  if (shape.has_sink) modifiers.sink = io::make_tensor(DType::float32, heads);
  if (shape.has_bias) {
    modifiers.bias = io::make_tensor(shape.bias_dtype, {shape.bias_per_batch ? p.batch : 1,
                                                        shape.bias_per_head ? p.heads_q : 1, p.seqlen_q, p.seqlen_k});
  }
  if (shape.block_size > 0) {
    const auto blocks = [&](std::int64_t rows) { return (rows + shape.block_size - 1) / shape.block_size; };
    modifiers.block_size = shape.block_size;
    modifiers.block_mask =
        filled<std::uint8_t>(DType::uint8,
                             {shape.blocks_per_batch ? p.batch : 1, shape.blocks_per_head ? p.heads_q : 1,
                              blocks(p.seqlen_q), blocks(p.seqlen_k)},
                             1);
  }
  return modifiers;
}

AttentionOptions options_of(const AttentionProblem& p) {
  AttentionOptions options;
  options.scale = p.scale;
  options.causal = p.causal;
  options.window = p.window;
  options.chunk = p.chunk;
  options.softcap = p.softcap;
  options.dropout = p.dropout;
  options.deterministic = p.deterministic;
  options.log_length = p.log_length;
  return options;
}

std::int64_t pages_of(const AttentionProblem& p) { return p.page_size == 0 ? 0 : p.seqlen_k / p.page_size; }

/// Shapes of the call's layout: repeating_tensors() makes one sequence of all rows.
void shape_tensors(const AttentionProblem& p, AttentionTensors& t) {
  const auto rows = [&](io::HostTensor& tensor, bool packed, std::int64_t batch, std::int64_t seqlen) {
    const std::int64_t heads = tensor.shape[2];
    const std::int64_t columns = tensor.shape[3];
    if (packed) {
      tensor.shape = {tensor.shape[1], heads, columns};
    } else {
      tensor.shape = {batch, seqlen, heads, columns};
    }
  };
  for (io::HostTensor* const tensor : {&t.q, &t.o, &t.d_o, &t.dq}) rows(*tensor, p.packed_q, p.batch, p.seqlen_q);
  const bool pages = p.page_size > 0;
  for (io::HostTensor* const tensor : {&t.k, &t.v, &t.dk, &t.dv}) {
    rows(*tensor, p.packed_k, pages ? p.batch * pages_of(p) : p.batch, pages ? p.page_size : p.seqlen_k);
  }
  // As large as those of a forward of as many keys, so that probabilities are what they are there.
  const float lse = std::log(static_cast<float>(std::max<std::int64_t>(1, p.seqlen_k))) + 0.5F;
  const bool packed = p.packed_q;
  const std::vector<std::int64_t> rows_of_heads = {p.heads_q, p.total_q};
  const std::vector<std::int64_t> rows_of_batch = {p.batch, p.heads_q, p.seqlen_q};
  t.lse = filled(DType::float32, packed ? rows_of_heads : rows_of_batch, lse);
}

}  // namespace

ForwardArguments TuneTensors::forward() {
  ForwardArguments arguments = tensors.forward();
  arguments.sequences = bounds;
  arguments.sequences.cu_seqlens_q = view(cu_seqlens_q);
  arguments.sequences.cu_seqlens_k = view(cu_seqlens_k);
  arguments.sequences.seqused_q = view(seqused_q);
  arguments.sequences.seqused_k = view(seqused_k);
  arguments.page_table = view(page_table);
  return arguments;
}

BackwardArguments TuneTensors::backward() {
  BackwardArguments arguments = tensors.backward();
  arguments.sequences = forward().sequences;
  return arguments;
}

Status check_tuned(const AttentionProblem& p) {
  for (const auto& [name, given] :
       {std::pair{"8-bit inputs", p.eight_bit.given() || p.stored.given()}, std::pair{"left padding", p.has_leftpad_k},
        std::pair{"entries of a cache", p.has_cache_batch_idx}, std::pair{"tree masks", p.has_tree_mask},
        std::pair{"a gradient of the LSE", p.has_d_lse}, std::pair{"parts of sequences", p.has_offsets},
        std::pair{"a second query", p.has_qv}, std::pair{"score and mask texts", p.expression.given()}}) {
    if (given) return {StatusCode::unsupported, fmt::format("calls with {} are not tuned", name)};
  }
  return {};
}

Result<TuneTensors> tune_tensors(const AttentionProblem& p) {
  if (Status status = check_tuned(p); !status.ok()) return status;
  const std::int64_t rows_q = p.packed_q ? p.total_q : p.batch * p.seqlen_q;
  const std::int64_t rows_k = p.packed_k ? p.total_k : p.batch * p.seqlen_k;
  TuneTensors made;
  made.tensors = repeating_tensors({1, rows_q, rows_k, p.heads_q, p.heads_kv, p.head_dim, p.head_dim_v}, p.dtype);
  made.tensors.modifiers = modifiers_of(p);
  if (p.wants_max_logits) made.tensors.max_logits = io::make_tensor(DType::float32, {p.batch, p.heads_q});
  if (p.wants_d_bias) made.tensors.d_bias = io::make_tensor(DType::float32, made.tensors.modifiers.bias.shape);
  if (p.wants_d_sink) made.tensors.d_sink = io::make_tensor(DType::float32, made.tensors.modifiers.sink.shape);
  shape_tensors(p, made.tensors);
  if (p.packed_q) made.cu_seqlens_q = cumulative(p.batch, p.total_q);
  if (p.packed_k) made.cu_seqlens_k = cumulative(p.batch, p.total_k);
  if (p.has_seqused_q) made.seqused_q = filled(DType::int32, {p.batch}, static_cast<std::int32_t>(p.seqlen_q));
  if (p.has_seqused_k) made.seqused_k = filled(DType::int32, {p.batch}, static_cast<std::int32_t>(p.seqlen_k));
  if (p.page_size > 0) made.page_table = counted({p.batch, pages_of(p)}, 1, p.batch * pages_of(p));
  if (p.packed_q) made.bounds.max_seqlen_q = p.seqlen_q;
  if (p.packed_k) made.bounds.max_seqlen_k = p.seqlen_k;
  made.options = options_of(p);
  return made;
}

std::string describe(const AttentionProblem& p) {
  std::string text = fmt::format("{}, {}", names_of(p.pass)[static_cast<std::size_t>(p.pass)], name_of(p.dtype));
  text += fmt::format(", {} {}", p.packed_q ? "packed" : "batch", p.batch);
  text += p.heads_q == p.heads_kv ? fmt::format(", heads {}", p.heads_q)
                                  : fmt::format(", heads {} and {}", p.heads_q, p.heads_kv);
  text += p.seqlen_q == p.seqlen_k ? fmt::format(", seqlen {}", p.seqlen_q)
                                   : fmt::format(", seqlen {} and {}", p.seqlen_q, p.seqlen_k);
  text += p.head_dim == p.head_dim_v ? fmt::format(", head_dim {}", p.head_dim)
                                     : fmt::format(", head_dim {} and {}", p.head_dim, p.head_dim_v);
  if (p.causal != CausalMask::none) text += ", causal";
  if (p.window.left >= 0) text += fmt::format(", window {}", p.window.left);
  if (p.page_size > 0) text += fmt::format(", pages of {}", p.page_size);
  if (p.softcap > 0.0F) text += ", softcap";
  if (p.deterministic && p.pass == Pass::backward) text += ", deterministic";
  return text;
}

}  // namespace strobe::program
