// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "io/safetensors.h"

namespace sentence_search {
namespace {

using Json = nlohmann::json;
using strobe::Result;
using strobe::Status;
using strobe::StatusCode;
using strobe::io::HostTensor;

/// Settings of one JSON file; remembers the first thing that is wrong with it.
class Settings {
 public:
  explicit Settings(std::filesystem::path path) : path_(std::move(path)) {
    std::ifstream file(path_);
    if (!file) fail(StatusCode::invalid_argument, "cannot be read");
    json_ = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (!json_.is_object()) fail(StatusCode::invalid_argument, "is not a JSON object");
  }

  std::size_t size(const char* key) {
    constexpr std::size_t kLargest = 1U << 20U;  // keeps every product of sizes far from overflow
    const auto found = json_.is_object() ? json_.find(key) : json_.end();
    if (found != json_.end() && found->is_number_unsigned()) {
      const auto value = found->get<std::size_t>();
      if (value >= 1 && value <= kLargest) return value;
    }
    fail(StatusCode::invalid_argument, fmt::format("needs '{}', a number from 1 to {}", key, kLargest));
    return 1;
  }

  float positive(const char* key) {
    const auto found = json_.is_object() ? json_.find(key) : json_.end();
    if (found != json_.end() && found->is_number() && found->get<double>() > 0.0) return found->get<float>();
    fail(StatusCode::invalid_argument, fmt::format("needs '{}', a number above 0", key));
    return 1.0F;
  }

  void require(const char* key, std::string_view accepted) {
    if (json_.is_object() && json_.value(key, Json()) == accepted) return;
    fail(StatusCode::unsupported, fmt::format("is of a model whose '{}' is not '{}'", key, accepted));
  }

  void fail(StatusCode code, const std::string& reason) {
    if (status_.ok()) status_ = Status(code, fmt::format("'{}' {}", path_.string(), reason));
  }

  const Status& status() const { return status_; }

 private:
  std::filesystem::path path_;
  Json json_;
  Status status_;
};

Result<ModelConfig> read_config(const std::filesystem::path& folder) {
  Settings model(folder / "config.json");
  model.require("model_type", "bert");
  model.require("hidden_act", "gelu");
  model.require("position_embedding_type", "absolute");
  ModelConfig config;
  config.hidden_size = model.size("hidden_size");
  config.intermediate_size = model.size("intermediate_size");
  config.layers = model.size("num_hidden_layers");
  config.heads = model.size("num_attention_heads");
  config.vocabulary_size = model.size("vocab_size");
  config.max_positions = model.size("max_position_embeddings");
  config.layer_norm_epsilon = model.positive("layer_norm_eps");
  if (config.hidden_size % kWidthMultiple != 0 || config.intermediate_size % kWidthMultiple != 0 ||
      config.hidden_size % config.heads != 0) {
    model.fail(StatusCode::unsupported,
               fmt::format("has sizes {} and {} with {} heads; multiples of {} that the heads divide are accepted",
                           config.hidden_size, config.intermediate_size, config.heads, kWidthMultiple));
  }
  if (!model.status().ok()) return model.status();

  Settings sentence(folder / "sentence_bert_config.json");
  config.max_seqlen = std::min(sentence.size("max_seq_length"), config.max_positions);
  if (config.max_seqlen < 2) sentence.fail(StatusCode::unsupported, "leaves no room for [CLS] and [SEP]");
  if (!sentence.status().ok()) return sentence.status();
  return config;
}

}  // namespace

/// Reads weights by name, checks their shapes and remembers the first thing that is wrong.
class Model::Loader {
 public:
  Loader(Model& model, const strobe::io::SafetensorsFile& file) : model_(model), file_(file) {}

