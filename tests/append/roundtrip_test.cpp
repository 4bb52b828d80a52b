// SPDX-License-Identifier: Apache-2.0
// Caches of 8 bits with scales of rows: the scales are quantize()'s, and forward() reads what append() wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "append_case.h"
#include "reference/bound/reference.h"
#include "strobe/attention.h"
#include "strobe/quantize.h"

namespace strobe::test {
namespace {

/// Keys and values of a few sequences, row j of a head scaled by its own power of two, and an 8-bit cache of them, in
/// entries of kRows rows or in smaller pages.
class CacheOfRows {
 public:
  static constexpr std::int64_t kBatch = 3, kHeads = 2, kColumns = 64, kRows = 60;

  explicit CacheOfRows(DType element, std::int64_t page_size = 0)
      : element_(element), paged_(page_size > 0), rows_(paged_ ? page_size : kRows) {
    Random random(7);
    for (std::vector<float>* const rows : {&k_, &v_}) {
      rows->resize(kBatch * kRows * kHeads * kColumns);
      for (std::size_t i = 0; i < rows->size(); ++i) {
        const auto row = static_cast<int>(i / (kHeads * kColumns) % kRows);
        (*rows)[i] = std::ldexp(static_cast<float>(random.normal()), -(row % 7));
      }
    }
    for (std::int64_t i = 0; i < kBatch * pages(); ++i) places_.push_back(static_cast<std::int32_t>(entries() - 1 - i));
  }

  ConstTensorView k(std::int64_t first = 0, std::int64_t count = kRows) const { return rows_of(k_, first, count); }
  ConstTensorView v(std::int64_t first = 0, std::int64_t count = kRows) const { return rows_of(v_, first, count); }

