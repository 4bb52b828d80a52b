// SPDX-License-Identifier: Apache-2.0
// Texts whose values depend on the tile, the query, the key or the diagonal alone, which kernels of sm90 find once and
// keep: both passes against the float64 reference, around the edges of tiles.
#include <vector>

#include "captured_graph.h"
#include "checked_process.h"
#include "text_cases.h"

namespace strobe::test {
namespace {

class GpuText : public TextTest {};

INSTANTIATE_TEST_SUITE_P(, GpuText, kFamilies, family_name);

TEST_P(GpuText, OfDiagonals) {
  expect_matches({"score + bias[head][k - q + 150]", "", {reals("bias", {kHeads, 500})}});
}

TEST_P(GpuText, OfDiagonalsByTables) {
  expect_matches({"score + bias[head][bucket[max(q - k, 0)]] + slope[head] * (k - q)",
                  "",
                  {reals("bias", {kHeads, 8}), integers("bucket", {400}, 7), reals("slope", {kHeads})}});
}

TEST_P(GpuText, OfQueriesAndKeys) {
  expect_matches({"score * scale[q] + gate[batch][head][q] - gate[batch][head_kv][k]",
                  "",
                  {reals("gate", {2, kHeads, 600}), reals("scale", {500})}});
}

TEST_P(GpuText, OfHeads) {
  expect_matches({"tanh(score * heat[head]) * rise[batch] / log(float(k_len + 2))",
                  "",
                  {reals("heat", {kHeads}), reals("rise", {2})}});
}

TEST_P(GpuText, OfAll) {
  expect_matches({"sigmoid(score + far[k - q + 300]) * of_key[k] + of_query[q] * heat[head]",
                  "(q - k) % 3 != 0 && kind[k] <= kind[q] + 1 && k < first[batch]",
                  {reals("far", {600}), reals("of_key", {650}), reals("of_query", {400}), reals("heat", {kHeads}),
                   integers("kind", {kLongest}, 3), integers("first", {2}, 600)}});
}

TEST_P(GpuText, OfMoreThanIsKept) {
  expect_matches(
      {"score + a[q] * score + b[q] * score * score + c[q] * abs(score) + d[q] * min(score, 1.0) + a[k] * "
       "max(score, 0.5) + b[k] * score + c[k] * abs(score) + d[k] * min(score, 2.0) + a[k - q + 9] * score + "
       "b[q - k + 300] * score + c[k - q + 100] * abs(score)",
       "",
       {without_gradient("a"), without_gradient("b"), without_gradient("c"), without_gradient("d")}});
}

TEST_P(GpuText, MasksOfLines) {
  expect_matches({"", "k <= q + 60 && document[batch][k] == document[batch][q]", {integers("document", {2, 650}, 2)}});
}

TEST_P(GpuText, MasksOfDiagonals) { expect_matches({"", "(q - k) % 4 == 0 || k / 32 == q / 32", {}}); }

// Of more blocks than a warp knows at a time.
TEST_P(GpuText, MasksOfManyBlocks) {
  expect_forward_matches(text_case({"", "(k / 64 + q / 8) % 5 == 0 || k % 3000 < 200", {}}, 64), {{130, 9000}});
  expect_forward_matches(text_case({"", "k > 8900 || k < 30", {}}, 128), {{70, 9000}});
}

// Of which a part is a causal mask or a window.
TEST_P(GpuText, MasksThatSayMore) {
  const TextCase documents{
      "", "k <= q && document[batch][k] == document[batch][q]", {integers("document", {2, kLongest}, 2)}};
  expect_matches(documents);
  AttentionCase attention = text_case(documents, 64);
  attention.options.deterministic = true;
  expect_matches(attention, {{333, 333}});
  expect_matches(text_case({"", "q - k < 100 && k - q <= 40 && (q - k) % 3 != 0", {}}, 128), {{400, 400}});
  expect_matches(text_case({"score - 0.01 * abs(q - k)", "k <= q && k % 5 != 0", {}}, 64), {{300, 300}, {150, 400}});
}

// Whose kernels have registers of their own.
TEST_P(GpuText, MasksOfNarrowHeadsBesideUsedLengths) {
  const std::vector<CapturedTensor> captures{integers("document", {2, kLongest}, 2)};
  for (const char* const mask : {"document[batch][k] == document[batch][q] || k < 20",
                                 "k <= q + 60 && document[batch][k] == document[batch][q]"}) {
    for (const char* const score : {"", "score - 0.01 * abs(q - k)"}) {
      AttentionCase attention = text_case({score, mask, captures}, 64);
      attention.q.seqused = {300, 77};
      attention.k.seqused = {201, 133};
      expect_matches(attention, {{330, 201}});
    }
  }
}

TEST_P(GpuText, MasksTooLongForEachScore) {
  expect_matches(
      {"",
       "(q * k) % 7 < 5 && (q + k * 3) % 5 != 0 || table[(q + k) % 64]",
       {CapturedTensor{.type = {.name = "table", .dtype = DType::uint8, .rank = 1}, .shape = {64}, .largest = 1}}});
}

TEST_P(GpuText, BesideOptions) {
  AttentionCase attention =
      text_case({"score + bias[head][k - q + 150] - gate[k]",
                 "document[k] == document[q] || k < 40",
                 {reals("bias", {kHeads, 300}), reals("gate", {600}), integers("document", {600}, 2)}},
                64);
  attention.options = {.window = {90, 20}, .softcap = 20.0F};
  attention.alibi = Alibi::per_head;
  attention.bias = BiasCase{};
  attention.has_sink = true;
  expect_matches(attention, {{200, 333}, {500, 300}});
}

class GpuUnnormalized : public GpuText {
 protected:
  static AttentionCase unnormalized_case(const TextCase& text, std::int64_t head_dim, DType dtype) {
    AttentionCase attention = text_case(text, head_dim);
    attention.dtype = dtype;
    attention.options.normalize = Normalization::none;
    attention.wants_lse = attention.has_d_lse = false;
    return attention;
  }

