// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <mutex>

#include "reference/bound/arithmetic.h"
#include "reference/bound/backward_row.h"
#include "reference/bound/parallel.h"
#include "reference/bound/reference.h"
#include "reference/bound/rounding.h"

namespace strobe::reference {
namespace {

/// Of the forward that wrote O and LSE: on the CPU it may round P to bfloat16 where the backward does not.
ArithmeticModel forward_model(const ArithmeticModel& backward, DType dtype) {
  const bool same = dtype != DType::bfloat16 || backward.probabilities == dtype;
  return same ? backward : arithmetic_of({}, dtype);
}

// What heads and sequences share: the sums over them, one thread at a time.
struct SharedSums {
  BackwardResult& result;
  std::mutex& mutex;
  double sink_rows = 0.0;  // of q that a sequence uses: the terms of one sink's gradient
  // Of each element of a capture: how many terms its gradient has, and the sum of their magnitudes.
  std::vector<std::vector<double>> capture_terms{};
  std::vector<std::vector<double>> capture_magnitudes{};
};

// One key head of one sequence, with the query heads that share it.
class HeadGroup {
 public:
  HeadGroup(const BackwardArguments& arguments, const AttentionOptions& options, const ArithmeticModel& model,
            const SequenceRows& rows, std::int64_t head_kv);

  void run(SharedSums& shared);

 private:
  void count_queries();
  void add_query(std::int64_t query, std::int64_t head_q, const double* q, const double* d_o, SharedSums& shared);
  void add_query_gradient(std::int64_t query, std::int64_t head_q, const Scores& scores,
                          const std::vector<Bounded>& d_product, BackwardResult& result) const;
  void add_bias_gradient(std::int64_t query, const Head& head, const Scores& scores,
                         const std::vector<Bounded>& d_score, const SharedSums& shared) const;
  void add_capture_gradients(std::int64_t query, const Head& head, const Scores& scores,
                             const std::vector<Bounded>& d_text, SharedSums& shared) const;
  void add_sink_gradient(std::int64_t head_q, double sink, const ForwardRow& row, const Bounded& correction,
                         const SharedSums& shared) const;
  Bounded plus_products(const Bounded& sum, std::int64_t from) const;
  void store_keys(BackwardResult& result) const;

