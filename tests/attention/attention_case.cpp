#include "attention_case.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "cpu/reference/scores.h"
#include "cpu/reference/sequences.h"

namespace strobe::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

const char* name_of_values(Values values) {
  switch (values) {
    case Values::normal: return "normal";
    case Values::outliers: return "outliers";
    case Values::small: return "small";
    case Values::sharp: return "sharp";
  }
  return "";
}

const char* name_of_layout(Layout layout) {
  switch (layout) {
    case Layout::contiguous: return "contiguous";
    case Layout::padded: return "padded";
    case Layout::transposed: return "transposed";
    case Layout::scrambled: return "scrambled";
  }
  return "";
}

void append_lengths(std::ostream& out, const char* name, const std::vector<std::int32_t>& lengths) {
  if (lengths.empty()) return;
  out << ' ' << name << " [";
  for (std::size_t index = 0; index < lengths.size(); ++index) out << (index > 0 ? ", " : "") << lengths[index];
  out << ']';
}

void append_side(std::ostream& out, const char* name, const SideLengths& side) {
  out << ' ' << name << ": rows " << side.rows;
  append_lengths(out, "cu_seqlens", side.cu_seqlens);
  append_lengths(out, "seqused", side.seqused);
  if (side.max_seqlen >= 0) out << " max " << side.max_seqlen;
  out << ';';
}

ConstTensorView lengths_view(const std::vector<std::int32_t>& lengths) {
  if (lengths.empty()) return {};
  return tensor(lengths.data(), {static_cast<std::int64_t>(lengths.size())});
}

double draw(Values values, Random& random) {
  switch (values) {
    case Values::normal: return random.normal();
    case Values::outliers: return random.normal() + (random.chance(0.001) ? 10.0 * random.normal() : 0.0);
    case Values::small: return 0x1p-10 * random.normal();
    case Values::sharp: return 4.0 * random.normal();
  }
  return 0.0;
}

// Sets all heads of one row to NaN.
void forget_row(GuardedTensor& tensor, std::int64_t row) {
  const std::int64_t width = reference::heads_of(tensor.view()) * reference::head_dim_of(tensor.view());
  for (std::int64_t index = row * width; index < (row + 1) * width; ++index) tensor.set(index, kNaN);
}

}  // namespace

std::string describe(const AttentionCase& attention) {
  std::ostringstream out;
  out << name_of(attention.dtype) << " batch " << attention.batch << " heads " << attention.heads_q << '/'
      << attention.heads_k << " head_dim " << attention.head_dim << '/' << attention.head_dim_v << ';';
  append_side(out, "q", attention.q);
  append_side(out, "k", attention.k);
  const AttentionOptions& options = attention.options;
  out << " causal "
      << (options.causal == CausalMask::none       ? "none"
          : options.causal == CausalMask::top_left ? "top_left"
                                                   : "bottom_right");
  out << " window " << options.window.left << ' ' << options.window.right << " softcap " << options.softcap;
  if (options.scale) out << " scale " << *options.scale;
  out << "; lse " << attention.wants_lse << " d_lse " << attention.has_d_lse << ' ' << name_of_values(attention.values)
      << ' ' << name_of_layout(attention.layout) << " seed " << attention.seed;
  return out.str();
}

CaseTensors::CaseTensors(const AttentionCase& attention) : case_(attention), random_(attention.seed) {
  q = make(case_.q, case_.heads_q, case_.head_dim);
  k = make(case_.k, case_.heads_k, case_.head_dim);
  v = make(case_.k, case_.heads_k, case_.head_dim_v);
  o = make(case_.q, case_.heads_q, case_.head_dim_v);
  d_o = make(case_.q, case_.heads_q, case_.head_dim_v);
  dq = make(case_.q, case_.heads_q, case_.head_dim);
  dk = make(case_.k, case_.heads_k, case_.head_dim);
  dv = make(case_.k, case_.heads_k, case_.head_dim_v);
  if (case_.wants_lse) lse = make_lse();
  if (case_.has_d_lse) d_lse = make_lse();
  for (GuardedTensor* input : {&q, &k, &v, &d_o, &d_lse}) fill(*input);
  forget_unused_rows();
}

GuardedTensor CaseTensors::make(const SideLengths& side, std::int64_t heads, std::int64_t head_dim) {
  if (!side.cu_seqlens.empty()) return {case_.dtype, {side.rows, heads, head_dim}, case_.layout, random_};
  return {case_.dtype, {case_.batch, side.rows, heads, head_dim}, case_.layout, random_};
}

GuardedTensor CaseTensors::make_lse() {
  if (!case_.q.cu_seqlens.empty()) return {DType::float32, {case_.heads_q, case_.q.rows}, case_.layout, random_};
  return {DType::float32, {case_.batch, case_.heads_q, case_.q.rows}, case_.layout, random_};
}

