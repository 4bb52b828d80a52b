// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU in C++: a causal forward with grouped heads, then its gradients.
#include <strobe/attention.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

int main() {
  // [batch, seqlen, heads, head_dim]; two query heads read each key head.
  const std::int64_t batch = 1, seqlen = 512, heads_q = 4, heads_kv = 2, head_dim = 64;
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  const auto random = [&](std::int64_t heads) {
    std::vector<float> values(static_cast<std::size_t>(batch * seqlen * heads * head_dim));
    for (float& value : values) value = normal(generator);
    return values;
  };
  const std::vector<float> q = random(heads_q), k = random(heads_kv), v = random(heads_kv), d_o = random(heads_q);
  std::vector<float> o(q.size()), dq(q.size()), dk(k.size()), dv(v.size());
  std::vector<float> lse(static_cast<std::size_t>(batch * heads_q * seqlen));  // the backward needs it

  // Views: Strobe reads and writes the caller's memory where it is.
  const auto queries = [&](auto& x) { return strobe::tensor(x.data(), {batch, seqlen, heads_q, head_dim}); };
  const auto keys = [&](auto& x) { return strobe::tensor(x.data(), {batch, seqlen, heads_kv, head_dim}); };
  const auto lse_view = strobe::tensor(lse.data(), {batch, heads_q, seqlen});
  const strobe::AttentionOptions options{.causal = strobe::CausalMask::bottom_right};

  strobe::Status status =
      strobe::forward({.q = queries(q), .k = keys(k), .v = keys(v), .o = queries(o), .lse = lse_view}, options);
  if (status.ok()) {
    status = strobe::backward({.q = queries(q),
                               .k = keys(k),
                               .v = keys(v),
                               .o = queries(o),
                               .lse = lse_view,
                               .d_o = queries(d_o),
                               .dq = queries(dq),
                               .dk = keys(dk),
                               .dv = keys(dv)},
                              options);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }

  // The first query sees the first key alone: its output is that key's value, and its query has no gradient.
  const float error = std::fabs(o[0] - v[0]) + std::fabs(dq[0]);
  std::printf("o[0] = %.6f, v[0] = %.6f, dq[0] = %.6f\n", o[0], v[0], dq[0]);
  return error < 1e-5F ? 0 : 1;
}
