// SPDX-License-Identifier: Apache-2.0
// Every combination of extents of 0 beside others, in every layout, by calls and plans of C++ and C: an empty result or
// an error that names the extent. Each tensor ends at a page without access.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "c_call.h"
#include "guarded_tensor.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

enum class KeyLayout : std::uint8_t { batched, packed, entries, pages };

struct Extents {
  std::int64_t batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim, head_dim_v;
  bool packed_q;
  KeyLayout keys;

  bool plain() const { return keys == KeyLayout::batched || keys == KeyLayout::packed; }
  std::string text() const {
    std::string all = packed_q ? "packed q," : "";
    for (const std::int64_t extent : {batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim, head_dim_v}) {
      all += ' ' + std::to_string(extent);
    }
    return all + ", layout of keys " + std::to_string(static_cast<int>(keys));
  }

  /// Why the call is none; empty: it is one.
  std::string fault() const {
    if (head_dim == 0) return "head_dim is 0: it must be from 1 to 576";
    if (head_dim_v == 0) return "head_dim_v is 0: it must be from 1 to 512";
    if (heads_kv == 0 && heads_q > 0) {
      return "q has " + std::to_string(heads_q) + " heads and k has 0: heads_q must be a multiple of heads_kv";
    }
    return "";
  }
};

/// The tensors of a call whose inputs are all 1.
class UnitCall {
 public:
  UnitCall(const Extents& e, DType dtype) : e_(e), dtype_(dtype) {
    q_ = rows(e.packed_q, e.seqlen_q, e.heads_q, e.head_dim, true);
    k_ = keys(e.head_dim, true);
    v_ = keys(e.head_dim_v, true);
    d_o_ = rows(e.packed_q, e.seqlen_q, e.heads_q, e.head_dim_v, true);
    o_given_ = rows(e.packed_q, e.seqlen_q, e.heads_q, e.head_dim_v, true);
    lse_given_ = lse_like();
    fill(lse_given_, e.seqlen_k == 0 ? -std::numeric_limits<double>::infinity() : log_sum());
    if (e.seqlen_k == 0) fill(o_given_, 0.0);
    o_ = rows(e.packed_q, e.seqlen_q, e.heads_q, e.head_dim_v, false);
    lse_ = lse_like();
    dq_ = rows(e.packed_q, e.seqlen_q, e.heads_q, e.head_dim, false);
    dk_ = keys(e.head_dim, false);
    dv_ = keys(e.head_dim_v, false);
    if (e.packed_q) ends_q_ = integers({e.batch + 1}, [&](std::int64_t b) { return b * e.seqlen_q; });
    if (e.keys == KeyLayout::packed) ends_k_ = integers({e.batch + 1}, [&](std::int64_t b) { return b * e.seqlen_k; });
    if (e.keys == KeyLayout::entries) entries_ = integers({e.batch}, [&](std::int64_t b) { return e.batch - 1 - b; });
    if (e.keys == KeyLayout::pages) pages_ = integers({e.batch, e.seqlen_k}, [](std::int64_t page) { return page; });
  }

  ForwardArguments forward_arguments() const {
    ForwardArguments a{.q = q_.view(), .k = k_.view(), .v = v_.view(), .o = o_.view(), .lse = lse_.view()};
    a.sequences = sequences();
    a.page_table = pages_.view();
    return a;
  }
  BackwardArguments backward_arguments() const {
    BackwardArguments a{.q = q_.view(), .k = k_.view(), .v = v_.view(), .o = o_given_.view(), .lse = lse_given_.view()};
    a.d_o = d_o_.view();
    a.dq = dq_.view();
    a.dk = dk_.view();
    a.dv = dv_.view();
    a.sequences = sequences();
    return a;
  }

  std::vector<GuardedTensor*> outputs() { return {&o_, &lse_, &dq_, &dk_, &dv_}; }

  void expect_forward() {
    expect_all(o_, e_.seqlen_k == 0 ? 0.0 : 1.0, "o");
    expect_all(lse_, e_.seqlen_k == 0 ? -std::numeric_limits<double>::infinity() : log_sum(), "lse");
  }
  void expect_backward() {
    const std::int64_t rows = e_.heads_kv == 0 ? 0 : e_.heads_q / e_.heads_kv * e_.seqlen_q;
    expect_all(dq_, 0.0, "dq");
    expect_all(dk_, 0.0, "dk");
    expect_all(dv_, static_cast<double>(rows) / static_cast<double>(e_.seqlen_k), "dv");
  }

 private:
  Sequences sequences() const {
    Sequences s;
    s.cu_seqlens_q = ends_q_.view();
    s.cu_seqlens_k = ends_k_.view();
    s.cache_batch_idx = entries_.view();
    return s;
  }

  /// Of every row: each of its scores is head_dim / sqrt(head_dim).
  double log_sum() const {
    return std::sqrt(static_cast<double>(e_.head_dim)) + std::log(static_cast<double>(e_.seqlen_k));
  }