void CaseTensors::fill(GuardedTensor& tensor) {
  for (std::int64_t index = 0; index < tensor.size(); ++index) tensor.set(index, draw(case_.values, random_));
}

void CaseTensors::forget_unused_rows() {
  const auto row_count = [this](const SideLengths& side) {
    return side.cu_seqlens.empty() ? case_.batch * side.rows : side.rows;
  };
  std::vector<bool> query_used(row_count(case_.q), false);
  std::vector<bool> key_used(row_count(case_.k), false);
  for (const reference::SequenceRows& rows : reference::sequence_rows(q.view(), k.view(), sequences())) {
    for (std::int64_t query = 0; query < rows.seqlen_q; ++query) {
      const reference::KeyRange keys = reference::visible_keys(query, rows, case_.options);
      if (keys.size() > 0) query_used[rows.first_q + query] = true;
      for (std::int64_t key = keys.begin; key < keys.end; ++key) key_used[rows.first_k + key] = true;
    }
  }
  for (std::size_t row = 0; row < query_used.size(); ++row) {
    if (query_used[row]) continue;
    forget_row(q, static_cast<std::int64_t>(row));
    forget_row(d_o, static_cast<std::int64_t>(row));
    for (std::int64_t head = 0; head < case_.heads_q && case_.has_d_lse; ++head) {
      d_lse.set(reference::lse_index(static_cast<std::int64_t>(row), head, case_.heads_q, case_.q.rows), kNaN);
    }
  }
  for (std::size_t row = 0; row < key_used.size(); ++row) {
    if (key_used[row]) continue;
    forget_row(k, static_cast<std::int64_t>(row));
    forget_row(v, static_cast<std::int64_t>(row));
  }
}

Sequences CaseTensors::sequences() const {
  return {.cu_seqlens_q = lengths_view(case_.q.cu_seqlens),
          .cu_seqlens_k = lengths_view(case_.k.cu_seqlens),
          .seqused_q = lengths_view(case_.q.seqused),
          .seqused_k = lengths_view(case_.k.seqused),
          .max_seqlen_q = case_.q.max_seqlen,
          .max_seqlen_k = case_.k.max_seqlen};
}

ForwardArguments CaseTensors::forward_arguments() const {
  ForwardArguments arguments;
  arguments.q = q.view();
  arguments.k = k.view();
  arguments.v = v.view();
  arguments.o = o.view();
  arguments.lse = lse.view();
  arguments.sequences = sequences();
  return arguments;
}

BackwardArguments CaseTensors::backward_arguments() const {
  return {.q = q.view(),
          .k = k.view(),
          .v = v.view(),
          .o = o.view(),
          .lse = lse.view(),
          .d_o = d_o.view(),
          .d_lse = d_lse.view(),
          .dq = dq.view(),
          .dk = dk.view(),
          .dv = dv.view(),
          .sequences = sequences()};
}

void expect_within_bound(const GuardedTensor& actual, const reference::BoundedTensor& expected, const char* name) {
  const reference::WorstElement worst = reference::worst_element(actual.view(), expected);
  EXPECT_LE(worst.ratio, 1.0) << name << ' ' << reference::describe(worst, actual.view());
  EXPECT_TRUE(actual.guards_intact()) << name << " was written outside its view";
}

void expect_case_matches_reference(const AttentionCase& attention, const Execution& execution) {
  SCOPED_TRACE(describe(attention));
  CaseTensors tensors(attention);
  expect_tensors_match_reference(tensors, attention, execution);
}

void expect_tensors_match_reference(CaseTensors& tensors, const AttentionCase& attention, const Execution& execution) {
  const Status forward_status = forward(tensors.forward_arguments(), attention.options, execution);
  ASSERT_TRUE(forward_status.ok()) << forward_status.message();
  const reference::ForwardResult expected = reference::forward(tensors.forward_arguments(), attention.options, {}, 1);
  expect_within_bound(tensors.o, expected.o, "o");
  if (!attention.wants_lse) return;
  expect_within_bound(tensors.lse, expected.lse, "lse");

  const Status backward_status = backward(tensors.backward_arguments(), attention.options, execution);
  ASSERT_TRUE(backward_status.ok()) << backward_status.message();
  const reference::BackwardResult gradients =
      reference::backward(tensors.backward_arguments(), attention.options, {}, 1);
  expect_within_bound(tensors.dq, gradients.dq, "dq");
  expect_within_bound(tensors.dk, gradients.dk, "dk");
  expect_within_bound(tensors.dv, gradients.dv, "dv");
}

}  // namespace strobe::test
