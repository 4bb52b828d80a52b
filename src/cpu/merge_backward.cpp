// SPDX-License-Identifier: Apache-2.0
// A row is read twice: for the products of dO with each part's O, then for the gradients.
#include <array>
#include <cmath>
#include <limits>

#include "cpu/merge.h"
#include "cpu/merged_rows.h"

namespace strobe::cpu {
namespace {

/// visit() with a value of the type that a dtype stands for.
template <class Visit>
void with_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::float16: return visit(float16{});
    case DType::bfloat16: return visit(bfloat16{});
    default: return visit(0.0F);
  }
}

template <class Part, class Gradient, class Result>
class Rows {
 public:
  explicit Rows(const MergeBackwardArguments& a) : a_(a), columns_(Extents(a.d_o).columns) {}

  void operator()(const Place& at, Weights& weights) const {
    weigh(a_.parts, at, weights);
    const bool defined = !std::isnan(weights.lse);
    const Gradient* d_o = static_cast<const Gradient*>(a_.d_o.data) + index_in_o(a_.d_o, at);
    std::array<float, kMaxMergedParts> products{};
    float mean = 0.0F;
    for (std::size_t i = 0; i < a_.parts.size(); ++i) {
      if (!sees_keys(a_.parts[i], at)) continue;
      products[i] = product(d_o, a_.parts[i], at);
      mean += weights.of_part[i] * products[i];
    }
    const float d_lse = a_.d_lse.given() ? static_cast<const float*>(a_.d_lse.data)[index_in_lse(a_.d_lse, at)] : 0.0F;
    for (std::size_t i = 0; i < a_.parts.size(); ++i) {
      const bool sees = sees_keys(a_.parts[i], at);
      const float weight = defined ? weights.of_part[i] : std::numeric_limits<float>::quiet_NaN();
      write(a_.gradients[i], at, d_o, sees || !defined ? weight : 0.0F, products[i] - mean + d_lse);
    }
  }

 private:
  static bool sees_keys(const PartialResult& part, const Place& at) {
    return static_cast<const float*>(part.lse.data)[index_in_lse(part.lse, at)] !=
           -std::numeric_limits<float>::infinity();
  }

  float product(const Gradient* d_o, const PartialResult& part, const Place& at) const {
    const Part* o = static_cast<const Part*>(part.o.data) + index_in_o(part.o, at);
    float sum = 0.0F;
    for (std::int64_t c = 0; c < columns_; ++c) sum += to_float(d_o[c]) * to_float(o[c]);
    return sum;
  }

  void write(const PartialGradient& to, const Place& at, const Gradient* d_o, float weight, float rest) const {
    Result* row = static_cast<Result*>(to.d_o.data) + index_in_o(to.d_o, at);
    for (std::int64_t c = 0; c < columns_; ++c) {
      row[c] = from_float<Result>(weight == 0.0F ? 0.0F : weight * to_float(d_o[c]));
    }
    static_cast<float*>(to.d_lse.data)[index_in_lse(to.d_lse, at)] = weight == 0.0F ? 0.0F : weight * rest;
  }

  const MergeBackwardArguments& a_;
  std::int64_t columns_;
};

}  // namespace

void merge_backward(const MergeBackwardArguments& a, const Execution& execution) {
  with_type(a.parts.front().o.dtype, [&](auto part) {
    with_type(a.d_o.dtype, [&](auto gradient) {
      with_type(a.gradients.front().d_o.dtype, [&](auto result) {
        for_each_row(a.d_o, execution, Rows<decltype(part), decltype(gradient), decltype(result)>(a));
      });
    });
  });
}

}  // namespace strobe::cpu
