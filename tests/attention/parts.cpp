// SPDX-License-Identifier: Apache-2.0
#include "parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "call/arithmetic.h"
#include "matches_reference.h"
#include "random_case.h"
#include "strobe/merge.h"

namespace strobe::test {
namespace {

/// Queries or keys [begin, end) of every sequence.
struct Rows {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t count() const { return end - begin; }
};

/// One to three neighbouring parts of `rows` rows, cut at multiples of `unit`.
std::vector<Rows> random_cuts(std::int64_t rows, std::int64_t unit, Random& random) {
  std::vector<std::int64_t> cuts{0, rows};
  for (std::int64_t more = random.integer(0, 2); more > 0; --more) {
    cuts.push_back(round_down(random.integer(0, rows), unit));
  }
  std::ranges::sort(cuts);
  std::vector<Rows> parts;
  for (std::size_t i = 1; i < cuts.size(); ++i) parts.push_back({cuts[i - 1], cuts[i]});
  return parts;
}

SideLengths part_of(const SideLengths& side, const Rows& rows) {
  SideLengths part{.rows = rows.count()};
  for (const std::int32_t used : side.seqused) {
    part.seqused.push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(used - rows.begin, 0, rows.count())));
  }
  for (const std::int32_t offset : side.offsets) part.offsets.push_back(offset + static_cast<std::int32_t>(rows.begin));
  return part;
}

using Extents = std::array<std::int64_t, kMaxRank>;

/// The box of a tensor that begins at `begin` and is as large as `shape`.
TensorView box_of(TensorView view, const Extents& begin, const Extents& shape) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < view.rank; ++axis) offset += begin[axis] * view.strides[axis];
  view.data = static_cast<std::byte*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
  view.shape = shape;
  return view;
}

/// Of element `index` of a box, in row-major order, that of the tensor.
std::int64_t index_in_whole(std::int64_t index, const TensorView& box, const Extents& begin, const TensorView& whole) {
  std::int64_t result = 0;
  std::int64_t stride = 1;
  for (int axis = box.rank - 1; axis >= 0; --axis) {
    result += (begin[axis] + index % box.shape[axis]) * stride;
    index /= box.shape[axis];
    stride *= whole.shape[axis];
  }
  return result;
}

/// A part's tensor and its place in the whole one.
struct Place {
  GuardedTensor CaseTensors::* tensor;
  Extents begin;
};

/// The call on some queries and some keys.
class Part {
 public:
  /// `with_sink`: the sink joins these keys, as it must join one part alone.
  Part(const AttentionCase& attention, const CaseTensors& whole, const Rows& queries, const Rows& keys, bool with_sink)
      : queries_(queries), keys_(keys), case_(attention) {
    case_.q = part_of(attention.q, queries);
    case_.k = part_of(attention.k, keys);
    case_.has_sink = attention.has_sink && with_sink;
    tensors = std::make_unique<CaseTensors>(case_);
    using T = CaseTensors;
    for (const auto input :
         {&T::q, &T::k, &T::v, &T::qv, &T::d_o, &T::d_lse, &T::bias, &T::block_mask, &T::alibi_slopes}) {
      take(whole, input);
    }
    if (case_.has_sink) take(whole, &T::sink);
  }

  /// Where the tensor lies in that of the whole.
  Extents begin_of(GuardedTensor CaseTensors::* tensor) const {
    using T = CaseTensors;
    const auto is = [&](const auto&... others) { return ((tensor == others) || ...); };
    if (is(&T::q, &T::qv, &T::o, &T::d_o, &T::dq, &T::dqv)) return {0, queries_.begin};
    if (is(&T::k, &T::v, &T::dk, &T::dv)) return {0, keys_.begin};
    if (is(&T::lse, &T::d_lse)) return {0, 0, queries_.begin};
    if (is(&T::bias, &T::d_bias)) return {0, 0, queries_.begin, keys_.begin};
    if (is(&T::block_mask)) return {0, 0, queries_.begin / case_.blocks->size, keys_.begin / case_.blocks->size};
    return {};
  }

  /// Copies the whole's elements.
  void take(const CaseTensors& whole, GuardedTensor CaseTensors::* tensor) {
    GuardedTensor& own = (*tensors).*tensor;
    if (own.size() > 0) own.copy(box_of((whole.*tensor).view(), begin_of(tensor), own.view().shape));
  }