  /// Appends rows [first, first + count) of every sequence, by scales of rows or, if they are given, of heads.
  void append_rows(std::int64_t first, std::int64_t count, const float* head_scale = nullptr) {
    const std::vector<std::int32_t> lengths(kBatch, static_cast<std::int32_t>(first));
    AppendArguments a;
    a.k_cache = elements_of(k8_);
    a.v_cache = elements_of(v8_);
    a.k_new = k(first, count);
    a.v_new = v(first, count);
    a.cache_seqlens = tensor(lengths.data(), {kBatch});
    if (paged_) {
      a.page_table = tensor(places_.data(), {kBatch, pages()});
    } else {
      a.cache_batch_idx = tensor(places_.data(), {kBatch});
    }
    if (head_scale == nullptr) {
      a.k_row_descale = tensor(k_scales_.data(), {entries(), kHeads, rows_});
      a.v_row_descale = tensor(v_scales_.data(), {entries(), kHeads, rows_});
    } else {
      a.k_descale = a.v_descale = tensor(head_scale, {1, 1, 1});
    }
    const Status status = append(a);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  /// The forward's arguments: scales by sequence, [batch, heads_kv, seqlen].
  ForwardArguments stored() {
    ForwardArguments a;
    a.k = elements_of(k8_);
    a.v = elements_of(v8_);
    if (paged_) {
      a.page_table = tensor(places_.data(), {kBatch, pages()});
    } else {
      a.sequences.cache_batch_idx = tensor(places_.data(), {kBatch});
    }
    a.sequences.seqused_k = tensor(lengths_.data(), {kBatch});
    gather(k_scales_, k_gathered_);
    gather(v_scales_, v_gathered_);
    a.k_descale = tensor(k_gathered_.data(), {kBatch, kHeads, pages() * rows_});
    a.v_descale = tensor(v_gathered_.data(), {kBatch, kHeads, pages() * rows_});
    return a;
  }

  /// The most that column c of row `row` of a head of `x` is off by when stored: half a step, and the scale's and the
  /// quotient's own rounding.
  double rounding(const ConstTensorView& x, std::int64_t b, std::int64_t row, std::int64_t head, std::int64_t c) const {
    const auto* const at = static_cast<const float*>(x.data) + b * x.strides[0] + row * x.strides[1] + head * kColumns;
    const double largest =
        std::abs(*std::max_element(at, at + kColumns, [](float p, float q) { return std::abs(p) < std::abs(q); }));
    if (element_ == DType::int8) return largest / 127.0 * (0.5 + 0x1p-16);
    return std::max(std::abs(static_cast<double>(at[c])) * 0x1p-4, largest / 448.0 * 0x1p-10) * (1.0 + 0x1p-16);
  }

 private:
  std::int64_t pages() const { return (kRows + rows_ - 1) / rows_; }  // of a sequence
  std::int64_t entries() const { return kBatch * pages() + 2; }

  static ConstTensorView rows_of(const std::vector<float>& rows, std::int64_t first, std::int64_t count) {
    ConstTensorView view = tensor(rows.data() + first * kHeads * kColumns, {kBatch, count, kHeads, kColumns});
    view.strides[0] = kRows * kHeads * kColumns;
    return view;
  }
  TensorView elements_of(std::vector<std::int8_t>& bytes) const {
    TensorView view = tensor(bytes.data(), {entries(), rows_, kHeads, kColumns});
    view.dtype = element_;
    return view;
  }

  /// Scales of sequences' rows, out of pages or entries.
  void gather(const std::vector<float>& from, std::vector<float>& to) const {
    to.clear();
    for (std::int64_t i = 0; i < kBatch * kHeads * pages() * rows_; ++i) {
      const std::int64_t row = i % (pages() * rows_);
      const std::int64_t head = i / (pages() * rows_) % kHeads;
      const std::int64_t b = i / (pages() * rows_ * kHeads);
      const std::int64_t entry = places_[static_cast<std::size_t>(b * pages() + row / rows_)];
      to.push_back(from[static_cast<std::size_t>((entry * kHeads + head) * rows_ + row % rows_)]);
    }
  }

  DType element_;
  bool paged_;
  std::int64_t rows_;  // of an entry or page
  std::vector<float> k_, v_;
  std::vector<std::int32_t> places_, lengths_ = std::vector<std::int32_t>(kBatch, kRows);
  // NaN in e4m3, which rows that are not written keep, and so do their scales.
  std::vector<std::int8_t> k8_ = std::vector<std::int8_t>(
                               static_cast<std::size_t>(entries() * rows_ * kHeads * kColumns), 0x7F),
                           v8_ = k8_;
  std::vector<float> k_scales_ = std::vector<float>(static_cast<std::size_t>(entries() * kHeads * rows_), NAN),
                     v_scales_ = k_scales_;
  std::vector<float> k_gathered_, v_gathered_;
};

/// A few queries of float32 on a cache, and their O.
class SomeQueries {
 public:
  static constexpr std::int64_t kHeads = 4, kCount = 5;

  SomeQueries() {
    Random random(11);
    for (float& x : q) x = static_cast<float>(random.normal());
  }

  ForwardArguments with(ForwardArguments a) {
    a.q = tensor(q.data(), {CacheOfRows::kBatch, kCount, kHeads, CacheOfRows::kColumns});
    a.o = tensor(o.data(), {CacheOfRows::kBatch, kCount, kHeads, CacheOfRows::kColumns});
    return a;
  }

