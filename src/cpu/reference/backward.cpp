#include <cmath>
#include <limits>

#include "cpu/reference/forward_row.h"
#include "cpu/reference/parallel.h"
#include "cpu/reference/reference.h"
#include "cpu/reference/rounding.h"

namespace strobe::reference {
namespace {

// A value and the bound on its error.
struct Bounded {
  double value = 0.0;
  double error = 0.0;
};

// One key head of one sequence, with the query heads that share it.
class HeadGroup {
 public:
  HeadGroup(const BackwardArguments& arguments, const AttentionOptions& options, const ArithmeticModel& model,
            const SequenceRows& rows, std::int64_t head_k);

  void run(BackwardResult& result);

 private:
  void count_queries();
  void add_query(std::int64_t query, std::int64_t head, const double* q, const double* d_o, BackwardResult& result);
  Bounded probability(const Scores& scores, const ForwardRow& row, std::size_t index) const;
  Bounded row_correction(const ForwardRow& row, const double* d_o, double d_lse) const;
  Bounded score_gradient(const Scores& scores, std::size_t index, Bounded p, Bounded d_p_minus_d) const;
  Bounded rounded(Bounded product) const;
  double d_lse_at(std::int64_t row, std::int64_t head) const;
  void store_keys(BackwardResult& result) const;

