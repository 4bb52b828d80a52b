// SPDX-License-Identifier: Apache-2.0
// Forward and every gradient against the float64 reference: each option by itself and in company, each extent through
// all its remainders.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "every_dtype.h"
#include "flat_scores.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

using PlainOptions = EveryDType;

INSTANTIATE_TEST_SUITE_P(DTypes, PlainOptions, every_dtype(), dtype_name);

TEST_P(PlainOptions, Full) {
  expect_matches(square(150, 64), [](AttentionCase&) {});
}

TEST_P(PlainOptions, WithoutLse) {
  expect_matches(square(100, 32), [](AttentionCase& c) { c.wants_lse = false; });
}

TEST_P(PlainOptions, Values) {
  for (const Values values : {Values::normal, Values::outliers, Values::small, Values::sharp}) {
    expect_matches(square(130, 48), [values](AttentionCase& c) { c.values = values; });
  }
}

TEST_P(PlainOptions, Layouts) {
  for (const Layout layout : {Layout::contiguous, Layout::padded, Layout::transposed, Layout::scrambled}) {
    expect_matches(square(70, 33), [layout](AttentionCase& c) { c.placement.layout = layout; });
  }
}

TEST_P(PlainOptions, Causal) {
  for (const CausalMask causal : {CausalMask::bottom_right, CausalMask::top_left}) {
    for (const std::int64_t seqlen_k : {40, 100, 190}) {
      expect_matches(square(100, 32), [&](AttentionCase& c) {
        c.options.causal = causal;
        c.k.rows = seqlen_k;
      });
    }
  }
}

TEST_P(PlainOptions, Window) {
  for (const Window window : {Window{0, 0}, Window{5, 3}, Window{70, -1}, Window{-1, 70}, Window{200, 200},
                              Window{kUnbounded, 3}, Window{3, kUnbounded}, Window{kUnbounded, kUnbounded}}) {
    for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right, CausalMask::top_left}) {
      expect_matches(square(110, 16), [&](AttentionCase& c) {
        c.options.window = window;
        c.options.causal = causal;
        c.k.rows = 90;
      });
    }
  }
}

TEST_P(PlainOptions, Softcap) {
  for (const float softcap : {0.5F, 15.0F, 50.0F}) {
    expect_matches(square(90, 32), [softcap](AttentionCase& c) {
      c.options.softcap = softcap;
      c.values = Values::sharp;
    });
  }
}

TEST_P(PlainOptions, LogLength) {
  for (const float softcap : {0.0F, 5.0F}) {
    expect_matches(square(140, 40), [&](AttentionCase& c) {
      c.options = {.causal = CausalMask::bottom_right, .softcap = softcap, .log_length = 20};
      c.k.seqused = {140, 63};
      c.has_sink = true;
      c.wants_max_logits = true;
    });
  }
}

// Three sequences of at most 8 keys, whose scores are 0, 1/4, 2/4, ... but for the factor.
AttentionCase log_length_case() {
  AttentionCase attention = flat_case(2, 8, 3);
  attention.options.scale = 0.25F / static_cast<float>(attention.head_dim);
  attention.options.log_length = 4;
  return attention;
}

void expect_log_length(const AttentionCase& attention, const std::vector<std::int64_t>& lengths) {
  FlatScores flat(attention);
  CaseTensors& tensors = flat.tensors;
  for (std::int64_t index = 0; index < tensors.q.size(); ++index) tensors.q.set(index, 1.0);
  for (std::int64_t index = 0; index < tensors.k.size(); ++index) {
    tensors.k.set(index, static_cast<double>(index / attention.head_dim % 8));
  }
  flat.run_forward();
  for (std::int64_t entry = 0; entry < 3; ++entry) {
    const double factor = std::max(1.0, std::log(static_cast<double>(lengths[entry])) / std::log(4.0));
    std::vector<double> scores;
    for (std::int64_t key = 0; key < lengths[entry]; ++key) scores.push_back(0.25 * factor * static_cast<double>(key));
    double sum = 0.0;
    for (double& score : scores) sum += score = std::exp(score);
    for (std::int64_t key = 0; key < lengths[entry]; ++key) {
      EXPECT_NEAR(flat.probability(1, key, 0, entry), scores[key] / sum, 2e-6) << entry << ' ' << key;
    }
  }
}

TEST(LogLength, MultipliesTheScoresOfLongSequences) { expect_log_length(log_length_case(), {8, 8, 8}); }

TEST(LogLength, CountsTheKeysOfEachSequence) {
  AttentionCase attention = log_length_case();
  attention.k.seqused = {8, 5, 3};  // the last has fewer than log_length
  expect_log_length(attention, {8, 5, 3});
}

TEST_P(PlainOptions, Scale) {
  for (const float scale : {1.0F, 0.01F, 0.0F, -0.3F}) {
    expect_matches(square(90, 32), [scale](AttentionCase& c) {
      c.options.scale = scale;
      c.options.causal = CausalMask::bottom_right;
    });
  }
}

