// SPDX-License-Identifier: Apache-2.0
// A trained BERT encoder as its folder holds it: settings and weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/host_tensor.h"
#include "row_kernels.h"
#include "strobe/status.h"

namespace sentence_search {

struct ModelConfig {
  std::size_t hidden_size = 0;
  std::size_t intermediate_size = 0;
  std::size_t layers = 0;
  std::size_t heads = 0;
  std::size_t vocabulary_size = 0;
  std::size_t max_positions = 0;  // rows of the position table
  std::size_t max_seqlen = 0;     // tokens of a sentence that the model reads, [CLS] and [SEP] included
  float layer_norm_epsilon = 0.0F;

  std::size_t head_dim() const { return hidden_size / heads; }
};

/// y = x weight^T + bias, weight [outputs, inputs] row-major.
struct Linear {
  const float* weight;
  const float* bias;
  std::size_t outputs;
  std::size_t inputs;
};

struct Embeddings {
  const float* word;      // [vocabulary_size, hidden_size]
  const float* position;  // [max_positions, hidden_size]
  const float* type;      // [hidden_size]: a single sentence is all of type 0
  LayerNorm norm;
};

struct Layer {
  Linear qkv;  // query, key and value projections stacked: one product instead of three
  Linear attention_output;
  LayerNorm attention_norm;
  Linear intermediate;
  Linear output;
  LayerNorm output_norm;
};

/// Owns its weights, which moves keep in place.
class Model {
 public:
  /// Reads config.json, sentence_bert_config.json and model.safetensors of `folder`.
  /// invalid_argument or unsupported, in a sentence that names the file, when they do not make a BERT encoder with
  /// GELU, learnt positions and sizes that are multiples of kWidthMultiple.
  static strobe::Result<Model> load(const std::filesystem::path& folder);

  const ModelConfig& config() const { return config_; }
  const Embeddings& embeddings() const { return embeddings_; }
  const std::vector<Layer>& layers() const { return layers_; }

 private:
  class Loader;
  explicit Model(ModelConfig config) : config_(config) {}

  ModelConfig config_;
  std::vector<strobe::io::HostBytes> weights_;
  Embeddings embeddings_{};
  std::vector<Layer> layers_;
};

}  // namespace sentence_search
