// SPDX-License-Identifier: Apache-2.0
// ALiBi, bias, sink, chunks and the largest scores: values that can be checked by hand, then every dtype against the
// reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "every_dtype.h"
#include "flat_scores.h"

namespace strobe::test {
namespace {

constexpr double kNear = 2e-6;

// exp(score) over the row's sum of it.
std::vector<double> softmax(std::vector<double> scores) {
  double sum = 0.0;
  for (double& score : scores) sum += score = std::exp(score);
  for (double& score : scores) score /= sum;
  return scores;
}

// Rows of probabilities exp(-slope * |query - key|).
void expect_alibi(const FlatScores& flat, double slope, std::int64_t head, std::int64_t entry, std::int64_t shift = 0) {
  for (std::int64_t query = 0; query < 5; ++query) {
    std::vector<double> scores;
    for (std::int64_t key = 0; key < 8; ++key) {
      scores.push_back(-slope * static_cast<double>(std::abs(query + shift - key)));
    }
    const std::vector<double> expected = softmax(scores);
    for (std::int64_t key = 0; key < 8; ++key) {
      EXPECT_NEAR(flat.probability(query, key, head, entry), expected[key], kNear)
          << "head " << head << " query " << query << " key " << key;
    }
  }
}

TEST(Alibi, FallsWithTheDistanceByTheSlopeOfItsHead) {
  AttentionCase attention = flat_case(5, 8, 2, 3);
  attention.alibi = Alibi::per_head;
  FlatScores flat(attention);
  const double slopes[] = {0.5, 0.25, 0.0};
  for (std::int64_t head = 0; head < 3; ++head) flat.tensors.alibi_slopes.set(head, slopes[head]);
  flat.run_forward();
  for (std::int64_t entry = 0; entry < 2; ++entry) {
    for (std::int64_t head = 0; head < 3; ++head) expect_alibi(flat, slopes[head], head, entry, 3);  // 8 - 5
  }
}

TEST(Alibi, MayDifferInEveryBatchEntry) {
  AttentionCase attention = flat_case(5, 8, 2, 2);
  attention.alibi = Alibi::per_batch_and_head;
  FlatScores flat(attention);
  const double slopes[] = {0.125, 0.25, 0.375, 0.5};
  for (std::int64_t index = 0; index < 4; ++index) flat.tensors.alibi_slopes.set(index, slopes[index]);
  flat.run_forward();
  for (std::int64_t index = 0; index < 4; ++index) expect_alibi(flat, slopes[index], index % 2, index / 2, 3);
}

TEST(Alibi, MeasuresFromTheTopLeftDiagonalWhereTheMaskDoes) {
  AttentionCase attention = flat_case(5, 8);
  attention.alibi = Alibi::per_head;
  attention.options.causal = CausalMask::top_left;
  FlatScores flat(attention);
  flat.tensors.alibi_slopes.set(0, 1.0);
  flat.run_forward();
  const std::vector<double> expected = softmax({-2.0, -1.0, 0.0});
  for (std::int64_t key = 0; key < 3; ++key) EXPECT_NEAR(flat.probability(2, key), expected[key], kNear);
  EXPECT_EQ(flat.probability(2, 3), 0.0);
}

TEST(Alibi, MeasuresWithinEachUsedLength) {
  AttentionCase attention = flat_case(5, 8, 2);
  attention.alibi = Alibi::per_head;
  attention.k.seqused = {8, 5};
  FlatScores flat(attention);
  flat.tensors.alibi_slopes.set(0, 1.0);
  flat.run_forward();
  const std::vector<double> expected = softmax({0.0, -1.0, -2.0, -3.0, -4.0});  // as many keys as queries: no shift
  for (std::int64_t key = 0; key < 5; ++key) EXPECT_NEAR(flat.probability(0, key, 0, 1), expected[key], kNear);
}

class BiasSharing : public testing::TestWithParam<Sharing> {};

INSTANTIATE_TEST_SUITE_P(Modifiers, BiasSharing,
                         testing::Values(Sharing{}, Sharing{.per_batch = true}, Sharing{.per_head = true},
                                         Sharing{.per_batch = true, .per_head = true}));

TEST_P(BiasSharing, AddsToTheScores) {
  AttentionCase attention = flat_case(2, 3, 2, 2);
  attention.bias = {.sharing = GetParam()};
  FlatScores flat(attention);
  GuardedTensor& bias = flat.tensors.bias;
  for (std::int64_t index = 0; index < bias.size(); ++index) bias.set(index, 0.25 * static_cast<double>(index % 7));
  flat.run_forward();
  for (std::int64_t entry = 0; entry < 2; ++entry) {
    for (std::int64_t head = 0; head < 2; ++head) {
      const std::int64_t plane =
          (GetParam().per_batch ? entry : 0) * bias.view().shape[1] + (GetParam().per_head ? head : 0);
      for (std::int64_t query = 0; query < 2; ++query) {
        const std::int64_t row = (plane * 2 + query) * 3;
        const std::vector<double> expected = softmax({bias.get(row), bias.get(row + 1), bias.get(row + 2)});
        for (std::int64_t key = 0; key < 3; ++key) {
          EXPECT_NEAR(flat.probability(query, key, head, entry), expected[key], kNear);
        }
      }
    }
  }
}

// One query, two keys with v = (3, -1), p = sigmoid(bias_0 - bias_1): dBias = +-p (1 - p) 4 dO, for every batch entry
// and head that shares it.
TEST_P(BiasSharing, SumsTheGradientOverWhatSharesIt) {
  AttentionCase attention = flat_case(1, 2, 3, 2);
  attention.head_dim_v = 1;
  attention.has_d_lse = false;
  attention.bias = {.sharing = GetParam()};
  FlatScores flat(attention);
  CaseTensors& tensors = flat.tensors;
  for (std::int64_t index = 0; index < tensors.bias.size(); ++index)
    tensors.bias.set(index, index % 2 == 0 ? 1.5 : 0.0);
  for (std::int64_t index = 0; index < tensors.v.size(); ++index) tensors.v.set(index, index / 2 % 2 == 0 ? 3.0 : -1.0);
  for (std::int64_t index = 0; index < tensors.d_o.size(); ++index) tensors.d_o.set(index, 2.0);
  flat.run_forward();
  flat.run_backward();
  const double p = 1.0 / (1.0 + std::exp(-1.5));
  const double shared = (GetParam().per_batch ? 1.0 : 3.0) * (GetParam().per_head ? 1.0 : 2.0);
  for (std::int64_t index = 0; index < tensors.d_bias.size(); ++index) {
    const double expected = (index % 2 == 0 ? 1.0 : -1.0) * p * (1.0 - p) * 4.0 * 2.0 * shared;
    EXPECT_NEAR(tensors.d_bias.get(index), expected, 6.0 * kNear);
  }
}

TEST(Bias, OfMinusInfinityTakesTheKeyAway) {
  AttentionCase attention = flat_case(3, 4);
  attention.bias = {.sharing = {}};
  FlatScores flat(attention);
  for (std::int64_t index = 0; index < 12; ++index) flat.tensors.bias.set(index, 0.0);
  flat.tensors.bias.set(4 + 1, -kInfinity);                                               // one key of query 1
  for (std::int64_t key = 0; key < 4; ++key) flat.tensors.bias.set(8 + key, -kInfinity);  // every key of query 2
  flat.run_forward();
  EXPECT_NEAR(flat.probability(0, 1), 0.25, kNear);
  EXPECT_NEAR(flat.probability(1, 0), 1.0 / 3.0, kNear);
  EXPECT_EQ(flat.probability(1, 1), 0.0);
  for (std::int64_t key = 0; key < 4; ++key) EXPECT_EQ(flat.probability(2, key), 0.0);
  EXPECT_EQ(flat.lse(2), -kInfinity);
  flat.run_backward();
  for (std::int64_t column = 0; column < 4; ++column) EXPECT_EQ(flat.tensors.dq.get(2 * 4 + column), 0.0);
  for (std::int64_t key = 0; key < 4; ++key) EXPECT_EQ(flat.tensors.d_bias.get(8 + key), 0.0);
  EXPECT_EQ(flat.tensors.d_bias.get(4 + 1), 0.0);
}

// A mask that is written as the lowest finite number does what -inf does, as long as another key is there.
TEST(Bias, OfTheLowestNumberHidesAsMinusInfinityDoes) {
  AttentionCase attention = square(70, 24);
  attention.bias = {.sharing = {.per_head = true}};
  CaseTensors infinite(attention);
  CaseTensors lowest(attention);
  for (std::int64_t index = 0; index < infinite.bias.size(); ++index) {
    if (index % 3 == 0) continue;
    infinite.bias.set(index, -kInfinity);
    lowest.bias.set(index, std::numeric_limits<float>::lowest());
  }
  for (CaseTensors* tensors : {&infinite, &lowest}) {
    ASSERT_TRUE(forward(tensors->forward_arguments(), attention.options).ok());
    ASSERT_TRUE(backward(tensors->backward_arguments(), attention.options).ok());
  }
  EXPECT_EQ(infinite.o.element_bytes(), lowest.o.element_bytes());
  EXPECT_EQ(infinite.lse.element_bytes(), lowest.lse.element_bytes());
  EXPECT_EQ(infinite.dk.element_bytes(), lowest.dk.element_bytes());
  EXPECT_EQ(infinite.d_bias.element_bytes(), lowest.d_bias.element_bytes());
}

TEST(Sink, TakesItsShareOfTheRow) {
  AttentionCase attention = flat_case(2, 3, 1, 2);
  attention.has_sink = true;
  FlatScores flat(attention);
  flat.tensors.sink.set(0, std::log(2.0));
  flat.tensors.sink.set(1, -kInfinity);
  flat.run_forward();
  for (std::int64_t key = 0; key < 3; ++key) {
    EXPECT_NEAR(flat.probability(0, key, 0), 1.0 / 5.0, kNear);  // 1 / (3 + 2)
    EXPECT_NEAR(flat.probability(0, key, 1), 1.0 / 3.0, kNear);
  }
  EXPECT_NEAR(flat.lse(0, 0), std::log(5.0), kNear);
  EXPECT_NEAR(flat.lse(0, 1), std::log(3.0), kNear);
}

TEST(Sink, AloneGivesZeroAndItself) {
  AttentionCase attention = flat_case(3, 2);
  attention.options.causal = CausalMask::bottom_right;  // the first query sees nothing
  attention.has_sink = true;
  FlatScores flat(attention);
  flat.tensors.sink.set(0, 1.25);
  flat.run_forward();
  EXPECT_EQ(flat.probability(0, 0), 0.0);
  EXPECT_NEAR(flat.lse(0), 1.25, kNear);
  EXPECT_NEAR(flat.probability(1, 0), 1.0 / (1.0 + std::exp(1.25)), kNear);
}

// One query, one key with v = 3 and score 0: O = 3 p, p = 1 / (1 + e^sink), dSink = -3 dO p (1 - p).
TEST(Sink, HasTheGradientOfASigmoid) {
  AttentionCase attention = flat_case(1, 1, 2);
  attention.has_sink = true;
  attention.has_d_lse = false;
  FlatScores flat(attention);
  flat.tensors.sink.set(0, 0.75);
  for (std::int64_t entry = 0; entry < 2; ++entry) {
    flat.tensors.v.set(entry, 3.0);
    flat.tensors.d_o.set(entry, 2.0);
  }
  flat.run_forward();
  flat.run_backward();
  const double p = 1.0 / (1.0 + std::exp(0.75));
  EXPECT_NEAR(flat.tensors.d_sink.get(0), -2.0 * 3.0 * 2.0 * p * (1.0 - p), 1e-5);  // of both entries
}

TEST(Sink, TakesTheGradientOfLseWhereNoKeyIsSeen) {
  AttentionCase attention = flat_case(2, 1);
  attention.options.causal = CausalMask::bottom_right;
  attention.has_sink = true;
  FlatScores flat(attention);
  flat.tensors.sink.set(0, -20.0);  // next to nothing beside a key
  flat.tensors.d_lse.set(0, 0.5);
  flat.tensors.d_lse.set(1, 0.0);
  flat.run_forward();
  flat.run_backward();
  EXPECT_NEAR(flat.tensors.d_sink.get(0), 0.5, kNear);
}

TEST(Chunk, LetsAQuerySeeItsOwnChunkAlone) {
  AttentionCase attention = flat_case(8, 8);
  attention.options.chunk = 3;
  FlatScores flat(attention);
  flat.run_forward();
  const std::int64_t chunk_sizes[] = {3, 3, 3, 3, 3, 3, 2, 2};
  for (std::int64_t query = 0; query < 8; ++query) {
    for (std::int64_t key = 0; key < 8; ++key) {
      const double expected = query / 3 == key / 3 ? 1.0 / static_cast<double>(chunk_sizes[query]) : 0.0;
      EXPECT_NEAR(flat.probability(query, key), expected, kNear) << query << ' ' << key;
    }
  }
}

// With more keys than queries, the chunk is that of the diagonal; with fewer, the first queries lie before chunk 0.
TEST(Chunk, IsThatOfTheDiagonal) {
  AttentionCase attention = flat_case(2, 7);
  attention.options.chunk = 3;
  FlatScores longer(attention);
  longer.run_forward();
  EXPECT_NEAR(longer.probability(0, 4), 1.0 / 3.0, kNear);  // center 5: keys 3, 4, 5
  EXPECT_EQ(longer.probability(0, 6), 0.0);
  EXPECT_NEAR(longer.probability(1, 6), 1.0, kNear);  // center 6: key 6
  AttentionCase fewer = flat_case(4, 2);
  fewer.options.chunk = 2;
  FlatScores shorter(fewer);
  shorter.run_forward();
  EXPECT_EQ(shorter.lse(1), -kInfinity);  // center -1: chunk -1
  EXPECT_NEAR(shorter.probability(2, 1), 0.5, kNear);
}

TEST(Chunk, AsLargeAs64BitsHidesNothing) {
  AttentionCase attention = flat_case(4, 4);
  attention.options.chunk = std::numeric_limits<std::int64_t>::max();
  FlatScores flat(attention);
  flat.run_forward();
  EXPECT_NEAR(flat.probability(0, 3), 0.25, kNear);
}

TEST(MaxLogits, AreTheLargestVisibleScores) {
  AttentionCase attention = flat_case(3, 3, 2, 2);
  attention.options.causal = CausalMask::bottom_right;
  attention.wants_max_logits = true;
  attention.has_sink = true;
  attention.bias = {.sharing = {.per_batch = true, .per_head = true}};
  FlatScores flat(attention);
  for (std::int64_t index = 0; index < flat.tensors.bias.size(); ++index) {
    const bool visible = index % 3 <= index / 3 % 3;
    const std::int64_t plane = index / 9;
    flat.tensors.bias.set(index, visible ? -0.5 * static_cast<double>(plane) : 50.0);
  }
  for (std::int64_t head = 0; head < 2; ++head) flat.tensors.sink.set(head, 80.0);  // is no score
  flat.run_forward();
  for (std::int64_t plane = 0; plane < 4; ++plane) {
    EXPECT_NEAR(flat.tensors.max_logits.get(plane), -0.5 * static_cast<double>(plane), kNear);
  }
}

TEST(MaxLogits, AreMinusInfinityWhereNothingIsVisible) {
  AttentionCase attention = flat_case(3, 0, 2, 2);
  attention.head_dim_v = 1;
  attention.wants_max_logits = true;
  FlatScores flat(attention);
  flat.run_forward();
  for (std::int64_t plane = 0; plane < 4; ++plane) EXPECT_EQ(flat.tensors.max_logits.get(plane), -kInfinity);
}

using Modifiers = EveryDType;

INSTANTIATE_TEST_SUITE_P(DTypes, Modifiers, every_dtype(), dtype_name);

TEST_P(Modifiers, Alibi) {
  for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right, CausalMask::top_left}) {
    for (const Alibi alibi : {Alibi::per_head, Alibi::per_batch_and_head}) {
      expect_matches(square(150, 40), [&](AttentionCase& c) {
        c.alibi = alibi;
        c.options.causal = causal;
        c.k.rows = 170;
      });
    }
  }
}

