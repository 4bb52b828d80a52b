// SPDX-License-Identifier: Apache-2.0
// The encoder against token ids and embeddings of another implementation, which make_reference.py has written.
#include "encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "tokenizer.h"

namespace sentence_search {
namespace {

struct Reference {
  std::vector<std::string> sentences;
  std::vector<std::vector<std::int32_t>> token_ids;
  std::vector<std::vector<float>> embeddings;
};

template <class T>
const T* data_of(const strobe::Result<strobe::io::HostTensor>& tensor) {
  EXPECT_TRUE(tensor.ok()) << tensor.status().message();
  return reinterpret_cast<const T*>(tensor->bytes.data());
}

Reference read_reference() {
  const std::filesystem::path folder = REFERENCE_FOLDER;
  Reference reference;
  std::ifstream text(folder / "sentences.txt");
  for (std::string line; std::getline(text, line);) reference.sentences.push_back(line);

  const auto file = strobe::io::SafetensorsFile::open(folder / "reference.safetensors");
  EXPECT_TRUE(file.ok()) << file.status().message();
  const auto all_lengths = file->read("cu_seqlens"), all_ids = file->read("token_ids"), all = file->read("embeddings");
  const auto* const cu_seqlens = data_of<std::int32_t>(all_lengths);
  const auto* const token_ids = data_of<std::int32_t>(all_ids);
  const auto* const embeddings = data_of<float>(all);
  const auto width = static_cast<std::size_t>(all->shape[1]);
  EXPECT_EQ(all->shape[0], reference.sentences.size());
  for (std::size_t i = 0; i < reference.sentences.size(); ++i) {
    reference.token_ids.emplace_back(token_ids + cu_seqlens[i], token_ids + cu_seqlens[i + 1]);
    reference.embeddings.emplace_back(embeddings + i * width, embeddings + (i + 1) * width);
  }
  return reference;
}

double cosine(const float* a, const std::vector<float>& b) {
  double dot = 0.0;
  double squares_a = 0.0;
  double squares_b = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    dot += double{a[i]} * b[i];
    squares_a += double{a[i]} * a[i];
    squares_b += double{b[i]} * b[i];
  }
  return dot / std::sqrt(squares_a * squares_b);
}

class AllMiniLm : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_TRUE(std::filesystem::exists(folder() / "model.safetensors"))
        << "the model is not there; scripts/fetch-model.sh downloads it";
  }

  static Tokenizer tokenizer() {
    auto loaded = Tokenizer::load(folder() / "vocab.txt");
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    return std::move(*loaded);
  }

  static Encoder encoder(int threads, Operands operands = Operands::float32) {
    auto model = Model::load(folder());
    EXPECT_TRUE(model.ok()) << model.status().message();
    return {std::move(*model), threads, operands};
  }

  static std::filesystem::path folder() { return SENTENCE_SEARCH_MODEL; }
};

TEST_F(AllMiniLm, TokenIdsEqualTheReference) {
  const Reference reference = read_reference();
  const Tokenizer tokens = tokenizer();
  ASSERT_GE(reference.sentences.size(), 60U);
  for (std::size_t i = 0; i < reference.sentences.size(); ++i) {
    EXPECT_EQ(tokens.encode(reference.sentences[i], 256), reference.token_ids[i]) << reference.sentences[i];
  }
}

TEST_F(AllMiniLm, EmbeddingsEqualTheReference) {
  const Reference reference = read_reference();
  TokenBatch batch;
  for (const auto& token_ids : reference.token_ids) batch.append(token_ids);
  const Encoder model = encoder(/*threads=*/2);
  ASSERT_EQ(model.config().max_seqlen, 256U);

  const auto embeddings = model.encode(batch);
  ASSERT_TRUE(embeddings.ok()) << embeddings.status().message();
  const std::size_t width = model.config().hidden_size;
  ASSERT_EQ(embeddings->size(), reference.sentences.size() * width);
  for (std::size_t i = 0; i < reference.sentences.size(); ++i) {
    ASSERT_EQ(reference.embeddings[i].size(), width);
    EXPECT_GE(cosine(embeddings->data() + i * width, reference.embeddings[i]), 0.9999) << reference.sentences[i];
  }
}

TEST_F(AllMiniLm, NeitherThreadsNorNeighboursChangeAnEmbedding) {
  const Tokenizer tokens = tokenizer();
  const std::vector<std::string> sentences = {"In the beginning", "the waters under the heaven", "Let there be light."};
  TokenBatch together;
  for (const std::string& sentence : sentences) together.append(tokens.encode(sentence, 256));
  const auto expected = encoder(/*threads=*/1).encode(together);
  ASSERT_TRUE(expected.ok()) << expected.status().message();

  const Encoder three_threads = encoder(/*threads=*/3);
  EXPECT_EQ(*three_threads.encode(together), *expected);
  const std::size_t width = three_threads.config().hidden_size;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    TokenBatch alone;
    alone.append(tokens.encode(sentences[i], 256));
    const auto embedding = three_threads.encode(alone);
    ASSERT_TRUE(embedding.ok()) << embedding.status().message();
    const std::vector<float> in_batch(expected->begin() + static_cast<std::ptrdiff_t>(i * width),
                                      expected->begin() + static_cast<std::ptrdiff_t>((i + 1) * width));
    // Products of other heights may sum in another order.
    EXPECT_GE(cosine(embedding->data(), in_batch), 1.0 - 1e-9);
  }
}

/// 1 less the cosine to the reference of the sentence that is off the most.
struct OperandsCase {
  Operands operands;
  const char* name;
  double most;
};

TEST_F(AllMiniLm, EmbeddingsStayCloseWithFewerBits) {
  const Reference reference = read_reference();
  TokenBatch batch;
  for (const auto& token_ids : reference.token_ids) batch.append(token_ids);
  for (const auto& [operands, name, most] :
       {OperandsCase{Operands::bfloat16, "bfloat16", 1e-5}, OperandsCase{Operands::int8, "int8", 1.5e-4},
        OperandsCase{Operands::float8_e4m3, "float8_e4m3", 1.5e-3}}) {
    const Encoder model = encoder(/*threads=*/2, operands);
    const auto embeddings = model.encode(batch);
    ASSERT_TRUE(embeddings.ok()) << embeddings.status().message();
    double worst = 0.0;
    double sum = 0.0;
    for (std::size_t i = 0; i < reference.sentences.size(); ++i) {
      const float* embedding = embeddings->data() + i * model.config().hidden_size;
      const double distance = 1.0 - cosine(embedding, reference.embeddings[i]);
      worst = std::max(worst, distance);
      sum += distance;
    }
    RecordProperty(name, std::to_string(worst));
    EXPECT_LE(worst, most) << name << ", mean " << sum / static_cast<double>(reference.sentences.size());
  }
}

TEST_F(AllMiniLm, RejectsAFolderWithoutAModel) {
  const auto model = Model::load(REFERENCE_FOLDER);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().message(), "'" REFERENCE_FOLDER "/config.json' cannot be read");
}

}  // namespace
}  // namespace sentence_search