  GuardedTensor made(DType dtype, const std::vector<std::int64_t>& shape) {
    return {dtype, shape, {.guard = Guard::page_after}, random_};
  }
  GuardedTensor rows(bool packed, std::int64_t seqlen, std::int64_t heads, std::int64_t columns, bool is_input) {
    GuardedTensor tensor =
        packed ? made(dtype_, {e_.batch * seqlen, heads, columns}) : made(dtype_, {e_.batch, seqlen, heads, columns});
    if (is_input) fill(tensor, 1.0);
    return tensor;
  }
  GuardedTensor keys(std::int64_t columns, bool is_input) {
    if (e_.keys != KeyLayout::pages) {
      return rows(e_.keys == KeyLayout::packed, e_.seqlen_k, e_.heads_kv, columns, is_input);
    }
    GuardedTensor tensor = made(dtype_, {e_.batch * e_.seqlen_k, 1, e_.heads_kv, columns});
    if (is_input) fill(tensor, 1.0);
    return tensor;
  }
  GuardedTensor lse_like() {
    return e_.packed_q ? made(DType::float32, {e_.heads_q, e_.batch * e_.seqlen_q})
                       : made(DType::float32, {e_.batch, e_.heads_q, e_.seqlen_q});
  }
  GuardedTensor integers(const std::vector<std::int64_t>& shape,
                         const std::function<std::int64_t(std::int64_t)>& number) {
    GuardedTensor tensor = made(DType::int32, shape);
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(number(i)));
    return tensor;
  }
  static void fill(GuardedTensor& tensor, double value) {
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, value);
  }
  void expect_all(const GuardedTensor& tensor, double value, const char* name) const {
    const double tolerance = (dtype_ == DType::float32 ? 1e-5 : 0.02) * std::max(std::fabs(value), 1.0);
    for (std::int64_t i = 0; i < tensor.size(); ++i) {
      const double actual = tensor.get(i);
      if (actual == value || (std::isfinite(value) && std::fabs(actual - value) <= tolerance)) continue;
      ADD_FAILURE() << name << "[" << i << "] is " << actual << " and should be " << value;
      return;
    }
  }

  const Extents e_;
  const DType dtype_;
  Random random_{1};
  GuardedTensor q_, k_, v_, d_o_, o_given_, lse_given_, o_, lse_, dq_, dk_, dv_, ends_q_, ends_k_, entries_, pages_;
};

/// A call, its plan's run, and both from C.
template <class Arguments>
std::vector<std::function<Status(const Arguments&)>> ways() {
  return {[](const Arguments& a) {
            if constexpr (std::is_same_v<Arguments, ForwardArguments>)
              return forward(a);
            else
              return backward(a);
          },
          [](const Arguments& a) {
            const Result<Plan> plan = make_plan(a);
            return plan.ok() ? plan->run(a) : plan.status();
          },
          [](const Arguments& a) { return call_from_c(a); }, [](const Arguments& a) { return plan_from_c(a); }};
}

template <class Arguments, class Expect>
void run_all_ways(const Extents& extents, DType dtype, const Expect& expect) {
  for (const auto& way : ways<Arguments>()) {
    UnitCall call(extents, dtype);
    Status status;
    if constexpr (std::is_same_v<Arguments, ForwardArguments>)
      status = way(call.forward_arguments());
    else
      status = way(call.backward_arguments());
    EXPECT_EQ(status.message(), extents.fault());
    EXPECT_EQ(status.code(), extents.fault().empty() ? StatusCode::ok : StatusCode::invalid_argument);
    if (status.ok()) {
      expect(call);
    } else {
      for (const GuardedTensor* output : call.outputs()) EXPECT_TRUE(output->untouched());
    }
  }
}

template <class Visit>
void for_each_extents(bool packed_q, KeyLayout keys, const Visit& visit) {
  for (const std::int64_t batch : {0, 2})
    for (const std::int64_t seqlen_q : {0, 1, 40})
      for (const std::int64_t seqlen_k : {0, 5})
        for (const auto& [heads_q, heads_kv] :
             {std::pair{0, 0}, {0, 1}, {0, 2}, {1, 0}, {2, 0}, {1, 1}, {2, 1}, {2, 2}})
          for (const std::int64_t head_dim : {0, 9})
            for (const std::int64_t head_dim_v : {0, 6})
              visit(Extents{batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim, head_dim_v, packed_q, keys});
}

struct LayoutParam {
  const char* name;
  bool packed_q;
  KeyLayout keys;
};

class ZeroExtents : public testing::TestWithParam<LayoutParam> {};

TEST_P(ZeroExtents, AreAnEmptyResultOrAnError) {
  for_each_extents(GetParam().packed_q, GetParam().keys, [](const Extents& extents) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      if (testing::Test::HasFailure()) return;
      SCOPED_TRACE(extents.text());
      run_all_ways<ForwardArguments>(extents, dtype, [](UnitCall& call) { call.expect_forward(); });
      if (!extents.plain()) continue;  // caches have no backward
      run_all_ways<BackwardArguments>(extents, dtype, [](UnitCall& call) { call.expect_backward(); });
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, ZeroExtents,
                         testing::Values(LayoutParam{"Batched", false, KeyLayout::batched},
                                         LayoutParam{"PackedQueries", true, KeyLayout::batched},
                                         LayoutParam{"PackedKeys", false, KeyLayout::packed},
                                         LayoutParam{"Packed", true, KeyLayout::packed},
                                         LayoutParam{"Entries", false, KeyLayout::entries},
                                         LayoutParam{"Pages", false, KeyLayout::pages}),
                         [](const auto& given) { return std::string(given.param.name); });

}  // namespace
}  // namespace strobe::test
