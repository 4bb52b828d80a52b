// SPDX-License-Identifier: Apache-2.0
// Dropout: its random numbers against Philox written from the paper, its mask in both passes, its scale.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "every_dtype.h"
#include "flat_scores.h"
#include "kernels/math/philox.h"
#include "strobe/dropout.h"

namespace strobe::test {
namespace {

using Words = std::array<std::uint32_t, 4>;

// Section 3.3 of Salmon et al.: a round is two multiplications, each with a word of key.
Words paper_philox(Words counter, std::uint64_t key, int rounds) {
  auto low = static_cast<std::uint32_t>(key);
  auto high = static_cast<std::uint32_t>(key >> 32U);
  for (; rounds > 0; --rounds, low += 0x9E3779B9U, high += 0xBB67AE85U) {
    const std::uint64_t left = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t right = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(right >> 32U) ^ counter[1] ^ low, static_cast<std::uint32_t>(right),
               static_cast<std::uint32_t>(left >> 32U) ^ counter[3] ^ high, static_cast<std::uint32_t>(left)};
  }
  return counter;
}

Words ours(const Words& counter, std::uint64_t key) {
  const PhiloxBlock block = philox({{counter[0], counter[1], counter[2], counter[3]}},
                                   {static_cast<unsigned>(key), static_cast<unsigned>(key >> 32U)});
  return {block.word[0], block.word[1], block.word[2], block.word[3]};
}

// The known answers that come with Random123 for philox4x32 of 7 rounds; the key as one number, high word first.
TEST(Philox, HasTheKnownAnswers) {
  struct Answer {
    Words counter;
    std::uint64_t key;
    Words result;
  };
  const Answer answers[] = {
      {{0, 0, 0, 0}, 0, {0x5F6FB709U, 0x0D893F64U, 0x4F121F81U, 0x4F730A48U}},
      {{0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU},
       0xFFFFFFFFFFFFFFFFU,
       {0x5207DDC2U, 0x45165E59U, 0x4D8EE751U, 0x8C52F662U}},
      {{0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U},
       0x299F31D0A4093822U,
       {0x4DFCCABAU, 0x190A87F0U, 0xC47362BAU, 0xB6B5242AU}},
  };
  for (const Answer& answer : answers) {
    EXPECT_EQ(ours(answer.counter, answer.key), answer.result);
    EXPECT_EQ(paper_philox(answer.counter, answer.key, 7), answer.result);
  }
}

// dropout.h's definition, word for word.
bool kept(float dropout, const RandomState& random, std::uint32_t head, std::uint32_t query, std::uint32_t key) {
  const std::uint64_t philox_key = random.seed ^ (random.offset >> 32U << 32U);
  const auto patch = [](std::uint32_t x) { return x / 16 * 4 + x / 2 % 4; };
  const auto place = [](std::uint32_t x) { return x / 8 % 2 * 2 + x % 2; };
  const Words block =
      paper_philox({patch(key), patch(query), head, static_cast<std::uint32_t>(random.offset)}, philox_key, 7);
  const std::uint32_t slice = block[place(query)] >> (8 * place(key)) & 0xFFU;
  return slice >= std::lround(256.0 * static_cast<double>(dropout));
}

std::vector<std::uint8_t> mask_of(float dropout, const RandomState& random, const std::array<std::int64_t, 4>& shape) {
  std::vector<std::uint8_t> mask(shape[0] * shape[1] * shape[2] * shape[3], 7);
  const Status status = dropout_mask(dropout, random, tensor(mask.data(), {shape[0], shape[1], shape[2], shape[3]}));
  EXPECT_TRUE(status.ok()) << status.message();
  return mask;
}

TEST(DropoutMask, IsWhatThePaperAndTheHeaderSay) {
  constexpr std::array<std::int64_t, 4> kShape{2, 3, 5, 70};
  const RandomState random{.seed = 0x0123456789ABCDEFU, .offset = 0xFEDCBA9876543210U};
  for (const float dropout : {0.004F, 0.1F, 0.5F, 0.99F}) {
    const std::vector<std::uint8_t> mask = mask_of(dropout, random, kShape);
    for (std::size_t index = 0; index < mask.size(); ++index) {
      const auto key = static_cast<std::uint32_t>(index % 70);
      const auto query = static_cast<std::uint32_t>(index / 70 % 5);
      const auto head = static_cast<std::uint32_t>(index / 350);
      ASSERT_EQ(mask[index], kept(dropout, random, head, query, key) ? 1 : 0) << index << " of " << dropout;
    }
  }
}

// Half a million elements: the share of kept ones, overall and in every slice of a block, within 5 standard deviations.
TEST(DropoutMask, KeepsTheShareThatItSays) {
  constexpr float kDropout = 0.3F;
  constexpr double kKept = 179.0 / 256.0;
  const std::vector<std::uint8_t> mask = mask_of(kDropout, {.seed = 11, .offset = 3}, {2, 4, 256, 256});
  std::array<double, 32> kept_at{};
  double pairs = 0.0;
  for (std::size_t index = 0; index < mask.size(); ++index) {
    kept_at[index % 32] += mask[index];
    if (index > 0) pairs += mask[index] * mask[index - 1];
  }
  const double in_slice = static_cast<double>(mask.size()) / 32.0;
  double total = 0.0;
  for (const double count : kept_at) {
    EXPECT_NEAR(count / in_slice, kKept, 5.0 * std::sqrt(0.21 / in_slice));
    total += count;
  }
  EXPECT_NEAR(total / static_cast<double>(mask.size()), kKept,
              5.0 * std::sqrt(0.21 / static_cast<double>(mask.size())));
  EXPECT_NEAR(pairs / static_cast<double>(mask.size()), kKept * kKept,
              5.0 * std::sqrt(0.456 / static_cast<double>(mask.size())))
      << "neighbours depend on each other";
}

TEST(DropoutMask, FollowsEveryBitOfSeedAndOffset) {
  const auto drawn = [](std::uint64_t seed, std::uint64_t offset) {
    return mask_of(0.5F, {.seed = seed, .offset = offset}, {1, 1, 8, 64});
  };
  const std::vector<std::uint8_t> first = drawn(0, 0);
  EXPECT_EQ(drawn(0, 0), first);
  for (std::uint64_t bit = 0; bit < 64; ++bit) {
    EXPECT_NE(drawn(std::uint64_t{1} << bit, 0), first) << "seed bit " << bit;
    EXPECT_NE(drawn(0, std::uint64_t{1} << bit), first) << "offset bit " << bit;
  }
}

TEST(DropoutMask, ReadsSeedAndOffsetWhereTheyLie) {
  const std::uint64_t state[] = {1, 2};
  EXPECT_EQ(mask_of(0.5F, {.on_device = state}, {1, 1, 8, 64}), mask_of(0.5F, {.seed = 1, .offset = 2}, {1, 1, 8, 64}));
}

TEST(DropoutMask, RoundsTheProbabilityToAMultipleOf256ths) {
  const auto kept_of = [](float dropout) {
    double count = 0.0;
    for (const std::uint8_t value : mask_of(dropout, {.seed = 5}, {1, 16, 256, 256})) count += value;
    return count;
  };
  EXPECT_EQ(kept_of(0.0F), 1048576.0);
  EXPECT_EQ(kept_of(0x1p-10F), 1048576.0);               // rounds to 0
  EXPECT_NEAR(kept_of(0x1p-9F), 1044480.0, 5.0 * 64.0);  // rounds to 1 of 256
  EXPECT_NEAR(kept_of(0.998F), 4096.0, 5.0 * 64.0);      // rounds to 255 of 256
}

TEST(DropoutMask, RefusesToDropEverything) {
  std::vector<std::uint8_t> mask(4, 7);
  for (const float dropout : {511.0F / 512.0F, 0.9999999F}) {
    const Status status = dropout_mask(dropout, {}, tensor(mask.data(), {1, 1, 2, 2}));
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_TRUE(status.message().ends_with(
        ": it is rounded to a multiple of 1/256, which must be less than 1: give less than 511/512"));
  }
  EXPECT_EQ(mask, std::vector<std::uint8_t>(4, 7));
  EXPECT_TRUE(dropout_mask(std::nextafter(511.0F / 512.0F, 0.0F), {}, tensor(mask.data(), {1, 1, 2, 2})).ok());
}

// O and dV show which pairs each pass kept: P is 1 / n everywhere, V and dO are identities.
class DropoutInBothPasses : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(DTypes, DropoutInBothPasses, every_dtype(), dtype_name);

TEST_P(DropoutInBothPasses, IsDropoutMasks) {
  const std::int64_t seqlen = 150;
  AttentionCase attention = flat_case(seqlen, seqlen, 2, 3);
  attention.dtype = GetParam();
  attention.options.dropout = 0.25F;
  attention.random = {.seed = 42, .offset = std::uint64_t{1} << 40U};
  FlatScores flat(attention);
  for (std::int64_t index = 0; index < flat.tensors.d_o.size(); ++index) {
    flat.tensors.d_o.set(index, index / seqlen / 3 % seqlen == index % seqlen ? 1.0 : 0.0);
  }
  flat.run_forward();
  flat.run_backward();
  const std::vector<std::uint8_t> mask = mask_of(0.25F, attention.random, {2, 3, seqlen, seqlen});
  const double weight = 1.0 / (0.75 * seqlen);
  for (std::size_t index = 0; index < mask.size(); ++index) {
    const auto at = static_cast<std::int64_t>(index);
    const std::int64_t key = at % seqlen;
    const std::int64_t query = at / seqlen % seqlen;
    const std::int64_t head = at / seqlen / seqlen % 3;
    const std::int64_t entry = at / seqlen / seqlen / 3;
    const double expected = mask[index] * weight;
    ASSERT_NEAR(flat.probability(query, key, head, entry), expected, weight * 0x1p-7) << index;
    const double in_dv = flat.tensors.dv.get(((entry * seqlen + key) * 3 + head) * seqlen + query);
    ASSERT_NEAR(in_dv, expected, weight * 0x1p-7) << index;
  }
  EXPECT_NEAR(flat.lse(0), std::log(150.0), 1e-5);  // knows nothing of dropout
}

// Positions count from the sequence's first, heads through the batch: packing changes nothing.
TEST(Dropout, IsTheSameForPackedSequences) {
  AttentionCase batched = flat_case(40, 40, 2, 2);
  batched.options.dropout = 0.5F;
  AttentionCase packed = batched;
  packed.q = packed.k = {.rows = 80, .cu_seqlens = {0, 40, 80}};
  CaseTensors one(batched);
  CaseTensors other(packed);
  for (std::int64_t index = 0; index < one.q.size(); ++index) {
    other.q.set(index, one.q.get(index));
    other.k.set(index, one.k.get(index));
  }
  for (std::int64_t index = 0; index < one.v.size(); ++index) other.v.set(index, one.v.get(index));
  ASSERT_TRUE(forward(one.forward_arguments(), batched.options).ok());
  ASSERT_TRUE(forward(other.forward_arguments(), packed.options).ok());
  EXPECT_EQ(one.o.element_bytes(), other.o.element_bytes());
}

TEST(Dropout, ReadsSeedAndOffsetWhenItRuns) {
  AttentionCase attention = square(70, 16);
  attention.options.dropout = 0.5F;
  std::array<std::uint64_t, 2> state{3, 4};
  const auto output = [&](const RandomState& random) {
    attention.random = random;
    CaseTensors one(attention);
    EXPECT_TRUE(forward(one.forward_arguments(), attention.options).ok());
    return one.o.element_bytes();
  };
  const auto first = output({.seed = 3, .offset = 4});
  const auto second = output({.seed = 3, .offset = 5});
  EXPECT_NE(first, second);
  EXPECT_EQ(output({.on_device = state.data()}), first);
  state[1] = 5;
  EXPECT_EQ(output({.on_device = state.data()}), second);
}

TEST(Dropout, TakesAlignedStatesAlone) {
  AttentionCase attention = square(4, 8);
  attention.options.dropout = 0.5F;
  const std::array<std::uint64_t, 3> state{};
  const auto* const shifted = reinterpret_cast<const unsigned char*>(state.data()) + 4;
  attention.random = {.on_device = reinterpret_cast<const std::uint64_t*>(shifted)};
  CaseTensors one(attention);
  EXPECT_EQ(forward(one.forward_arguments(), attention.options).message(),
            "random.on_device is not aligned to 8 bytes");
}

TEST(Dropout, OfNothingChangesNoBit) {
  AttentionCase attention = square(70, 16);
  CaseTensors without(attention);
  ASSERT_TRUE(forward(without.forward_arguments(), attention.options).ok());
  attention.options.dropout = 1e-6F;
  CaseTensors with(attention);
  ASSERT_TRUE(forward(with.forward_arguments(), attention.options).ok());
  EXPECT_EQ(with.o.element_bytes(), without.o.element_bytes());
}

using DropoutMatches = EveryDType;

INSTANTIATE_TEST_SUITE_P(DTypes, DropoutMatches, every_dtype(), dtype_name);

TEST_P(DropoutMatches, EveryProbability) {
  for (const float dropout : {0.004F, 0.1F, 0.5F, 0.9F}) {
    expect_matches(square(150, 40), [dropout](AttentionCase& c) {
      c.options = {.causal = CausalMask::bottom_right, .dropout = dropout};
      c.random = {.seed = 3, .offset = 4};
    });
  }
}

TEST_P(DropoutMatches, GroupedHeads) {
  expect_matches(square(70, 24), [](AttentionCase& c) {
    c.heads_q = 6;
    c.options.dropout = 0.3F;
  });
}

/// Sequence 1 and 2 of three, heads 1 and 2 of four.
TEST(DropoutOfAPart, DropsWhatTheWholeDrops) {
  constexpr std::int64_t kRows = 40;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    AttentionCase whole = flat_case(kRows, kRows, 3, 4);
    whole.dtype = dtype;
    whole.options.dropout = 0.4F;
    whole.random = {.seed = 5, .offset = 6};
    AttentionCase part = whole;
    part.batch = part.heads_q = part.heads_kv = 2;
    part.random.first_batch = part.random.first_head = 1;
    part.random.heads = 4;
    FlatScores all(whole);
    FlatScores some(part);
    all.run_forward();
    some.run_forward();
    const std::vector<std::uint8_t> mask = mask_of(0.4F, part.random, {2, 2, kRows, kRows});
    for (std::int64_t index = 0; index < 4 * kRows * kRows; ++index) {
      const std::int64_t entry = index / (2 * kRows * kRows);
      const std::int64_t head = index / (kRows * kRows) % 2;
      const std::int64_t query = index / kRows % kRows;
      const bool kept = all.probability(query, index % kRows, head + 1, entry + 1) > 0.0;
      ASSERT_EQ(some.probability(query, index % kRows, head, entry) > 0.0, kept) << index;
      ASSERT_EQ(mask[static_cast<std::size_t>(index)] != 0, kept) << index;
    }
  }
}

TEST(DropoutOfAPart, MustFitTheWhole) {
  const CaseTensors tensors(flat_case(4, 4, 2, 3));
  const auto message_of = [&](const RandomState& random) {
    ForwardArguments arguments = tensors.forward_arguments();
    arguments.random = random;
    const Status status = forward(arguments, {.dropout = 0.5F});
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    return status.message();
  };
  EXPECT_EQ(message_of({.first_batch = -1}),
            "random has first_batch -1, first_head 0 and heads 0: each must be 0 or more");
  EXPECT_EQ(message_of({.first_head = 1}),
            "random.first_head is 1 and q has 3 heads: random.heads, the heads of all, is 0");
  EXPECT_EQ(message_of({.first_head = 2, .heads = 4}),
            "random.first_head is 2 and q has 3 heads: random.heads, the heads of all, is 4");
  EXPECT_EQ(message_of({.first_batch = 1LL << 31, .heads = 3}),
            "random has first_batch 2147483648 and heads 3: there may be 2^32 heads of sequences in all");
}

}  // namespace
}  // namespace strobe::test