  /// visit(element, its index in the whole tensor).
  template <class Visit>
  void for_each(GuardedTensor CaseTensors::* tensor, const CaseTensors& whole, const Visit& visit) const {
    const GuardedTensor& own = (*tensors).*tensor;
    for (std::int64_t index = 0; index < own.size(); ++index) {
      visit(own.get(index), index_in_whole(index, own.view(), begin_of(tensor), (whole.*tensor).view()));
    }
  }

  const AttentionCase& attention() const { return case_; }

  std::unique_ptr<CaseTensors> tensors;

 private:
  Rows queries_, keys_;
  AttentionCase case_;
};

/// How far storing an element may move it.
double storage_error(DType dtype, double element) {
  const double unit = dtype == DType::float32 ? 0x1p-24 : dtype == DType::float16 ? 0x1p-11 : 0x1p-8;
  const double smallest = dtype == DType::float16 ? 0x1p-25 : 0x1p-126;  // what is smaller may be flushed to 0
  return unit * std::fabs(element) + smallest;
}

/// The sum of a gradient over the parts against the whole's: within its bound, and a rounding of each part's element.
void expect_sum(const std::vector<Part>& parts, const CaseTensors& whole, GuardedTensor CaseTensors::* gradient,
                const reference::BoundedTensor& expected, const char* name) {
  const GuardedTensor& all = whole.*gradient;
  if (!all.view().given()) return;
  std::vector<double> sums(static_cast<std::size_t>(all.size()), 0.0);
  std::vector<double> rounded = sums;
  for (const Part& part : parts) {
    part.for_each(gradient, whole, [&](double element, std::int64_t index) {
      sums[index] += element;
      rounded[index] += storage_error(all.view().dtype, element);
    });
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double bound = expected.bound[i] + rounded[i];
    ASSERT_LE(std::fabs(sums[i] - expected.value[i]), bound) << name << " element " << i;
  }
}

/// What merging a row makes of its parts, and how far it may be off.
struct MergedRow {
  std::vector<double> weights;  // of the parts
  double lse = -kInfinity;
  double lse_error = 0.0;

  MergedRow(const std::vector<reference::ForwardResult>& parts, std::size_t row) {
    for (const reference::ForwardResult& part : parts) lse = std::max(lse, part.lse.value[row]);
    if (lse == -kInfinity) return;
    double sum = 0.0;
    for (const reference::ForwardResult& part : parts) {
      weights.push_back(std::exp(part.lse.value[row] - lse));
      sum += weights.back();
      if (part.lse.value[row] > -kInfinity) lse_error = std::max(lse_error, part.lse.bound[row]);
    }
    for (double& weight : weights) weight /= sum;
    lse += std::log(sum);
  }

  /// Of element `index` of o: value and error.
  std::array<double, 2> element(const std::vector<reference::ForwardResult>& parts, std::size_t index) const {
    double value = 0.0;
    double error = 0.0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0.0) continue;
      const double own = parts[i].o.value[index];
      value += weights[i] * own;
      error += weights[i] * (parts[i].o.bound[index] + std::fabs(own) * (std::expm1(2.0 * lse_error) + 0x1p-18));
    }
    return {value, error};
  }
};

