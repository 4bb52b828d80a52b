// SPDX-License-Identifier: Apache-2.0
#include "comparison.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "bench/standard_attention.h"
#include "io/memory.h"
#include "reference/bound/reference.h"
#include "strobe/attention.h"

namespace sentence_search {
namespace {

using strobe::ForwardArguments;
using strobe::Result;
using strobe::Status;

constexpr std::int64_t kSampledQueries = 256;  // of 16,384: float64 on all of them takes minutes

/// One layer's projections of a whole text: [seqlen, heads, head_dim] each.
struct Projections {
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;

  std::size_t width() const { return static_cast<std::size_t>(heads * head_dim); }
  std::int64_t seqlen() const { return static_cast<std::int64_t>(q.size() / width()); }
};

/// Copies a batch's rows, which lie apart, behind those that `to` has.
void append_rows(const strobe::ConstTensorView& rows, std::size_t width, std::vector<float>& to) {
  for (std::int64_t row = 0; row < rows.shape[0]; ++row) {
    const float* const begin = static_cast<const float*>(rows.data) + row * rows.strides[0];
    to.insert(to.end(), begin, begin + width);
  }
}

Result<Projections> project(const Encoder& encoder, const Tokenizer& tokenizer, const std::vector<Passage>& passages,
                            std::size_t layer, std::size_t seqlen) {
  Projections projections;
  const auto keep = [&](std::size_t index, const ForwardArguments& arguments) {
    if (index != layer) return;
    projections.heads = arguments.q.shape[1];
    projections.head_dim = arguments.q.shape[2];
    append_rows(arguments.q, projections.width(), projections.q);
    append_rows(arguments.k, projections.width(), projections.k);
    append_rows(arguments.v, projections.width(), projections.v);
  };
  TokenBatch batch;
  for (std::size_t i = 0; i < passages.size() && batch.tokens() < seqlen; ++i) {
    batch.append(tokenizer.encode(passages[i].text, encoder.config().max_seqlen));
  }
  const Result<std::vector<float>> embeddings = encoder.encode(batch, keep);
  if (!embeddings.ok()) return embeddings.status();
  const std::size_t kept = std::min(seqlen, batch.tokens()) * projections.width();
  projections.q.resize(kept);
  projections.k.resize(kept);
  projections.v.resize(kept);
  return projections;
}

ForwardArguments arguments_of(const Projections& from, std::vector<float>& o) {
  const auto view = [&](const std::vector<float>& values) {
    return strobe::tensor(values.data(), {1, from.seqlen(), from.heads, from.head_dim});
  };
  ForwardArguments arguments;
  arguments.q = view(from.q);
  arguments.k = view(from.k);
  arguments.v = view(from.v);
  arguments.o = strobe::tensor(o.data(), {1, from.seqlen(), from.heads, from.head_dim});
  return arguments;
}

/// Every step-th query of the sequence.
template <class View>
View sampled(View view, std::int64_t step) {
  view.shape[1] = (view.shape[1] + step - 1) / step;
  view.strides[1] *= step;
  return view;
}

/// Runs `attention` and measures what it takes beyond inputs and output, which are resident before.
template <class Attention>
Result<Measurement> measure(const Attention& attention) {
  ::malloc_trim(0);  // what earlier work has freed must not hide what this one needs
  const bool peak_known = strobe::io::reset_peak();
  const std::int64_t before = strobe::io::resident_bytes();
  const auto start = std::chrono::steady_clock::now();
  if (Status status = attention(); !status.ok()) return status;
  Measurement measurement;
  measurement.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (peak_known && before >= 0) measurement.memory_bytes = strobe::io::peak_resident_bytes() - before;
  return measurement;
}

void add_errors(const strobe::ConstTensorView& o, const std::vector<double>& expected, Measurement& measurement) {
  const std::vector<double> actual = strobe::reference::elements(o);
  double squares = 0.0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    squares += error * error;
    measurement.largest_error = std::max(measurement.largest_error, error);
  }
  measurement.root_mean_square_error = std::sqrt(squares / static_cast<double>(actual.size()));
}

}  // namespace

std::size_t longest_comparison() {
  const std::int64_t available = strobe::io::available_bytes();
  if (available < 0) return std::numeric_limits<std::size_t>::max();
  constexpr double kShare = 0.8;                       // the rest is for everything else
  constexpr double kBytesPerPair = 2 * sizeof(float);  // one element of S and one of P
  return static_cast<std::size_t>(std::sqrt(kShare * static_cast<double>(available) / kBytesPerPair));
}

Result<Comparison> compare(const Encoder& encoder, const Tokenizer& tokenizer, const std::vector<Passage>& passages,
                           std::size_t seqlen, int threads) {
  const std::size_t layer = encoder.config().layers / 2;
  const Result<Projections> projections = project(encoder, tokenizer, passages, layer, seqlen);
  if (!projections.ok()) return projections.status();

  std::vector<float> strobe_o(projections->q.size());
  std::vector<float> standard_o(projections->q.size());
  const ForwardArguments for_strobe = arguments_of(*projections, strobe_o);
  const ForwardArguments for_standard = arguments_of(*projections, standard_o);
  const auto with_strobe = measure([&] { return strobe::forward(for_strobe, {}, {.threads = threads}); });
  if (!with_strobe.ok()) return with_strobe.status();
  const auto with_standard = measure([&] { return strobe::bench::standard_forward(for_standard, {}, threads); });
  if (!with_standard.ok()) return with_standard.status();

  const std::int64_t step = std::max<std::int64_t>(1, projections->seqlen() / kSampledQueries);
  ForwardArguments sample = for_strobe;
  sample.q = sampled(sample.q, step);
  sample.o = sampled(sample.o, step);
  const std::vector<double> expected = strobe::reference::forward(sample, {}, {}, threads).o.value;

  Comparison comparison{.layer = layer,
                        .seqlen = projections->seqlen(),
                        .heads = projections->heads,
                        .head_dim = projections->head_dim,
                        .sampled_queries = sample.q.shape[1],
                        .strobe = *with_strobe,
                        .standard = *with_standard};
  add_errors(sampled(for_strobe.o, step), expected, comparison.strobe);
  add_errors(sampled(for_standard.o, step), expected, comparison.standard);
  return comparison;
}

}  // namespace sentence_search
