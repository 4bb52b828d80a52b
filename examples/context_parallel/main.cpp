// SPDX-License-Identifier: Apache-2.0
// One causal sequence on several ranks, which are threads here: each has some rows, fetches the keys that they see, and
// computes its rows of the output and of the gradients. Between machines the copies would be messages.
#include <strobe/attention.h>
#include <strobe/ranks.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace {

using strobe::RowRange;
using Floats = std::vector<float>;

constexpr std::int64_t kSeqlen = 1000, kHeadsQ = 4, kHeadsKv = 2, kHeadDim = 64, kRanks = 4;
constexpr std::int64_t kQueryRow = kHeadsQ * kHeadDim, kKeyRow = kHeadsKv * kHeadDim;
constexpr strobe::Window kWindow{.left = 399, .right = 0};

/// Tensors [1, seqlen, heads, head_dim]; lse [1, heads_q, seqlen].
struct Sequence {
  Floats q, k, v, d_o;
  Floats o = Floats(kSeqlen * kQueryRow), dq = o, lse = Floats(kSeqlen * kHeadsQ);
  Floats dk = Floats(kSeqlen * kKeyRow), dv = dk;
};

/// What one run of rows has for the gradients of the keys that it sees.
struct KeyGradients {
  RowRange keys;
  Floats dk, dv;
};

template <class Vector>
auto rows_of(Vector& x, std::int64_t first, std::int64_t count, std::int64_t heads) {
  return strobe::tensor(x.data() + first * heads * kHeadDim, {1, count, heads, kHeadDim});
}

/// Both passes of some rows. `keys` and `values` are those from first_key on.
strobe::Status compute(Sequence& s, const RowRange& rows, const Floats& keys, const Floats& values,
                       std::int64_t first_key, Floats& dk, Floats& dv) {
  const auto count = static_cast<std::int64_t>(keys.size()) / kKeyRow;
  const auto offset_q = static_cast<std::int32_t>(rows.first);
  const auto offset_k = static_cast<std::int32_t>(first_key);
  const strobe::Sequences positions{.offset_q = strobe::tensor(&offset_q, {1}),
                                    .offset_k = strobe::tensor(&offset_k, {1})};
  strobe::TensorView lse = strobe::tensor(s.lse.data() + rows.first, {1, kHeadsQ, rows.count});
  lse.strides[1] = kSeqlen;  // of all rows
  const auto queries = [&](auto& x) { return rows_of(x, rows.first, rows.count, kHeadsQ); };
  const auto of_keys = [&](auto& x) { return rows_of(x, 0, count, kHeadsKv); };
  const strobe::AttentionOptions options{.causal = strobe::CausalMask::bottom_right, .window = kWindow};
  const strobe::Execution one_thread{.threads = 1};
  strobe::Status status = strobe::forward({.q = queries(s.q),
                                           .k = of_keys(keys),
                                           .v = of_keys(values),
                                           .o = queries(s.o),
                                           .lse = lse,
                                           .sequences = positions},
                                          options, one_thread);
  if (!status.ok()) return status;
  return strobe::backward({.q = queries(s.q),
                           .k = of_keys(keys),
                           .v = of_keys(values),
                           .o = queries(s.o),
                           .lse = lse,
                           .d_o = queries(s.d_o),
                           .dq = queries(s.dq),
                           .dk = of_keys(dk),
                           .dv = of_keys(dv),
                           .sequences = positions},
                          options, one_thread);
}

/// All that a rank does before gradients travel.
strobe::Status run_rank(Sequence& s, std::int64_t rank, std::vector<KeyGradients>& gradients) {
  for (const RowRange& rows : strobe::rows_of_rank(kSeqlen, rank, kRanks, strobe::RowLayout::zigzag)) {
    if (rows.count == 0) continue;
    const RowRange seen = strobe::visible_keys(rows, kSeqlen, strobe::CausalMask::bottom_right, kWindow);
    const auto fetched = [&](const Floats& x) {  // messages from the ranks that have them
      return Floats(x.begin() + seen.first * kKeyRow, x.begin() + (seen.first + seen.count) * kKeyRow);
    };
    const Floats keys = fetched(s.k), values = fetched(s.v);
    KeyGradients of_run{seen, Floats(keys.size()), Floats(keys.size())};
    strobe::Status status = compute(s, rows, keys, values, seen.first, of_run.dk, of_run.dv);
    if (!status.ok()) return status;
    gradients.push_back(std::move(of_run));
  }
  return {};
}

Floats random(std::int64_t row, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Floats values(static_cast<std::size_t>(kSeqlen * row));
  for (float& value : values) value = normal(generator);
  return values;
}

float largest_difference(const Floats& a, const Floats& b) {
  float largest = 0.0F;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

}  // namespace

int main() {
  Sequence whole{random(kQueryRow, 1), random(kKeyRow, 2), random(kKeyRow, 3), random(kQueryRow, 4)};
  Sequence shared = whole;

  std::vector<std::vector<KeyGradients>> gradients(kRanks);
  std::vector<strobe::Status> results(kRanks + 1);
  std::vector<std::thread> ranks;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    ranks.emplace_back([&, rank, i] { results[i] = run_rank(shared, rank, gradients[i]); });
  }
  for (std::thread& rank : ranks) rank.join();

  // Gradients go to the ranks that have their keys, which add them up in the order of the ranks.
  for (const auto& of_rank : gradients) {
    for (const KeyGradients& part : of_rank) {
      const auto first = static_cast<std::size_t>(part.keys.first * kKeyRow);
      for (std::size_t i = 0; i < part.dk.size(); ++i) {
        shared.dk[first + i] += part.dk[i];
        shared.dv[first + i] += part.dv[i];
      }
    }
  }

  results[kRanks] = compute(whole, {0, kSeqlen}, whole.k, whole.v, 0, whole.dk, whole.dv);
  for (const strobe::Status& status : results) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  const float forward = largest_difference(shared.o, whole.o);
  const float backward = std::max({largest_difference(shared.dq, whole.dq), largest_difference(shared.dk, whole.dk),
                                   largest_difference(shared.dv, whole.dv)});
  std::printf("%d ranks and one call differ by %.1e, gradients by %.1e\n", static_cast<int>(kRanks), forward, backward);
  return forward < 1e-5F && backward < 1e-4F ? 0 : 1;
}