/// The parts of the same queries, merged by strobe::merge, against the whole.
void expect_merged(const std::vector<const Part*>& parts, const CaseTensors& whole,
                   const reference::ForwardResult& expected, const PartRunner& runner) {
  std::vector<PartialResult> results;
  std::vector<reference::ForwardResult> of_parts;
  for (const Part* part : parts) {
    results.push_back({part->tensors->o.view(), part->tensors->lse.view()});
    of_parts.push_back(
        reference::forward(part->tensors->forward_arguments(), part->attention().options, runner.forward_model, 1));
  }
  const TensorView& o = parts.front()->tensors->o.view();
  const TensorView& lse = parts.front()->tensors->lse.view();
  std::vector<float> merged_o(of_parts.front().o.value.size(), std::nanf(""));
  std::vector<float> merged_lse(of_parts.front().lse.value.size(), std::nanf(""));
  const Status status = merge({.parts = results,
                               .o = tensor(merged_o.data(), {o.shape[0], o.shape[1], o.shape[2], o.shape[3]}),
                               .lse = tensor(merged_lse.data(), {lse.shape[0], lse.shape[1], lse.shape[2]})});
  ASSERT_TRUE(status.ok()) << status.message();
  const std::int64_t rows = lse.shape[2];
  for (std::int64_t flat = 0; flat < static_cast<std::int64_t>(merged_lse.size()); ++flat) {
    const MergedRow row(of_parts, static_cast<std::size_t>(flat));
    const Part& first = *parts.front();
    const std::int64_t in_whole = index_in_whole(flat, lse, first.begin_of(&CaseTensors::lse), whole.lse.view());
    const double wanted = expected.lse.value[in_whole];
    if (wanted == -kInfinity) {
      ASSERT_EQ(static_cast<double>(merged_lse[flat]), wanted) << "lse " << flat;
    } else {
      ASSERT_NEAR(row.lse, wanted, 1e-9 * (1.0 + std::fabs(wanted))) << "the references' lse " << flat;
      const double roundings = 0x1p-18 * (1.0 + std::fabs(wanted));
      ASSERT_LE(std::fabs(merged_lse[flat] - wanted), row.lse_error + roundings) << "lse " << flat;
    }
    const std::int64_t head = flat / rows % lse.shape[1];
    const std::int64_t at = ((flat / rows / lse.shape[1] * rows + flat % rows) * lse.shape[1] + head) * o.shape[3];
    for (std::int64_t column = at; column < at + o.shape[3]; ++column) {
      const std::int64_t place = index_in_whole(column, o, first.begin_of(&CaseTensors::o), whole.o.view());
      const auto [value, error] = row.element(of_parts, static_cast<std::size_t>(column));
      const double tiny = 1e-9 * (error + std::fabs(value)) + 1e-30;
      ASSERT_NEAR(value, expected.o.value[place], std::isfinite(tiny) ? tiny + 1e-10 : kInfinity) << "reference's o";
      ASSERT_LE(std::fabs(merged_o[column] - value), error + 0x1p-126) << "o " << column << " of " << flat;
    }
  }
}

}  // namespace

AttentionCase as_parts(AttentionCase attention, Random& random) {
  for (SideLengths* side : {&attention.q, &attention.k}) {
    if (!side->cu_seqlens.empty()) side->rows = ceil_div(side->rows, std::max<std::int64_t>(attention.batch, 1));
    if (!side->cu_seqlens.empty()) side->seqused.clear();
    side->cu_seqlens.clear();
    side->max_seqlen = -1;
  }
  attention.wants_lse = true;
  draw_offsets(attention, random);
  for (SideLengths* side : {&attention.q, &attention.k}) side->offsets.resize(attention.batch, 0);
  return attention;
}

void expect_parts_make_the_whole(const AttentionCase& attention, Random& random, const PartRunner& runner) {
  SCOPED_TRACE(describe(attention));
  CaseTensors whole(attention);
  runner.forward(whole, attention);
  const reference::ForwardResult expected =
      reference::forward(whole.forward_arguments(), attention.options, runner.forward_model, 1);
  std::vector<Part> parts;
  const std::int64_t unit = attention.blocks ? attention.blocks->size : 1;
  const std::vector<Rows> keys = random_cuts(attention.k.rows, unit, random);
  for (const Rows& queries : random_cuts(attention.q.rows, unit, random)) {
    std::vector<const Part*> of_queries;
    const std::size_t first = parts.size();
    for (const Rows& some : keys) {
      Part& part = parts.emplace_back(attention, whole, queries, some, &some == &keys.front());
      runner.forward(*part.tensors, part.attention());
      if (testing::Test::HasFailure()) return;
    }
    for (std::size_t i = first; i < parts.size(); ++i) of_queries.push_back(&parts[i]);
    expect_merged(of_queries, whole, expected, runner);
    if (testing::Test::HasFailure()) return;
  }
  for (Part& part : parts) {
    part.take(whole, &CaseTensors::o);
    part.take(whole, &CaseTensors::lse);
    runner.backward(*part.tensors, part.attention());
    if (testing::Test::HasFailure()) return;
  }
  const reference::BackwardResult gradients =
      reference::backward(whole.backward_arguments(), attention.options, runner.backward_model, 1);
  expect_sum(parts, whole, &CaseTensors::dq, gradients.dq, "dq");
  if (attention.has_qv) expect_sum(parts, whole, &CaseTensors::dqv, gradients.dqv, "dqv");
  expect_sum(parts, whole, &CaseTensors::dk, gradients.dk, "dk");
  expect_sum(parts, whole, &CaseTensors::dv, gradients.dv, "dv");
  expect_sum(parts, whole, &CaseTensors::d_bias, gradients.d_bias, "d_bias");
  expect_sum(parts, whole, &CaseTensors::d_sink, gradients.d_sink, "d_sink");
}

}  // namespace strobe::test