  const BackwardArguments& arguments_;
  const AttentionOptions& options_;
  const ArithmeticModel& model_;
  SequenceRows rows_;
  std::int64_t heads_ = 0;
  std::int64_t group_ = 0;
  std::int64_t head_k_ = 0;
  std::int64_t head_dim_ = 0;
  std::int64_t head_dim_v_ = 0;
  double scale_ = 0.0;
  std::vector<double> k_;
  std::vector<double> k_transposed_;
  std::vector<double> v_;
  std::vector<double> v_transposed_;
  std::vector<double> queries_;  // per key: how many query rows of the group see it
  BoundedTensor dk_;
  BoundedTensor dv_;
};

HeadGroup::HeadGroup(const BackwardArguments& arguments, const AttentionOptions& options, const ArithmeticModel& model,
                     const SequenceRows& rows, std::int64_t head_k)
    : arguments_(arguments),
      options_(options),
      model_(model),
      rows_(rows),
      heads_(heads_of(arguments.q)),
      group_(heads_ / heads_of(arguments.k)),
      head_k_(head_k),
      head_dim_(head_dim_of(arguments.q)),
      head_dim_v_(head_dim_of(arguments.v)),
      scale_(scale_of(options, head_dim_)),
      k_(read_head(arguments.k, rows.first_k, rows.seqlen_k, head_k)),
      k_transposed_(transpose(k_, rows.seqlen_k, head_dim_)),
      v_(read_head(arguments.v, rows.first_k, rows.seqlen_k, head_k)),
      v_transposed_(transpose(v_, rows.seqlen_k, head_dim_v_)),
      queries_(rows.seqlen_k, 0.0),
      dk_{std::vector<double>(k_.size(), 0.0), std::vector<double>(k_.size(), 0.0)},
      dv_{std::vector<double>(v_.size(), 0.0), std::vector<double>(v_.size(), 0.0)} {}

void HeadGroup::count_queries() {
  for (std::int64_t query = 0; query < rows_.seqlen_q; ++query) {
    const KeyRange keys = visible_keys(query, rows_, options_);
    for (std::int64_t key = keys.begin; key < keys.end; ++key) queries_[key] += static_cast<double>(group_);
  }
}

double HeadGroup::d_lse_at(std::int64_t row, std::int64_t head) const {
  const ConstTensorView& view = arguments_.d_lse;
  if (!view.given()) return 0.0;
  const std::int64_t length = rows_per_entry(arguments_.q);
  const std::int64_t offset = head * view.strides[view.rank - 2] + row % length * view.strides[view.rank - 1];
  return load(view, view.rank == 3 ? row / length * view.strides[0] + offset : offset);
}

// P = exp(S - LSE), from the engine's own scores and the LSE that it was given.
Bounded HeadGroup::probability(const Scores& scores, const ForwardRow& row, std::size_t index) const {
  const double score = scores.value[index];
  const double p = std::exp(score - row.lse);
  if (std::isinf(score)) return {p, 0.0};  // no weight, exactly; NaN where LSE is
  const double u = model_.unit_roundoff;
  // Roundings of LSE: log2(e) and the product with it.
  const double lse_error = row.lse_bound + gamma(2.0, u) * (std::fabs(row.lse) + row.lse_bound);
  const double moved = scores.error[index] + lse_error;
  const double delta = std::expm1(moved + u * (row.lse - score + moved) + std::log1p(model_.exp2_error));
  return {p, p * delta + model_.underflow};
}

// D = rowsum(dO * O) - dLSE, from the O that the engine was given.
Bounded HeadGroup::row_correction(const ForwardRow& row, const double* d_o, double d_lse) const {
  double value = -d_lse;
  double moved = 0.0;
  double magnitude = std::fabs(d_lse);
  for (std::int64_t column = 0; column < head_dim_v_; ++column) {
    value += d_o[column] * row.o[column];
    moved += std::fabs(d_o[column]) * row.o_bound[column];
    magnitude += std::fabs(d_o[column]) * (std::fabs(row.o[column]) + row.o_bound[column]);
  }
  const double terms = static_cast<double>(head_dim_v_) + 1.0;
  return {value, moved + gamma(terms, model_.unit_roundoff) * magnitude + terms * model_.underflow};
}

// dS = P (dP - D), times the slope of the softcap.
Bounded HeadGroup::score_gradient(const Scores& scores, std::size_t index, Bounded p, Bounded d_p_minus_d) const {
  const double u = model_.unit_roundoff;
  const double p_reach = p.value + p.error;
  const double difference = std::fabs(d_p_minus_d.value);
  const double value = p.value * d_p_minus_d.value;
  const double error = p_reach * (difference + d_p_minus_d.error) * (1.0 + u) - p.value * difference + model_.underflow;
  if (!(options_.softcap > 0.0F)) return {value, error};
  const double slope = scores.slope[index];
  const double slope_reach = slope + scores.slope_error[index];
  return {value * slope,
          (std::fabs(value) + error) * slope_reach * (1.0 + u) - std::fabs(value) * slope + model_.underflow};
}

// P or dS as the engine hands it to the second product.
Bounded HeadGroup::rounded(Bounded product) const {
  return {product.value, rounding_to(model_.probabilities).stored_error(product.value, product.error)};
}

// sums += weight * row; a sum's own roundings are `summation` of every term's magnitude.
void accumulate(double* values, double* bounds, const double* row, std::int64_t columns, Bounded weight,
                double summation, double underflow) {
  const double error = weight.error + summation * (std::fabs(weight.value) + weight.error);
  for (std::int64_t column = 0; column < columns; ++column) {
    values[column] += weight.value * row[column];
    bounds[column] += error * std::fabs(row[column]) + underflow;
  }
}

void HeadGroup::add_query(std::int64_t query, std::int64_t head, const double* q, const double* d_o,
                          BackwardResult& result) {
  const KeyRange keys = visible_keys(query, rows_, options_);
  const Scores scores = scores_of(q, k_transposed_, head_dim_, keys, rows_.seqlen_k, options_, model_);
  const ForwardRow row = forward_row(scores, v_, head_dim_v_, arguments_.q.dtype, model_);
  if (row.empty) return;
  const Bounded correction = row_correction(row, d_o, d_lse_at(rows_.first_q + query, head));
  std::vector<double> d_p;
  std::vector<double> d_p_magnitude;
  multiply_row(d_o, v_transposed_, head_dim_v_, keys, rows_.seqlen_k, d_p, d_p_magnitude);

  const double u = model_.unit_roundoff;
  const double d_p_terms = static_cast<double>(head_dim_v_) + 1.0;
  const double row_summation = gamma(static_cast<double>(keys.size()) + 3.0, u);
  const std::int64_t dq_index = ((rows_.first_q + query) * heads_ + head) * head_dim_;
  for (std::size_t index = 0; index < d_p.size(); ++index) {
    const std::int64_t key = keys.begin + static_cast<std::int64_t>(index);
    const Bounded p = probability(scores, row, index);
    // D enters as one more term of the sum, wherever the engine subtracts it.
    const double magnitude = d_p_magnitude[index] + std::fabs(correction.value) + correction.error;
    const Bounded difference{d_p[index] - correction.value,
                             correction.error + gamma(d_p_terms, u) * magnitude + d_p_terms * model_.underflow};
    const Bounded d_s = rounded(score_gradient(scores, index, p, difference));
    // 3: the default scale's two roundings and the product with it.
    accumulate(&result.dq.value[dq_index], &result.dq.bound[dq_index], &k_[key * head_dim_], head_dim_, d_s,
               row_summation, model_.underflow);
    accumulate(&dk_.value[key * head_dim_], &dk_.bound[key * head_dim_], q, head_dim_, d_s,
               gamma(queries_[key] + 3.0, u), model_.underflow);
    accumulate(&dv_.value[key * head_dim_v_], &dv_.bound[key * head_dim_v_], d_o, head_dim_v_, rounded(p),
               gamma(queries_[key], u), model_.underflow);
  }
  const Rounding storage = rounding_to(arguments_.dq.dtype);
  for (std::int64_t index = dq_index; index < dq_index + head_dim_; ++index) {
    result.dq.value[index] *= scale_;
    result.dq.bound[index] =
        storage.stored_error(result.dq.value[index], std::fabs(scale_) * result.dq.bound[index] + model_.underflow);
  }
}

void HeadGroup::store_keys(BackwardResult& result) const {
  const Rounding storage_k = rounding_to(arguments_.dk.dtype);
  const Rounding storage_v = rounding_to(arguments_.dv.dtype);
  const std::int64_t heads_k = heads_of(arguments_.k);
  for (std::int64_t key = 0; key < rows_.seqlen_k; ++key) {
    if (queries_[key] == 0.0) continue;  // nothing contributes: zeros, exactly
    const std::int64_t row = (rows_.first_k + key) * heads_k + head_k_;
    for (std::int64_t column = 0; column < head_dim_; ++column) {
      const std::int64_t from = key * head_dim_ + column;
      const std::int64_t to = row * head_dim_ + column;
      result.dk.value[to] = dk_.value[from] * scale_;
      result.dk.bound[to] =
          storage_k.stored_error(result.dk.value[to], std::fabs(scale_) * dk_.bound[from] + model_.underflow);
    }
    for (std::int64_t column = 0; column < head_dim_v_; ++column) {
      const std::int64_t from = key * head_dim_v_ + column;
      const std::int64_t to = row * head_dim_v_ + column;
      result.dv.value[to] = dv_.value[from];
      result.dv.bound[to] = storage_v.stored_error(dv_.value[from], dv_.bound[from]);
    }
  }
}

void HeadGroup::run(BackwardResult& result) {
  count_queries();
  for (std::int64_t head = head_k_ * group_; head < (head_k_ + 1) * group_; ++head) {
    const std::vector<double> q = read_head(arguments_.q, rows_.first_q, rows_.seqlen_q, head);
    const std::vector<double> d_o = read_head(arguments_.d_o, rows_.first_q, rows_.seqlen_q, head);
    for (std::int64_t query = 0; query < rows_.seqlen_q; ++query) {
      add_query(query, head, q.data() + query * head_dim_, d_o.data() + query * head_dim_v_, result);
    }
  }
  store_keys(result);
}

BoundedTensor zeros(const ConstTensorView& shape) {
  const std::vector<double> zero(element_count(shape), 0.0);
  return {zero, zero};
}

}  // namespace

BackwardResult backward(const BackwardArguments& arguments, const AttentionOptions& options,
                        const ArithmeticModel& model, int threads) {
  BackwardResult result{zeros(arguments.q), zeros(arguments.k), zeros(arguments.v)};
  const std::vector<SequenceRows> sequences = sequence_rows(arguments.q, arguments.k, arguments.sequences);
  const std::int64_t heads_k = heads_of(arguments.k);
  run_tasks(static_cast<std::int64_t>(sequences.size()) * heads_k, threads, [&](std::int64_t task) {
    HeadGroup(arguments, options, model, sequences[task / heads_k], task % heads_k).run(result);
  });
  return result;
}

}  // namespace strobe::reference