TEST_P(PlainOptions, GroupedHeads) {
  for (const std::int64_t heads_q : {2, 6, 14}) {
    expect_matches(square(60, 24), [heads_q](AttentionCase& c) {
      c.heads_q = heads_q;
      c.options.causal = CausalMask::bottom_right;
    });
  }
}

TEST_P(PlainOptions, OneKeyHeadForAllQueryHeadsAndOneQuery) {
  expect_matches(square(60, 24), [](AttentionCase& c) {
    c.heads_q = 16;
    c.heads_kv = 1;
    c.q.rows = 1;
  });
}

TEST_P(PlainOptions, HeadDims) {
  for (const std::int64_t head_dim :
       {1, 2, 3, 7, 8, 15, 31, 40, 63, 65, 80, 96, 127, 129, 192, 255, 256, 300, 511, 512}) {
    expect_matches(square(37, head_dim), [](AttentionCase&) {});
  }
}

TEST_P(PlainOptions, HeadDimOfV) {
  for (const auto& [head_dim, head_dim_v] : {std::pair{192, 128}, {64, 256}, {1, 512}, {512, 1}, {33, 7}, {7, 33}}) {
    expect_matches(square(50, head_dim), [v = head_dim_v](AttentionCase& c) { c.head_dim_v = v; });
  }
}

TEST_P(PlainOptions, EverySeqlenOfQueries) {
  for (std::int64_t seqlen_q = 0; seqlen_q <= 140; ++seqlen_q) {
    expect_matches(square(9, 5), [seqlen_q](AttentionCase& c) { c.q.rows = seqlen_q; });
  }
}

TEST_P(PlainOptions, EverySeqlenOfKeys) {
  for (std::int64_t seqlen_k = 0; seqlen_k <= 300; ++seqlen_k) {
    expect_matches(square(9, 5), [seqlen_k](AttentionCase& c) { c.k.rows = seqlen_k; });
  }
}

TEST_P(PlainOptions, PackedSequences) {
  for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
    expect_matches(square(0, 32), [causal](AttentionCase& c) {
      c.batch = 4;
      c.q = {.rows = 160, .cu_seqlens = {0, 1, 1, 90, 150}};
      c.k = {.rows = 230, .cu_seqlens = {0, 70, 80, 80, 230}, .max_seqlen = 150};
      c.options.causal = causal;
    });
  }
}

TEST_P(PlainOptions, PackedQueriesOverBatchedKeys) {
  expect_matches(square(80, 32), [](AttentionCase& c) {
    c.q = {.rows = 60, .cu_seqlens = {0, 20, 55}};
    c.options.causal = CausalMask::bottom_right;
  });
}

TEST_P(PlainOptions, UsedLengths) {
  expect_matches(square(100, 32), [](AttentionCase& c) {
    c.q.seqused = {100, 33};
    c.k.seqused = {0, 71};
    c.options.causal = CausalMask::bottom_right;
  });
  expect_matches(square(0, 32), [](AttentionCase& c) {
    c.q = {.rows = 100, .cu_seqlens = {0, 50, 90}, .seqused = {7, 40}};
    c.k = {.rows = 120, .cu_seqlens = {0, 60, 120}, .seqused = {60, 1}};
  });
}

TEST_P(PlainOptions, EveryMaskAndLengthAtOnce) {
  expect_matches(square(0, 40), [](AttentionCase& c) {
    c.heads_q = 6;
    c.head_dim_v = 24;
    c.q = {.rows = 210, .cu_seqlens = {0, 120, 205}, .seqused = {110, 85}};
    c.k = {.rows = 260, .cu_seqlens = {0, 140, 260}, .seqused = {140, 100}};
    c.options = {.scale = 0.2F, .causal = CausalMask::bottom_right, .window = {64, 0}, .softcap = 20.0F};
    c.placement.layout = Layout::scrambled;
  });
}

TEST_P(PlainOptions, NothingToCompute) {
  expect_matches(square(5, 8), [](AttentionCase& c) { c.batch = 0; });
  expect_matches(square(0, 8), [](AttentionCase&) {});
  expect_matches(square(5, 8), [](AttentionCase& c) { c.heads_q = c.heads_kv = 0; });
  expect_matches(square(5, 8), [](AttentionCase& c) { c.k.rows = 0; });
  expect_matches(square(5, 8), [](AttentionCase& c) { c.q.rows = 0; });
  expect_matches(square(0, 8), [](AttentionCase& c) {
    c.batch = 0;
    c.q = {.rows = 3, .cu_seqlens = {0}};
    c.k = {.rows = 4, .cu_seqlens = {0}};
  });
  expect_matches(square(0, 8), [](AttentionCase& c) {
    c.batch = 3;
    c.q = {.rows = 0, .cu_seqlens = {0, 0, 0, 0}};
    c.k = {.rows = 4, .cu_seqlens = {0, 0, 4, 4}};
  });
}

}  // namespace
}  // namespace strobe::test