  const BackwardArguments& arguments_;
  const ArithmeticModel& model_;
  SequenceRows rows_;
  std::int64_t heads_q_ = 0;
  std::int64_t head_kv_ = 0;
  std::int64_t head_dim_ = 0;
  std::int64_t head_dim_v_ = 0;
  std::int64_t columns_ = 0;  // of rows of q and k: with qv those of qv and v are behind them
  double scale_ = 0.0;
  double scale_roundings_ = 0.0;
  std::vector<Head> heads_;  // the group's query heads
  std::vector<double> v_;
  std::vector<double> k_;
  std::vector<double> v_transposed_;
  std::vector<double> k_transposed_;
  std::vector<double> queries_;  // per key: how many query rows of the group see it
  BoundedTensor dk_;
  BoundedTensor dv_;
};

HeadGroup::HeadGroup(const BackwardArguments& arguments, const AttentionOptions& options, const ArithmeticModel& model,
                     const SequenceRows& rows, std::int64_t head_kv)
    : arguments_(arguments),
      model_(model),
      rows_(rows),
      heads_q_(heads_of(arguments.q)),
      head_kv_(head_kv),
      head_dim_(head_dim_of(arguments.q)),
      head_dim_v_(head_dim_of(arguments.v)),
      columns_(head_dim_ + (arguments.qv.given() ? head_dim_v_ : 0)),
      scale_(product_scale(options, columns_, rows.seqlen_k)),
      scale_roundings_(product_scale_roundings(options)),
      v_(read_head(arguments.v, rows.first_k, rows.seqlen_k, head_kv)),
      k_(read_head(arguments.k, rows.first_k, rows.seqlen_k, head_kv)),
      v_transposed_(transpose(v_, rows.seqlen_k, head_dim_v_)),
      queries_(rows.seqlen_k, 0.0),
      dk_(zeros(rows.seqlen_k * columns_)),
      dv_(zeros(rows.seqlen_k * head_dim_v_)) {
  if (arguments.qv.given()) k_ = join_columns(k_, v_, rows.seqlen_k);
  k_transposed_ = transpose(k_, rows.seqlen_k, columns_);
  const std::int64_t group = heads_q_ / heads_of(arguments.k);
  for (std::int64_t head_q = head_kv * group; head_q < (head_kv + 1) * group; ++head_q) {
    heads_.push_back({options,
                      model,
                      rows,
                      {arguments.modifiers, options, arguments.random, rows, head_q, heads_q_, heads_of(arguments.k)}});
  }
}

void HeadGroup::count_queries() {
  for (const Head& head : heads_) {
    for (std::int64_t query = 0; query < rows_.seqlen_q; ++query) {
      for (const KeyRange& keys : visible_keys(query, rows_, head.options, head.modifiers)) {
        for (std::int64_t key = keys.begin; key < keys.end; ++key) queries_[key] += 1.0;
      }
    }
  }
}

// sums += weight * row; a sum's own roundings are `summation` of every term's magnitude.
void accumulate(double* values, double* bounds, const double* row, std::int64_t columns, const Bounded& weight,
                double summation, const ArithmeticModel& model) {
  const double reach = std::fabs(weight.value) + weight.error;
  const double error = weight.error + summation * reach;
  for (std::int64_t column = 0; column < columns; ++column) {
    const double magnitude = std::fabs(row[column]);
    values[column] += weight.value * row[column];
    bounds[column] += error * magnitude + model.underflow;
    if (magnitude < model.smallest_input) bounds[column] += reach * magnitude;
  }
}

void HeadGroup::add_query_gradient(std::int64_t query, std::int64_t head_q, const Scores& scores,
                                   const std::vector<Bounded>& d_product, BackwardResult& result) const {
  std::vector<double> values(columns_, 0.0);
  std::vector<double> bounds(columns_, 0.0);
  // Roundings besides the sum's: the scale's and the product with it.
  const double roundings = static_cast<double>(scores.keys.size()) + scale_roundings_ + 1.0;
  const double summation = gamma(roundings, model_.unit_roundoff) + model_.product_error;
  for (std::size_t index = 0; index < scores.keys.size(); ++index) {
    accumulate(values.data(), bounds.data(), &k_[scores.keys[index] * columns_], columns_, d_product[index], summation,
               model_);
  }
  const Rounding storage = rounding_to(arguments_.dq.dtype);
  const std::int64_t row = (rows_.first_q + query) * heads_q_ + head_q;
  for (std::int64_t column = 0; column < columns_; ++column) {
    const bool of_q = column < head_dim_;
    BoundedTensor& gradient = of_q ? result.dq : result.dqv;
    const std::int64_t to = of_q ? row * head_dim_ + column : row * head_dim_v_ + column - head_dim_;
    gradient.value[to] = values[column] * scale_;
    gradient.bound[to] =
        storage.stored_error(gradient.value[to], std::fabs(scale_) * bounds[column] + model_.underflow);
  }
}

void HeadGroup::add_bias_gradient(std::int64_t query, const Head& head, const Scores& scores,
                                  const std::vector<Bounded>& d_score, const SharedSums& shared) const {
  const TensorView& d_bias = arguments_.d_bias;
  const std::int64_t batch = d_bias.shape[0] == 1 ? 0 : rows_.sequence;
  const std::int64_t head_q = d_bias.shape[1] == 1 ? 0 : head.modifiers.head();
  const std::int64_t row = ((batch * d_bias.shape[1] + head_q) * d_bias.shape[2] + query) * d_bias.shape[3];
  const std::int64_t terms = (d_bias.shape[0] == 1 ? arguments_.q.shape[0] : 1) * (d_bias.shape[1] == 1 ? heads_q_ : 1);
  const double summation = gamma(static_cast<double>(terms - 1), model_.unit_roundoff);
  const std::scoped_lock lock(shared.mutex);
  for (std::size_t index = 0; index < scores.keys.size(); ++index) {
    const auto& [value, error] = d_score[index];
    shared.result.d_bias.value[row + scores.keys[index]] += value;
    shared.result.d_bias.bound[row + scores.keys[index]] += error + summation * (std::fabs(value) + error);
  }
}

void HeadGroup::add_sink_gradient(std::int64_t head_q, double sink, const ForwardRow& row, const Bounded& correction,
                                  const SharedSums& shared) const {
  const auto [value, error] = sink_gradient(sink, row, correction, model_);
  const double summation = gamma(shared.sink_rows - 1.0, model_.unit_roundoff);
  const std::scoped_lock lock(shared.mutex);
  shared.result.d_sink.value[head_q] += value;
  shared.result.d_sink.bound[head_q] += error + summation * (std::fabs(value) + error);
}

void HeadGroup::add_query(std::int64_t query, std::int64_t head_q, const double* q, const double* d_o,
                          SharedSums& shared) {
  const Head& head = heads_[head_q % static_cast<std::int64_t>(heads_.size())];
  const Scores scores = scores_of(query, q, k_transposed_, columns_, head);
  const ForwardRow row =
      forward_row(scores, v_, head_dim_v_, arguments_.q.dtype, forward_model(model_, arguments_.q.dtype));
  const double d_lse = d_lse_at(arguments_.d_lse, rows_.first_q + query, head_q, rows_per_entry(arguments_.q));
  const Bounded correction = scores.normalized ? row_correction(row, d_o, d_lse, model_) : Bounded();
  if (scores.sink && arguments_.d_sink.given()) add_sink_gradient(head_q, *scores.sink, row, correction, shared);
  if (row.empty) return;
  const RowGradients gradients = row_gradients(scores, row, correction, d_o, v_transposed_, head);
  add_query_gradient(query, head_q, scores, gradients.d_product, shared.result);
  if (arguments_.d_bias.given()) add_bias_gradient(query, head, scores, gradients.d_score, shared);
  if (!arguments_.d_captures.empty()) add_capture_gradients(query, head, scores, gradients.d_text, shared);
  for (std::size_t index = 0; index < scores.keys.size(); ++index) {
    const std::int64_t key = scores.keys[index];
    accumulate(&dk_.value[key * columns_], &dk_.bound[key * columns_], q, columns_, gradients.d_product[index],
               gamma(queries_[key] + 3.0, model_.unit_roundoff) + model_.product_error, model_);
    accumulate(&dv_.value[key * head_dim_v_], &dv_.bound[key * head_dim_v_], d_o, head_dim_v_,
               gradients.probability[index], gamma(queries_[key], model_.unit_roundoff) + model_.product_error, model_);
  }
}

void HeadGroup::add_capture_gradients(std::int64_t query, const Head& head, const Scores& scores,
                                      const std::vector<Bounded>& d_text, SharedSums& shared) const {
  for (std::size_t index = 0; index < d_text.size(); ++index) {
    const Bounded& d_score = d_text[index];
    if (d_score.value == 0.0 && d_score.error == 0.0) continue;
    const std::vector<TextRead> reads = head.modifiers.text().reads(query, scores.keys[index], scores.given[index]);
    const std::scoped_lock lock(shared.mutex);
    for (const TextRead& read : reads) {
      BoundedTensor& gradient = shared.result.d_captures[read.capture];
      if (gradient.value.empty()) continue;
      const double reach =
          (std::fabs(d_score.value) + d_score.error) * (std::fabs(read.derivative.value) + read.derivative.error);
      const double value = d_score.value * read.derivative.value;
      gradient.value[read.element] += value;
      gradient.bound[read.element] += reach - std::fabs(value) + model_.underflow;
      shared.capture_terms[read.capture][read.element] += 1.0;
      shared.capture_magnitudes[read.capture][read.element] += reach;
    }
  }
}

// A product, and a sum in any order, of every term.
void add_capture_roundings(const SharedSums& shared, const ArithmeticModel& model) {
  for (std::size_t capture = 0; capture < shared.result.d_captures.size(); ++capture) {
    std::vector<double>& bound = shared.result.d_captures[capture].bound;
    for (std::size_t i = 0; i < bound.size(); ++i) {
      bound[i] +=
          gamma(shared.capture_terms[capture][i] + 1.0, model.unit_roundoff) * shared.capture_magnitudes[capture][i];
    }
  }
}

// dV of the probabilities with what the scores' products of qv and v add: one more sum, of that and of scale * dS^T qv.
Bounded HeadGroup::plus_products(const Bounded& sum, std::int64_t from) const {
  const Bounded more{dk_.value[from] * scale_, std::fabs(scale_) * dk_.bound[from] + model_.underflow};
  const double error = sum.error + more.error;
  const double magnitude = std::fabs(sum.value) + std::fabs(more.value) + error;
  return {sum.value + more.value, error + gamma(1.0, model_.unit_roundoff) * magnitude + model_.underflow};
}

void HeadGroup::store_keys(BackwardResult& result) const {
  const Rounding storage_k = rounding_to(arguments_.dk.dtype);
  const Rounding storage_v = rounding_to(arguments_.dv.dtype);
  const std::int64_t heads_kv = heads_of(arguments_.k);
  for (std::int64_t key = 0; key < rows_.seqlen_k; ++key) {
    if (queries_[key] == 0.0) continue;  // nothing contributes: zeros, exactly
    const std::int64_t row = (rows_.first_k + key) * heads_kv + head_kv_;
    for (std::int64_t column = 0; column < head_dim_; ++column) {
      const std::int64_t from = key * columns_ + column;
      const std::int64_t to = row * head_dim_ + column;
      result.dk.value[to] = dk_.value[from] * scale_;
      result.dk.bound[to] =
          storage_k.stored_error(result.dk.value[to], std::fabs(scale_) * dk_.bound[from] + model_.underflow);
    }
    for (std::int64_t column = 0; column < head_dim_v_; ++column) {
      const std::int64_t from = key * head_dim_v_ + column;
      const std::int64_t to = row * head_dim_v_ + column;
      Bounded sum{dv_.value[from], dv_.bound[from]};
      if (columns_ > head_dim_) sum = plus_products(sum, key * columns_ + head_dim_ + column);
      result.dv.value[to] = sum.value;
      result.dv.bound[to] = storage_v.stored_error(sum.value, sum.error);
    }
  }
}

void HeadGroup::run(SharedSums& shared) {
  count_queries();
  const auto group = static_cast<std::int64_t>(heads_.size());
  for (std::int64_t head_q = head_kv_ * group; head_q < (head_kv_ + 1) * group; ++head_q) {
    std::vector<double> q = read_head(arguments_.q, rows_.first_q, rows_.seqlen_q, head_q);
    if (arguments_.qv.given()) {
      q = join_columns(q, read_head(arguments_.qv, rows_.first_q, rows_.seqlen_q, head_q), rows_.seqlen_q);
    }
    const std::vector<double> d_o = read_head(arguments_.d_o, rows_.first_q, rows_.seqlen_q, head_q);
    for (std::int64_t query = 0; query < rows_.seqlen_q; ++query) {
      add_query(query, head_q, q.data() + query * columns_, d_o.data() + query * head_dim_v_, shared);
    }
  }
  store_keys(shared.result);
}

/// Where errors without a limit met zeros, nothing is promised: gradients of float32 are not stored through a rounding,
/// which would say so.
void promise_nothing_of_nan(BoundedTensor& tensor) {
  std::ranges::replace_if(tensor.bound, [](double bound) { return std::isnan(bound); }, kInfinity);
}

}  // namespace

BackwardResult backward(const BackwardArguments& arguments, const AttentionOptions& options,
                        const ArithmeticModel& model, int threads) {
  BackwardResult result{.dq = zeros(element_count(arguments.q)),
                        .dk = zeros(element_count(arguments.k)),
                        .dv = zeros(element_count(arguments.v)),
                        .d_bias = zeros(element_count(arguments.d_bias)),
                        .d_sink = zeros(element_count(arguments.d_sink)),
                        .d_captures = {},
                        .dqv = zeros(element_count(arguments.dqv))};
  const std::vector<SequenceRows> sequences = sequence_rows(arguments.q, arguments.k, arguments.sequences);
  const std::int64_t heads_kv = heads_of(arguments.k);
  std::mutex mutex;
  SharedSums shared{result, mutex};
  for (const TensorView& gradient : arguments.d_captures) {
    const std::int64_t count = gradient.given() ? element_count(gradient) : 0;
    result.d_captures.push_back(zeros(count));
    shared.capture_terms.emplace_back(count, 0.0);
    shared.capture_magnitudes.emplace_back(count, 0.0);
  }
  for (const SequenceRows& rows : sequences) shared.sink_rows += static_cast<double>(rows.seqlen_q);
  run_tasks(static_cast<std::int64_t>(sequences.size()) * heads_kv, threads, [&](std::int64_t task) {
    HeadGroup(arguments, options, model, sequences[task / heads_kv], task % heads_kv).run(shared);
  });
  add_capture_roundings(shared, model);
  promise_nothing_of_nan(result.d_bias);
  promise_nothing_of_nan(result.d_sink);
  for (BoundedTensor& gradient : result.d_captures) promise_nothing_of_nan(gradient);
  return result;
}

}  // namespace strobe::reference