  static std::vector<DType> dtypes() {
    if (tested_family() == Family::sm80) return {DType::bfloat16, DType::float16, DType::float32};
    return {DType::bfloat16, DType::float16};
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuUnnormalized, kFamilies, family_name);

TEST_P(GpuUnnormalized, SigmoidAttention) {
  for (const DType dtype : dtypes()) {
    expect_matches(unnormalized_case({"sigmoid(score - log(float(k_len)))", "", {}}, 64, dtype),
                   {{200, 333}, {3, 300}, {450, kLongest}});
    AttentionCase attention = unnormalized_case({"sigmoid(score)", "", {}}, 128, dtype);
    attention.options.causal = CausalMask::bottom_right;
    attention.q.seqused = {300, 77};
    attention.k.seqused = {201, 33};
    expect_matches(attention, {{330, 201}});
  }
}

TEST_P(GpuUnnormalized, SiluOfMaskedPairs) {
  expect_matches(
      unnormalized_case({"score * sigmoid(score) / k_len", "k <= q || (q - k) % 3 == 0", {}}, 64, DType::bfloat16),
      {{200, 333}, {70, kLongest}});
  AttentionCase grouped = unnormalized_case({"score * sigmoid(score) / k_len", "k <= q", {}}, 128, DType::bfloat16);
  grouped.heads_kv = 1;
  grouped.options.deterministic = true;
  expect_matches(grouped, {{130, 130}, {1, kLongest}});
}

TEST_P(GpuUnnormalized, GradientsOfCaptures) {
  expect_matches(unnormalized_case({"sigmoid(score + bias[head][k - q + 150]) * heat[head]",
                                    "",
                                    {reals("bias", {kHeads, 500}), reals("heat", {kHeads})}},
                                   64, DType::bfloat16),
                 {{200, 333}});
}

TEST_P(GpuUnnormalized, LinearAttentionBesideOptions) {
  AttentionCase attention = unnormalized_case({}, 64, DType::bfloat16);
  attention.text.reset();
  expect_matches(attention, {{200, 333}, {2, kLongest}});
  attention.options.window = {90, 20};
  attention.options.softcap = 10.0F;
  attention.alibi = Alibi::per_head;
  attention.bias = BiasCase{.hidden = 0.2};
  expect_matches(attention, {{200, 333}});
}

TEST_P(GpuUnnormalized, ManyKeysOfAFewQueriesAreSplit) {
  AttentionCase attention = unnormalized_case({"score * sigmoid(score) / k_len", "", {}}, 128, DType::bfloat16);
  attention.heads_q = attention.heads_kv = 1;
  attention.batch = 1;
  expect_matches(attention, {{1, 9000}, {20, 5000}});
}

// More keys than one walk of the sm90 kernel has, of diagonals that some reads share.
TEST_P(GpuText, OfLongDiagonals) {
  AttentionCase attention =
      text_case({"score + bias[head][k - q + 600] + near[(k - q) / 64 + 4] * temperature[head]",
                 "",
                 {reals("bias", {kHeads, 3000}), reals("near", {40}), reals("temperature", {kHeads})}},
                64);
  attention.batch = 1;
  expect_matches(attention, {{200, 2500}, {600, 2300}});
  attention.options.causal = CausalMask::bottom_right;
  expect_matches(attention, {{600, 2300}});
}

// Where shared memory is short.
TEST_P(GpuText, OfWideHeads) {
  expect_matches(text_case({"score * heat[head] + bias[head][k - q + 150] - gate[k] + gate[q]",
                            "",
                            {reals("heat", {kHeads}), reals("bias", {kHeads, 300}), reals("gate", {300})}},
                           256),
                 {{200, 333}});
}

// A warp of the sm80 backward keeps the masks of two keys and few queries each side by side.
TEST_P(GpuText, MasksOfWideHeads) {
  for (const char* const mask : {"k <= q + 60 || k % 3 == 0", "k <= q + 60 && (q - k) % 5 != 1"}) {
    expect_matches(text_case({"", mask, {}}, 256), {{200, 333}});
    AttentionCase attention =
        text_case({"score * heat[head] - 0.5 * abs(score)", mask, {reals("heat", {kHeads})}}, 256);
    attention.bias = BiasCase{.sharing = {.per_batch = false}, .wants_gradient = false};
    attention.options.softcap = 5.0F;
    expect_matches(attention, {{200, 333}});
  }
}

// Sums of more diagonals than registers hold.
TEST_P(GpuText, OfManyDiagonals) {
  expect_matches(text_case({"score + a[k - q + 99] + b[k - q + 99] * score + c[q - k + 300] + a[q - k + 200]",
                            "",
                            {reals("a", {400}), reals("b", {400}), reals("c", {400})}},
                           64),
                 {{200, 333}});
}

// Which the kernels of the options compute, of captures in the place of a bias and slopes.
TEST_P(GpuText, ThatABiasAndAlibiSay) {
  const CapturedTensor bias = reals("bias", {kHeads, 200, 333});
  expect_matches(text_case({"20 * tanh(score / 20) + bias[head][q][k]", "", {bias}}, 64), {{200, 333}});
  CapturedTensor slopes = reals("slope", {kHeads});
  slopes.wants_gradient = false;
  expect_matches(text_case({"score + bias[batch][q][k] + slope[head] * (k - q)",
                            "k <= q && k % 7 != 3",
                            {reals("bias", {2, 150, 150}), slopes}},
                           128),
                 {{150, 150}});
}

// Scores between -3 and 3 read several elements, each of which takes the gradient of the pairs that read it.
TEST_P(GpuText, OfAnIndexThatDependsOnTheScore) {
  AttentionCase attention = text_case({"score + table[int(score) + 3]", "", {reals("table", {7})}}, 64);
  attention.batch = 1;
  attention.heads_q = attention.heads_kv = 1;
  attention.q.rows = 40;
  attention.k.rows = 50;
  const TestedVariants variants(true);
  DeviceCase on_device(attention, device());
  on_device.expect_both_right(stream());
  for (const std::int64_t read : {2, 3, 4}) EXPECT_NE(on_device.tensors.d_captures[0].get(read), 0.0) << read;
}

// The gradient of a bias that comes before a text, which multiplies it with the text's derivative but not the
// softcap's.
TEST_P(GpuText, GradientsOfABias) {
  for (const char* const score : {"score * heat[head] - 0.5 * abs(score)", "score + heat[head] * (k - q)"}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      AttentionCase attention = text_case({score, "k <= q + 60 || k % 3 == 0", {reals("heat", {kHeads})}}, head_dim);
      attention.bias = BiasCase{.sharing = {.per_batch = false}};
      attention.bias->wants_gradient = true;
      attention.options.softcap = 5.0F;
      expect_matches(attention, {{200, 333}, {1, 300}});
      attention.options.dropout = 0.25F;
      attention.options.causal = CausalMask::bottom_right;
      expect_matches(attention, {{200, 333}});
    }
  }
}

TEST_P(GpuUnnormalized, GradientsOfABias) {
  AttentionCase attention =
      unnormalized_case({"score * sigmoid(score) / k_len", "k <= q + 50", {}}, 64, DType::bfloat16);
  attention.bias = BiasCase{};
  attention.bias->wants_gradient = true;
  expect_matches(attention, {{200, 333}, {1, 300}});
}

// Derivatives of both signs, which are no marks of what is dropped.
TEST_P(GpuText, UnderDropout) {
  const std::vector<TextCase> texts{
      {"score + bias[head][k - q + 150] - gate[k]", "", {reals("bias", {kHeads, 500}), reals("gate", {600})}},
      {"tanh(score) * heat[head] + gate[q]", "k <= q || k % 3 == 0", {reals("heat", {kHeads}), reals("gate", {500})}},
      {"", "k <= q + 60 && (q - k) % 5 != 1", {}}};
  for (const TextCase& text : texts) {
    for (const bool deterministic : {false, true}) {
      AttentionCase attention = text_case(text, 64);
      attention.options.dropout = 0.3F;
      attention.options.deterministic = deterministic;
      expect_matches(attention, {{200, 333}, {3, 300}});
    }
    for (const std::int64_t head_dim : {128, 256}) {
      AttentionCase attention = text_case(text, head_dim);
      attention.options.dropout = 0.5F;
      attention.options.causal = CausalMask::bottom_right;
      attention.q.seqused = {300, 77};
      attention.k.seqused = {201, 33};
      expect_matches(attention, {{330, 201}});
    }
  }
}

// A graph reads the documents that are there when it is replayed. A stream under capture cannot be waited for.
TEST_P(GpuText, MasksOfDocumentsAreReplayedFromAGraph) {
  constexpr std::int64_t kRows = 333;
  AttentionCase attention = text_case({"score + slope[head] * (k - q)",
                                       "k <= q && document[batch][k] == document[batch][q]",
                                       {reals("slope", {kHeads}), integers("document", {2, kRows}, 2)}},
                                      64);
  attention.q.rows = attention.k.rows = kRows;
  DeviceCase one(attention, device());
  const auto both_passes = [&] {
    one.forward(stream());
    one.backward(stream());
  };
  both_passes();  // loads the kernels, which a capture must not
  const CapturedGraph graph(device(), stream(), both_passes);
  ASSERT_FALSE(HasFailure());
  GuardedTensor& document = one.tensors.captures[1];
  for (const std::int64_t documents : {1, 2, 5}) {
    for (std::int64_t i = 0; i < 2 * kRows; ++i) {
      const std::int64_t place = i % kRows + (i < kRows ? 0 : 50);
      const std::int64_t number = place * documents / kRows;
      document.set(i, static_cast<double>(number));
    }
    one.copies.upload(document);
    one.poison(one.tensors.forward_outputs());
    one.poison(one.tensors.backward_outputs());
    ASSERT_TRUE(graph.launch());
    one.expect_forward_right();
    one.expect_backward_right();
    ASSERT_FALSE(HasFailure()) << documents << " documents";
  }
}

TEST_P(GpuText, IntegersBeyond32BitsAreErrorsWhereTheyAreChecked) {
  expect_passes_checked([&] {
    CapturedTensor document = integers("document", {2, 100}, 2);
    document.type.dtype = DType::int64;
    AttentionCase attention = text_case({"", "document[batch][k] == document[batch][q]", {document}}, 64);
    attention.q.rows = attention.k.rows = 100;
    DeviceCase one(attention, device());
    one.expect_both_right(stream());
    one.tensors.captures[0].set_bits(117, std::uint64_t{1} << 31);
    one.copies.upload(one.tensors.captures[0]);
    const auto place = [&](const GuardedTensor& tensor) { return one.copies.place(tensor); };
    const char* const message = "capture `document`[1][17] is 2147483648: integers of texts have 32 bits";
    const Execution execution = tested_execution(stream().get());
    EXPECT_EQ(forward(one.tensors.forward_arguments(place), {}, execution).message(), message);
    EXPECT_EQ(backward(one.tensors.backward_arguments(place), {}, execution).message(), message);
  });
}

TEST_P(GpuUnnormalized, UnderDropout) {
  const TextCase text{"(score - 0.5) * sigmoid(score + bias[head][k - q + 150]) / k_len",
                      "k <= q + 40",
                      {reals("bias", {kHeads, 500})}};
  for (const DType dtype : dtypes()) {
    for (const std::int64_t head_dim : {64, 128}) {
      AttentionCase attention = unnormalized_case(text, head_dim, dtype);
      attention.options.dropout = 0.25F;
      expect_matches(attention, {{200, 333}});
    }
  }
  AttentionCase linear = unnormalized_case({}, 64, DType::bfloat16);
  linear.text.reset();
  linear.options.dropout = 0.25F;
  expect_matches(linear, {{200, 333}});
}

}  // namespace
}  // namespace strobe::test