  Status load() {
    const ModelConfig& config = model_.config_;
    model_.embeddings_ = {find("embeddings.word_embeddings.weight", {config.vocabulary_size, config.hidden_size}),
                          find("embeddings.position_embeddings.weight", {config.max_positions, config.hidden_size}),
                          find("embeddings.token_type_embeddings.weight", {kTokenTypes, config.hidden_size}),
                          layer_norm("embeddings.LayerNorm")};
    for (std::size_t i = 0; i < config.layers && status_.ok(); ++i) {
      const std::string prefix = fmt::format("encoder.layer.{}.", i);
      const std::size_t hidden = config.hidden_size;
      const std::size_t inner = config.intermediate_size;
      model_.layers_.push_back(
          {stacked_linear(prefix + "attention.self.", {"query", "key", "value"}),
           linear(prefix + "attention.output.dense", hidden, hidden), layer_norm(prefix + "attention.output.LayerNorm"),
           linear(prefix + "intermediate.dense", inner, hidden), linear(prefix + "output.dense", hidden, inner),
           layer_norm(prefix + "output.LayerNorm")});
    }
    return status_;
  }

 private:
  static constexpr std::size_t kTokenTypes = 2;  // BERT tells the first sentence of a pair from the second

  /// A weight in memory of its own; nothing once something was wrong.
  std::optional<HostTensor> read(const std::string& name, const std::vector<std::size_t>& shape) {
    if (!status_.ok()) return std::nullopt;
    Result<HostTensor> weight = file_.read(name);
    status_ = weight.status();
    if (!status_.ok()) return std::nullopt;
    if (weight->dtype == strobe::DType::float32 && std::ranges::equal(shape, weight->shape)) return std::move(*weight);
    status_ = Status(StatusCode::invalid_argument,
                     fmt::format("weight '{}' is not float32 of the shape that config.json asks for", name));
    return std::nullopt;
  }

  /// The same for as long as the model lives.
  const float* find(const std::string& name, const std::vector<std::size_t>& shape) {
    std::optional<HostTensor> weight = read(name, shape);
    if (!weight) return nullptr;
    model_.weights_.push_back(std::move(weight->bytes));
    return reinterpret_cast<const float*>(model_.weights_.back().data());
  }

  LayerNorm layer_norm(const std::string& name) {
    const std::size_t width = model_.config_.hidden_size;
    return {find(name + ".weight", {width}), find(name + ".bias", {width}), model_.config_.layer_norm_epsilon};
  }

  Linear linear(const std::string& name, std::size_t outputs, std::size_t inputs) {
    return {find(name + ".weight", {outputs, inputs}), find(name + ".bias", {outputs}), outputs, inputs};
  }

  Linear stacked_linear(const std::string& prefix, std::initializer_list<const char*> names) {
    const std::size_t hidden = model_.config_.hidden_size;
    return {stacked(prefix, names, ".weight", {hidden, hidden}), stacked(prefix, names, ".bias", {hidden}),
            names.size() * hidden, hidden};
  }

  /// Weights of one shape, one behind the other.
  const float* stacked(const std::string& prefix, std::initializer_list<const char*> names, const char* suffix,
                       const std::vector<std::size_t>& shape) {
    strobe::io::HostBytes all;
    for (const char* name : names) {
      const std::optional<HostTensor> part = read(prefix + name + suffix, shape);
      if (!part) return nullptr;
      all.insert(all.end(), part->bytes.begin(), part->bytes.end());
    }
    model_.weights_.push_back(std::move(all));
    return reinterpret_cast<const float*>(model_.weights_.back().data());
  }

  Model& model_;
  const strobe::io::SafetensorsFile& file_;
  Status status_;
};

Result<Model> Model::load(const std::filesystem::path& folder) {
  const Result<ModelConfig> config = read_config(folder);
  if (!config.ok()) return config.status();
  const Result<strobe::io::SafetensorsFile> file = strobe::io::SafetensorsFile::open(folder / "model.safetensors");
  if (!file.ok()) return file.status();
  Model model(*config);
  if (Status status = Loader(model, *file).load(); !status.ok()) return status;
  return model;
}

}  // namespace sentence_search