  std::vector<float> q = std::vector<float>(CacheOfRows::kBatch * kCount * kHeads * CacheOfRows::kColumns), o = q;
};

/// The most that rounding K and V to 8 bits moves any element of a row of O by: scores by D at most, so the softmax's
/// weights by tanh(D / 2) in total variation (docs/eight-bit.md), and values by half a step.
double rounding_bound(const CacheOfRows& cache, const SomeQueries& queries, std::int64_t b, std::int64_t query,
                      std::int64_t head) {
  const float* const q = &queries.q[static_cast<std::size_t>(
      ((b * SomeQueries::kCount + query) * SomeQueries::kHeads + head) * CacheOfRows::kColumns)];
  const std::int64_t head_kv = head / (SomeQueries::kHeads / CacheOfRows::kHeads);
  double scores = 0.0;
  double values = 0.0;
  double largest = 0.0;
  for (std::int64_t row = 0; row < CacheOfRows::kRows; ++row) {
    double off = 0.0;
    const auto* const v = static_cast<const float*>(cache.v().data) +
                          ((b * CacheOfRows::kRows + row) * CacheOfRows::kHeads + head_kv) * CacheOfRows::kColumns;
    for (std::int64_t c = 0; c < CacheOfRows::kColumns; ++c) {
      off += std::abs(static_cast<double>(q[c])) * cache.rounding(cache.k(), b, row, head_kv, c);
      values = std::max(values, cache.rounding(cache.v(), b, row, head_kv, c));
      largest = std::max(largest, std::abs(static_cast<double>(v[c])));
    }
    scores = std::max(scores, off / std::sqrt(static_cast<double>(CacheOfRows::kColumns)));
  }
  return 2.0 * std::tanh(scores / 2.0) * largest + values;
}

class RowScales : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(, RowScales, testing::Values(DType::int8, DType::float8_e4m3));

/// A prompt, single tokens and a chunk: against float64 on the keys and values as they were before.
TEST_P(RowScales, ForwardReadsWhatAppendWrote) {
  for (const std::int64_t page_size : {0, 1, 16}) {
    SCOPED_TRACE(page_size);
    CacheOfRows cache(GetParam(), page_size);
    cache.append_rows(0, 37);
    for (std::int64_t row = 37; row < 40; ++row) cache.append_rows(row, 1);
    cache.append_rows(40, CacheOfRows::kRows - 40);
    SomeQueries queries;
    const ForwardArguments stored = queries.with(cache.stored());
    ASSERT_TRUE(forward(stored).ok());
    const reference::ForwardResult arithmetic = reference::forward(stored);
    ForwardArguments exact;
    exact.k = cache.k();
    exact.v = cache.v();
    const reference::ForwardResult wanted = reference::forward(queries.with(exact));
    for (std::size_t i = 0; i < queries.o.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / CacheOfRows::kColumns;
      ASSERT_NEAR(queries.o[i], arithmetic.o.value[i], arithmetic.o.bound[i]) << i;
      const double bound = rounding_bound(cache, queries, row / (SomeQueries::kCount * SomeQueries::kHeads),
                                          row / SomeQueries::kHeads % SomeQueries::kCount, row % SomeQueries::kHeads);
      ASSERT_NEAR(queries.o[i], wanted.o.value[i], arithmetic.o.bound[i] + bound) << i;
    }
  }
}

/// Where rows are of unequal size one scale for all of them wastes the bits of the small ones: those of int8, as
/// elements of e4m3 have exponents of their own.
TEST(RowScalesOfInt8, AreMoreAccurateThanOneOfAHead) {
  SomeQueries queries;
  ForwardArguments exact;
  CacheOfRows by_rows(DType::int8);
  exact.k = by_rows.k();
  exact.v = by_rows.v();
  const reference::ForwardResult wanted = reference::forward(queries.with(exact));
  const auto squares = [&](const ForwardArguments& stored) {
    EXPECT_TRUE(forward(queries.with(stored)).ok());
    double sum = 0.0;
    for (std::size_t i = 0; i < queries.o.size(); ++i) sum += std::pow(queries.o[i] - wanted.o.value[i], 2);
    return sum;
  };
  by_rows.append_rows(0, CacheOfRows::kRows);
  const double rows = squares(by_rows.stored());
  CacheOfRows by_heads(DType::int8);
  const float scale = 5.0F / 127.0F;  // few numbers are larger than 5
  by_heads.append_rows(0, CacheOfRows::kRows, &scale);
  ForwardArguments stored = by_heads.stored();
  stored.k_descale = stored.v_descale = tensor(&scale, {1, 1, 1});
  const double heads = squares(stored);
  EXPECT_LT(rows, 0.25 * heads);
}

/// Rows of all kinds, NaN and infinity included.
TEST_P(RowScales, AreThoseOfTheQuantiser) {
  constexpr std::int64_t kRows = 9, kColumns = 40;
  Random random(5);
  std::vector<float> rows(kRows * kColumns);
  for (float& x : rows) x = static_cast<float>(random.normal());
  const auto row = [&](std::int64_t index) { return rows.begin() + index * kColumns; };
  std::fill_n(row(1), kColumns, 0.0F);
  *row(2) = NAN;
  row(3)[kColumns - 1] = -std::numeric_limits<float>::infinity();
  for (std::int64_t c = 0; c < kColumns; ++c) {
    row(4)[c] *= 0x1p-90F;  // the scale is the least that there is
    row(5)[c] *= 0x1p-149F;
    row(6)[c] *= 0x1p+120F;
  }
  std::fill_n(row(7), kColumns, -0.0F);
  row(7)[3] = std::numeric_limits<float>::max();

  const std::int32_t length = 0;
  std::vector<std::int8_t> k(rows.size(), 85), v = k, q8 = k, k8 = k, v8(kColumns * 32);
  std::vector<float> k_scales(kRows), v_scales(kRows), qs(kRows), ks(kRows), vs(kRows);
  const auto elements = [&](std::vector<std::int8_t>& bytes, const std::vector<std::int64_t>& shape) {
    TensorView view = tensor(bytes.data(), {shape[0], shape[1], shape[2], shape[3]});
    view.dtype = GetParam();
    return view;
  };
  AppendArguments a;
  a.k_cache = elements(k, {1, kRows, 1, kColumns});
  a.v_cache = elements(v, {1, kRows, 1, kColumns});
  a.k_new = a.v_new = tensor(rows.data(), {1, kRows, 1, kColumns});
  a.cache_seqlens = tensor(&length, {1});
  a.k_row_descale = tensor(k_scales.data(), {1, 1, kRows});
  a.v_row_descale = tensor(v_scales.data(), {1, 1, kRows});
  ASSERT_TRUE(append(a).ok());

  QuantizeArguments x;
  x.q = x.k = x.v = a.k_new;
  x.q8 = elements(q8, {1, kRows, 1, kColumns});
  x.k8 = elements(k8, {1, kRows, 1, kColumns});
  x.v8 = elements(v8, {1, 1, kColumns, 32});
  x.q_descale = tensor(qs.data(), {1, 1, kRows});
  x.k_descale = tensor(ks.data(), {1, 1, kRows});
  x.v_descale = tensor(vs.data(), {1, 1, kRows});
  QuantizeOptions options{.element = GetParam(),
                          .k_scales = ScaleUnit::row,
                          .v_scales = ScaleUnit::row,
                          .rotate_qk = false,
                          .rotate_v = false,
                          .center_k = false};
  ASSERT_TRUE(quantize(x, options).ok());
  // Beside scales of V's rows, which tell of keys that are not finite, K's do not.
  std::vector<float> one(1);
  x.v_descale = tensor(one.data(), {1, 1, 1});
  options.v_scales = ScaleUnit::head;
  ASSERT_TRUE(quantize(x, options).ok());
  EXPECT_EQ(k, v);
  for (std::size_t i = 0; i < ks.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(k_scales[i]), std::bit_cast<std::uint32_t>(ks[i])) << i;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(v_scales[i]), std::bit_cast<std::uint32_t>(vs[i])) << i;
  }
  EXPECT_EQ(k_scales[1], 0x1p-80F);
  EXPECT_TRUE(std::isnan(k_scales[2]) && std::isnan(k_scales[3]));
  EXPECT_EQ(std::count(k.begin() + 2 * kColumns, k.begin() + 4 * kColumns, 0), 2 * kColumns);
}

}  // namespace
}  // namespace strobe::test
