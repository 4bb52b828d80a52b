// SPDX-License-Identifier: Apache-2.0
#include "case_tensors.h"

#include <cmath>

#include "call/arithmetic.h"
#include "reference/bound/visibility.h"
#include "reference/tensors.h"

namespace strobe::test {
namespace {

double draw(Values values, Random& random) {
  switch (values) {
    case Values::normal: return random.normal();
    case Values::outliers: return random.normal() + (random.chance(0.001) ? 10.0 * random.normal() : 0.0);
    case Values::small: return 0x1p-10 * random.normal();
    case Values::sharp: return 4.0 * random.normal();
  }
  return 0.0;
}

// The slopes of the paper are powers of two; a negative one favours what is far.
double draw_slope(Random& random) {
  if (random.chance(0.1)) return 0.0;
  return (random.chance(0.1) ? -1.0 : 1.0) * std::exp2(-static_cast<double>(random.integer(0, 8)));
}

// Which rows, one flag per head, take part in anything.
struct Used {
  std::vector<char> queries;    // [rows, heads_q]: sees a key
  std::vector<char> gradients;  // [rows, heads_q]: dO and dLSE reach something
  std::vector<char> keys;       // [rows, heads_kv]
  std::vector<char> bias;       // in bias's shape
};

std::int64_t rows_of(const AttentionCase& attention, const SideLengths& side) {
  return side.cu_seqlens.empty() ? attention.batch * side.rows : side.rows;
}

// Turns whole rows of a tensor [.., columns] into NaN where nothing uses them.
void forget_rows(GuardedTensor& tensor, const std::vector<char>& used) {
  const std::int64_t columns = used.empty() ? 0 : tensor.size() / static_cast<std::int64_t>(used.size());
  for (std::int64_t index = 0; index < tensor.size(); ++index) {
    if (used[index / columns] == 0) tensor.set(index, kNaN);
  }
}

void mark_head(const AttentionCase& attention, const ForwardArguments& arguments, const reference::SequenceRows& rows,
               std::int64_t head, Used& used) {
  const std::int64_t head_kv = head / (attention.heads_q / attention.heads_kv);
  const auto modifiers = reference::HeadModifiers(arguments.modifiers, attention.options, {}, rows, head,
                                                  attention.heads_q, attention.heads_kv)
                             .with_tree(arguments.tree_mask, rows.first_q);
  const auto& shape = arguments.modifiers.bias.shape;
  const std::int64_t plane =
      (shape[0] == 1 ? 0 : rows.sequence) * shape[1] + (shape[1] == 1 ? 0 : head);  // of the bias
  for (std::int64_t query = 0; query < rows.seqlen_q; ++query) {
    const std::int64_t row = (rows.first_q + query) * attention.heads_q + head;
    if (attention.has_sink) used.gradients[row] = 1;
    for (const reference::KeyRange& keys : reference::visible_keys(query, rows, attention.options, modifiers)) {
      used.queries[row] = used.gradients[row] = 1;
      for (std::int64_t key = keys.begin; key < keys.end; ++key) {
        used.keys[(rows.first_k + key) * attention.heads_kv + head_kv] = 1;
        if (attention.bias) used.bias[(plane * shape[2] + query) * shape[3] + key] = 1;
      }
    }
  }
}

std::vector<GuardedTensor*> given(std::initializer_list<GuardedTensor*> tensors) {
  std::vector<GuardedTensor*> result;
  for (GuardedTensor* tensor : tensors) {
    if (tensor->view().given()) result.push_back(tensor);
  }
  return result;
}

}  // namespace

CaseTensors::CaseTensors(const AttentionCase& attention) : case_(attention), random_(attention.seed) {
  q = make_rows(case_.q, case_.heads_q, case_.head_dim);
  k = make_rows(case_.k, case_.heads_kv, case_.head_dim);
  v = make_rows(case_.k, case_.heads_kv, case_.head_dim_v);
  o = make_rows(case_.q, case_.heads_q, case_.head_dim_v);
  d_o = make_rows(case_.q, case_.heads_q, case_.head_dim_v);
  dq = make_rows(case_.q, case_.heads_q, case_.head_dim);
  dk = make_rows(case_.k, case_.heads_kv, case_.head_dim);
  dv = make_rows(case_.k, case_.heads_kv, case_.head_dim_v);
  if (case_.has_qv) {
    qv = make_rows(case_.q, case_.heads_q, case_.head_dim_v);
    dqv = make_rows(case_.q, case_.heads_q, case_.head_dim_v);
  }
  if (case_.wants_lse) lse = make_lse();
  if (case_.has_d_lse) d_lse = make_lse();
  if (case_.wants_max_logits) max_logits = make(DType::float32, {case_.batch, case_.heads_q});
  cu_seqlens_q = make_lengths(case_.q.cu_seqlens);
  cu_seqlens_k = make_lengths(case_.k.cu_seqlens);
  seqused_q = make_lengths(case_.q.seqused);
  seqused_k = make_lengths(case_.k.seqused);
  offset_q = make_lengths(case_.q.offsets);
  offset_k = make_lengths(case_.k.offsets);
  make_modifiers();
  fill_inputs();
  fill_modifiers();
  fill_tree();
  make_text();
  forget_hidden();
}

GuardedTensor CaseTensors::make(DType dtype, const std::vector<std::int64_t>& shape) {
  return {dtype, shape, case_.placement, random_};
}

GuardedTensor CaseTensors::make_rows(const SideLengths& side, std::int64_t heads, std::int64_t head_dim) {
  if (!side.cu_seqlens.empty()) return make(case_.dtype, {side.rows, heads, head_dim});
  return make(case_.dtype, {case_.batch, side.rows, heads, head_dim});
}

GuardedTensor CaseTensors::make_lse() {
  if (!case_.q.cu_seqlens.empty()) return make(DType::float32, {case_.heads_q, case_.q.rows});
  return make(DType::float32, {case_.batch, case_.heads_q, case_.q.rows});
}

GuardedTensor CaseTensors::make_lengths(const std::vector<std::int32_t>& lengths) {
  if (lengths.empty()) return {};
  GuardedTensor tensor = make(DType::int32, {static_cast<std::int64_t>(lengths.size())});
  for (std::size_t index = 0; index < lengths.size(); ++index) {
    tensor.set(static_cast<std::int64_t>(index), lengths[index]);
  }
  return tensor;
}

std::vector<std::int64_t> CaseTensors::shared_shape(const Sharing& sharing, std::int64_t rows,
                                                    std::int64_t columns) const {
  return {sharing.per_batch ? case_.batch : 1, sharing.per_head ? case_.heads_q : 1, rows, columns};
}

void CaseTensors::make_modifiers() {
  if (case_.alibi == Alibi::per_head) alibi_slopes = make(DType::float32, {case_.heads_q});
  if (case_.alibi == Alibi::per_batch_and_head) alibi_slopes = make(DType::float32, {case_.batch, case_.heads_q});
  if (case_.bias) {
    const std::vector<std::int64_t> shape = shared_shape(case_.bias->sharing, case_.q.rows, case_.k.rows);
    Placement placement = case_.placement;
    if (!case_.bias->aligned) placement.alignment = 1;
    bias = {case_.bias->dtype, shape, placement, random_};
    if (case_.bias->wants_gradient) d_bias = make(DType::float32, shape);
  }
  if (case_.has_sink) {
    sink = make(DType::float32, {case_.heads_q});
    if (case_.wants_d_sink) d_sink = make(DType::float32, {case_.heads_q});
  }
  if (case_.blocks) {
    const auto blocks = [this](const SideLengths& side) {
      const bool bounded = !side.cu_seqlens.empty() && side.max_seqlen >= 0;
      return ceil_div(bounded ? side.max_seqlen : side.rows, case_.blocks->size);
    };
    block_mask = make(DType::uint8, shared_shape(case_.blocks->sharing, blocks(case_.q), blocks(case_.k)));
  }
}

void CaseTensors::fill_tree() {
  if (!case_.tree) return;
  const bool packed = !case_.q.cu_seqlens.empty();
  tree_mask = packed ? make(DType::int64, {case_.q.rows}) : make(DType::int64, {case_.batch, case_.q.rows});
  const auto random_bits = [&](double set) {
    std::uint64_t bits = 0;
    for (int bit = 0; bit < 64; ++bit) bits |= static_cast<std::uint64_t>(random_.chance(set)) << bit;
    return bits;
  };
  for (std::int64_t index = 0; index < tree_mask.size(); ++index) tree_mask.set_bits(index, random_bits(0.5));
  const ForwardArguments arguments = forward_arguments();
  for (const reference::SequenceRows& rows : reference::sequence_rows(arguments.q, arguments.k, arguments.sequences)) {
    std::vector<std::uint64_t> words;
    for (std::int64_t node = 0; node < rows.seqlen_q; ++node) {
      const std::uint64_t ancestors =
          node == 0 || random_.chance(0.1) ? 0 : words[static_cast<std::size_t>(random_.integer(0, node - 1))];
      words.push_back(ancestors | std::uint64_t{1} << node);
    }
    const std::uint64_t own = rows.seqlen_q < 64 ? (std::uint64_t{1} << rows.seqlen_q) - 1 : ~std::uint64_t{0};
    for (std::int64_t node = 0; node < rows.seqlen_q; ++node) {
      const std::uint64_t word =
          case_.tree->random_bits ? random_bits(case_.tree->visible) : words[static_cast<std::size_t>(node)];
      tree_mask.set_bits(rows.first_q + node, (word & own) | (random_bits(0.5) & ~own));
    }
  }
}

void CaseTensors::make_text() {
  if (!case_.text) return;
  function_ = case_.text->function();
  for (const CapturedTensor& capture : case_.text->captures) {
    GuardedTensor tensor = make(capture.type.dtype, capture.shape);
    for (std::int64_t index = 0; index < tensor.size(); ++index) {
      const bool real = capture.largest == 0;
      if (capture.type.dtype == DType::int64) {
        tensor.set_bits(index, static_cast<std::uint64_t>(random_.integer(-1, capture.largest)));
      } else {
        tensor.set(index, real ? random_.normal() : static_cast<double>(random_.integer(0, capture.largest)));
      }
    }
    captures.push_back(std::move(tensor));
    d_captures.push_back(capture.wants_gradient ? make(DType::float32, capture.shape) : GuardedTensor());
  }
}

void CaseTensors::fill_inputs() {
  for (GuardedTensor* input : {&q, &k, &v, &qv, &d_o, &d_lse}) {
    for (std::int64_t index = 0; index < input->size(); ++index) input->set(index, draw(case_.values, random_));
  }
}

void CaseTensors::fill_modifiers() {
  for (std::int64_t index = 0; index < alibi_slopes.size(); ++index) alibi_slopes.set(index, draw_slope(random_));
  for (std::int64_t index = 0; index < sink.size(); ++index) {
    sink.set(index, random_.chance(0.05) ? -kInfinity : 2.0 * random_.normal());
  }
  bool row_hidden = false;
  for (std::int64_t index = 0; index < bias.size(); ++index) {
    if (index % bias.view().shape[3] == 0) row_hidden = random_.chance(case_.bias->hidden / 10.0);
    const bool hidden = row_hidden || random_.chance(case_.bias->hidden);
    bias.set(index, hidden ? -kInfinity : draw(case_.values, random_));
  }
  for (std::int64_t index = 0; index < block_mask.size(); ++index) {
    block_mask.set(index, random_.chance(case_.blocks->visible) ? random_.one_of({1.0, 1.0, 2.0, 255.0}) : 0.0);
  }
}

void CaseTensors::forget_hidden() {
  const ForwardArguments arguments = forward_arguments();
  Used used;
  used.queries.assign(rows_of(case_, case_.q) * case_.heads_q, 0);
  used.gradients = used.queries;
  used.keys.assign(rows_of(case_, case_.k) * case_.heads_kv, 0);
  used.bias.assign(bias.size(), 0);
  for (const reference::SequenceRows& rows : reference::sequence_rows(arguments.q, arguments.k, arguments.sequences)) {
    for (std::int64_t head = 0; head < case_.heads_q; ++head) mark_head(case_, arguments, rows, head, used);
  }
  forget_rows(q, used.queries);
  forget_rows(qv, used.queries);
  forget_rows(d_o, used.gradients);
  forget_rows(k, used.keys);
  forget_rows(v, used.keys);
  forget_rows(bias, used.bias);
  for (std::int64_t index = 0; index < static_cast<std::int64_t>(used.gradients.size()) && d_lse.size() > 0; ++index) {
    if (used.gradients[index] != 0) continue;
    d_lse.set(reference::lse_index(index / case_.heads_q, index % case_.heads_q, case_.heads_q, case_.q.rows), kNaN);
  }
}

Sequences CaseTensors::sequences(const Place& place) const {
  return {.cu_seqlens_q = place(cu_seqlens_q),
          .cu_seqlens_k = place(cu_seqlens_k),
          .seqused_q = place(seqused_q),
          .seqused_k = place(seqused_k),
          .max_seqlen_q = case_.q.max_seqlen,
          .max_seqlen_k = case_.k.max_seqlen,
          .offset_q = place(offset_q),
          .offset_k = place(offset_k)};
}

ScoreModifiers CaseTensors::modifiers(const Place& place) const {
  ScoreModifiers modifiers{
      .alibi_slopes = place(alibi_slopes), .bias = place(bias), .sink = place(sink), .block_mask = place(block_mask)};
  if (case_.blocks) modifiers.block_size = case_.blocks->size;
  if (function_) {
    std::vector<ConstTensorView>& views = capture_views_.emplace_back();
    for (const GuardedTensor& capture : captures) views.push_back(place(capture));
    modifiers.function = &*function_;
    modifiers.captures = views;
  }
  return modifiers;
}

ForwardArguments CaseTensors::forward_arguments(const Place& place) const {
  return {.q = place(q),
          .k = place(k),
          .v = place(v),
          .o = place(o),
          .lse = place(lse),
          .sequences = sequences(place),
          .modifiers = modifiers(place),
          .random = case_.random,
          .max_logits = place(max_logits),
          .q_descale = {},
          .k_descale = {},
          .v_descale = {},
          .page_table = {},
          .tree_mask = place(tree_mask),
          .qv = place(qv)};
}

BackwardArguments CaseTensors::backward_arguments(const Place& place) const {
  std::span<const TensorView> gradients;
  if (function_) {
    std::vector<TensorView>& views = gradient_views_.emplace_back();
    for (const GuardedTensor& gradient : d_captures) views.push_back(place(gradient));
    gradients = views;
  }
  return {.q = place(q),
          .k = place(k),
          .v = place(v),
          .o = place(o),
          .lse = place(lse),
          .d_o = place(d_o),
          .d_lse = place(d_lse),
          .dq = place(dq),
          .dk = place(dk),
          .dv = place(dv),
          .sequences = sequences(place),
          .modifiers = modifiers(place),
          .random = case_.random,
          .d_bias = place(d_bias),
          .d_sink = place(d_sink),
          .d_captures = gradients,
          .qv = place(qv),
          .dqv = place(dqv)};
}

std::vector<GuardedTensor*> CaseTensors::inputs() {
  std::vector<GuardedTensor*> all =
      given({&q, &k, &v, &qv, &d_o, &d_lse, &alibi_slopes, &bias, &sink, &block_mask, &tree_mask, &cu_seqlens_q,
             &cu_seqlens_k, &seqused_q, &seqused_k, &offset_q, &offset_k});
  for (GuardedTensor& capture : captures) all.push_back(&capture);
  return all;
}

std::vector<GuardedTensor*> CaseTensors::forward_outputs() { return given({&o, &lse, &max_logits}); }

std::vector<GuardedTensor*> CaseTensors::backward_outputs() {
  std::vector<GuardedTensor*> all = given({&dq, &dk, &dv, &dqv, &d_bias, &d_sink});
  for (GuardedTensor& gradient : d_captures) {
    if (gradient.view().given()) all.push_back(&gradient);
  }
  return all;
}

}  // namespace strobe::test