TEST_P(Modifiers, Bias) {
  for (const DType dtype : {DType::float32, GetParam()}) {
    for (const double hidden : {0.0, 0.2, 0.95, 1.0}) {
      expect_matches(square(130, 40), [&](AttentionCase& c) {
        c.heads_q = 4;
        c.bias = {.dtype = dtype, .sharing = {.per_head = true}, .hidden = hidden};
      });
    }
  }
}

TEST_P(Modifiers, Sink) {
  for (const std::int64_t seqlen_k : {0, 40, 150}) {
    expect_matches(square(100, 40), [&](AttentionCase& c) {
      c.heads_q = 6;
      c.has_sink = true;
      c.k.rows = seqlen_k;
      c.options.causal = CausalMask::bottom_right;
    });
  }
}

TEST_P(Modifiers, Chunk) {
  for (const std::int64_t chunk : {1, 16, 63, 64, 65, 1000}) {
    for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
      expect_matches(square(140, 24), [&](AttentionCase& c) {
        c.options.chunk = chunk;
        c.options.causal = causal;
        c.k.rows = 200;
      });
    }
  }
}

TEST_P(Modifiers, EveryOptionAtOnce) {
  expect_matches(square(200, 40), [](AttentionCase& c) {
    c.heads_q = 6;
    c.head_dim_v = 24;
    c.q.seqused = {200, 77};
    c.k.seqused = {190, 200};
    c.options = {.scale = 0.2F,
                 .causal = CausalMask::bottom_right,
                 .window = {150, -1},
                 .chunk = 170,
                 .softcap = 20.0F,
                 .dropout = 0.2F,
                 .deterministic = true};
    c.alibi = Alibi::per_batch_and_head;
    c.bias = {.dtype = c.dtype, .sharing = {.per_batch = true}, .hidden = 0.1};
    c.blocks = {.size = 64, .sharing = {.per_head = true}, .visible = 0.7};
    c.has_sink = true;
    c.wants_max_logits = true;
    c.placement.layout = Layout::scrambled;
  });
}

}  // namespace
}  // namespace strobe::test
