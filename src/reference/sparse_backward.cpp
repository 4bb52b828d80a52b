// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "reference/bound/rounding.h"
#include "reference/sparse.h"
#include "reference/sparse_gather.h"
#include "reference/tensors.h"

namespace strobe::reference {
namespace {

/// Sums of what queries give, element by element.
struct Sums {
  explicit Sums(std::int64_t count)
      : sum(zeros(count)),
        terms(static_cast<std::size_t>(count), 0.0),
        magnitude(static_cast<std::size_t>(count), 0.0) {}

  void add(std::int64_t index, double value, double bound) {
    const auto i = static_cast<std::size_t>(index);
    sum.value[i] += value;
    sum.bound[i] += bound;
    terms[i] += 1.0;
    magnitude[i] += std::fabs(value) + bound;
  }

  /// With the roundings of the additions, and of what is stored. Where nothing was added: zeros, exactly.
  BoundedTensor stored(DType dtype, const ArithmeticModel& model) {
    const Rounding rounding = rounding_to(dtype);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (terms[i] == 0.0) continue;
      const double error = sum.bound[i] + gamma(terms[i], model.unit_roundoff) * magnitude[i] + model.underflow;
      sum.bound[i] = rounding.stored_error(sum.value[i], error);
    }
    return std::move(sum);
  }

  BoundedTensor sum;
  std::vector<double> terms, magnitude;
};

/// Floats that a dtype holds exactly, as its bytes.
std::vector<std::byte> bytes_in(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float16 half = to_float16(values[i]);
    const bfloat16 brain = to_bfloat16(values[i]);
    const void* const from = dtype == DType::float16    ? static_cast<const void*>(&half)
                             : dtype == DType::bfloat16 ? static_cast<const void*>(&brain)
                                                        : static_cast<const void*>(&values[i]);
    std::memcpy(bytes.data() + i * size_of(dtype), from, size_of(dtype));
  }
  return bytes;
}

ConstTensorView in_dtype(const std::vector<std::byte>& bytes, DType dtype, std::int64_t heads, std::int64_t columns) {
  ConstTensorView view = tensor(static_cast<const float*>(nullptr), {1, 1, heads, columns});
  view.data = bytes.data();
  view.dtype = dtype;
  return view;
}

/// The heads of a query of d_o, and of d_lse.
struct OutputGradient {
  OutputGradient(const SparseBackwardArguments& b, std::int64_t row, std::int64_t first_head, std::int64_t group) {
    const std::int64_t per_entry = rows_per_entry(b.forward.q);
    for (std::int64_t h = 0; h < group; ++h) {
      const std::vector<double> exact = read_head(b.d_o, row, 1, first_head + h);
      d_o.insert(d_o.end(), exact.begin(), exact.end());
      d_lse.push_back(static_cast<float>(d_lse_at(b.d_lse, row, first_head + h, per_entry)));
    }
  }
  std::vector<float> d_o, d_lse;
};

class SparseGradients {
 public:
  SparseGradients(const SparseBackwardArguments& b, const SparseOptions& options, const ArithmeticModel& model)
      : b_(b), model_(model), extents_(b.forward) {
    used_.scale = options.scale;
    used_.softcap = options.softcap;
    for (const SparseSource& s : b.forward.sources) {
      dk_.emplace_back(s.k.given() ? element_count(s.k) : 0);
      dv_.emplace_back(s.v.given() ? element_count(s.v) : 0);
    }
  }

  SparseBackwardResult run() {
    SparseBackwardResult result;
    result.dq = zeros(element_count(b_.forward.q));
    Sums d_sink(b_.d_sink.given() ? extents_.heads_q : 0);
    for (std::int64_t row = 0; row < extents_.queries; ++row) {
      for (std::int64_t head = 0; head < extents_.heads_kv; ++head) add_query(row, head, result.dq, d_sink);
    }
    for (std::size_t i = 0; i < dk_.size(); ++i) {
      const SparseSource& s = b_.forward.sources[i];
      result.dk[i] = dk_[i].stored(s.k.dtype, model_);
      result.dv[i] = dv_[i].stored(s.v.dtype, model_);
    }
    result.d_sink = d_sink.stored(DType::float32, model_);
    return result;
  }

 private:
  void add_query(std::int64_t row, std::int64_t head_kv, BoundedTensor& dq, Sums& d_sink) {
    const SparseForwardArguments& a = b_.forward;
    const GatheredQuery query(a, row, head_kv);
    const OutputGradient of_output(b_, row, head_kv * query.group, query.group);
    const std::vector<std::byte> q = bytes_in(a.q.dtype, query.q);
    BackwardArguments dense;
    dense.q = in_dtype(q, a.q.dtype, query.group, query.head_dim);
    dense.k = tensor(query.k.data(), {1, query.keys(), 1, query.head_dim});
    dense.v = tensor(query.v.data(), {1, query.keys(), 1, query.head_dim_v});
    dense.d_o = tensor(of_output.d_o.data(), {1, 1, query.group, query.head_dim_v});
    if (b_.d_lse.given()) dense.d_lse = tensor(of_output.d_lse.data(), {1, query.group, 1});
    dense.dq.dtype = a.q.dtype;
    if (a.sink.given()) dense.modifiers.sink = tensor(query.sink.data(), {query.group});
    float nothing = 0.0F;
    if (b_.d_sink.given()) dense.d_sink = tensor(&nothing, {query.group});
    const BackwardResult one = backward(dense, used_, model_, 1);
    const std::int64_t at = (row * extents_.heads_q + head_kv * query.group) * query.head_dim;
    std::copy(one.dq.value.begin(), one.dq.value.end(), dq.value.begin() + at);
    std::copy(one.dq.bound.begin(), one.dq.bound.end(), dq.bound.begin() + at);
    for (std::int64_t h = 0; b_.d_sink.given() && h < query.group; ++h) {
      d_sink.add(head_kv * query.group + h, one.d_sink.value[h], one.d_sink.bound[h]);
    }
    for (std::int64_t key = 0; key < query.keys(); ++key) add_key(query, key, head_kv, one);
  }

  void add_key(const GatheredQuery& query, std::int64_t key, std::int64_t head_kv, const BackwardResult& one) {
    const ListedRow& at = query.rows[static_cast<std::size_t>(key)];
    const SparseSource& s = b_.forward.sources[at.source];
    const std::int64_t rows = s.k.shape[s.k.rank - 3];
    const std::int64_t number = (at.page * rows + at.row) * extents_.heads_kv + head_kv;
    for (std::int64_t c = 0; c < query.head_dim; ++c) {
      const auto from = static_cast<std::size_t>(key * query.head_dim + c);
      dk_[at.source].add(number * query.head_dim + c, one.dk.value[from], one.dk.bound[from]);
    }
    Sums& values = s.v.given() ? dv_[at.source] : dk_[at.source];
    const std::int64_t columns = s.v.given() ? query.head_dim_v : query.head_dim;
    for (std::int64_t c = 0; c < query.head_dim_v; ++c) {
      const auto from = static_cast<std::size_t>(key * query.head_dim_v + c);
      values.add(number * columns + c, one.dv.value[from], one.dv.bound[from]);
    }
  }

  const SparseBackwardArguments& b_;
  const ArithmeticModel& model_;
  SparseExtents extents_;
  AttentionOptions used_;
  std::vector<Sums> dk_, dv_;
};

}  // namespace

SparseBackwardResult sparse_backward(const SparseBackwardArguments& arguments, const SparseOptions& options,
                                     const ArithmeticModel& model) {
  return SparseGradients(arguments, options, model).run();
}

}  // namespace strobe::reference
