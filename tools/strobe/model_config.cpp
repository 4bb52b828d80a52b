// SPDX-License-Identifier: Apache-2.0
#include "model_config.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "call/limits.h"

namespace strobe::program {
namespace {

using ModelJson = nlohmann::json;

constexpr const char* kSliding = "sliding_attention";
constexpr const char* kChunked = "chunked_attention";
constexpr const char* kFull = "full_attention";

Status rejected(const std::string& why) { return {StatusCode::invalid_argument, why}; }

/// The text model's part of the configuration of one of several media.
const ModelJson& text_part(const ModelJson& config) {
  const auto nested = config.find("text_config");
  return nested != config.end() && nested->is_object() ? *nested : config;
}

std::optional<double> number(const ModelJson& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::int64_t whole(const ModelJson& config, const char* name, std::int64_t otherwise) {
  const std::optional<double> value = number(config, name);
  return value.has_value() && std::abs(*value) < 1e9 ? static_cast<std::int64_t>(*value) : otherwise;
}

/// Whether the field is there with that value, and of that type.
template <class Value>
bool is(const ModelJson& config, const char* name, const Value& value) {
  const auto found = config.find(name);
  return found != config.end() && *found == value;
}

DType dtype_of_model(const ModelJson& config) {
  for (const char* const name : {"dtype", "torch_dtype"}) {
    if (is(config, name, "float16")) return DType::float16;
    if (is(config, name, "float32")) return DType::float32;
  }
  return DType::bfloat16;
}

/// Of each layer, or each kind once where the file does not say which layer is of which.
std::vector<std::string> kinds_of(const ModelJson& config) {
  std::vector<std::string> kinds;
  const auto types = config.find("layer_types");
  if (types != config.end() && types->is_array()) {
    for (const ModelJson& type : *types) kinds.push_back(type.is_string() ? type.get<std::string>() : kFull);
  }
  if (!kinds.empty()) return kinds;
  kinds.emplace_back(kFull);
  if (whole(config, "sliding_window", 0) > 0) kinds.emplace_back(kSliding);
  if (whole(config, "attention_chunk_size", 0) > 0) kinds.emplace_back(kChunked);
  return kinds;
}

/// What a layer of that kind has of its own in place of what the model has.
ModelLayer layer_of(const ModelJson& config, ModelLayer layer, const std::string& kind) {
  if (kind == kSliding && !is(config, "use_sliding_window", false)) {
    if (const std::int64_t window = whole(config, "sliding_window", 0); window > 0) layer.window = window - 1;
  }
  if (kind == kChunked) layer.chunk = whole(config, "attention_chunk_size", 0);
  if (kind == kFull && number(config, "global_head_dim").has_value()) {
    layer.head_dim = layer.head_dim_v = whole(config, "global_head_dim", 0);
    // transformers: a model that has no attention_k_eq_v has the global layers' heads, too.
    if (!is(config, "attention_k_eq_v", false)) {
      layer.heads_kv = whole(config, "num_global_key_value_heads", layer.heads_kv);
    }
  }
  return layer;
}

/// What per_layer_config says of a layer by its number.
ModelLayer with_own_sizes(const ModelJson& config, ModelLayer layer, std::size_t number_of_layer) {
  const auto layers = config.find("per_layer_config");
  if (layers == config.end() || !layers->is_object()) return layer;
  const auto own = layers->find(std::to_string(number_of_layer));
  if (own == layers->end() || !own->is_object()) return layer;
  layer.heads_kv = whole(*own, "num_key_value_heads", layer.heads_kv);
  const std::int64_t head_dim = whole(*own, "head_dim", 0);
  if (head_dim != 0) layer.head_dim = layer.head_dim_v = head_dim;
  return layer;
}

Status check(const ModelLayer& layer, std::int64_t heads_q) {
  if (layer.head_dim <= 0 || layer.head_dim > kMaxHeadDim) {
    return rejected(fmt::format("has head_dim {}: 1 to {} are accepted", layer.head_dim, kMaxHeadDim));
  }
  if (layer.head_dim_v <= 0 || layer.head_dim_v > kMaxHeadDimV) {
    return rejected(
        fmt::format("has {} columns of a value's head: 1 to {} are accepted", layer.head_dim_v, kMaxHeadDimV));
  }
  if (layer.heads_kv <= 0 || heads_q % layer.heads_kv != 0) {
    return rejected(fmt::format("has {} heads and {} key-value heads: the first must be a multiple of the second",
                                heads_q, layer.heads_kv));
  }
  return {};
}

/// Sizes of heads before absorption, and the row that a token has.
Result<ModelConfig> with_latents(const ModelJson& config, ModelConfig model) {
  const std::int64_t nope = whole(config, "qk_nope_head_dim", 0);
  model.row = {.latent = whole(config, "kv_lora_rank", 0), .rope = whole(config, "qk_rope_head_dim", 0)};
  const std::int64_t head_dim_v = whole(config, "v_head_dim", 0);
  if (nope <= 0 || model.row.rope <= 0 || head_dim_v <= 0) {
    return rejected(
        "has kv_lora_rank, of latent attention, without qk_nope_head_dim, qk_rope_head_dim or v_head_dim: record a run "
        "(STROBE_RECORD)");
  }
  const std::int64_t row = model.row.latent + model.row.rope;
  if (model.row.latent > kMaxHeadDimV || row > kMaxHeadDim) {
    return rejected(fmt::format("has kv_lora_rank {} and qk_rope_head_dim {}: up to {}, and {} together, are accepted",
                                model.row.latent, model.row.rope, kMaxHeadDimV, kMaxHeadDim));
  }
  model.layers = {{.heads_kv = model.heads_q, .head_dim = nope + model.row.rope, .head_dim_v = head_dim_v}};
  return model;
}

ModelConfig with_layers(const ModelJson& config, ModelConfig model) {
  const std::int64_t hidden = whole(config, "hidden_size", whole(config, "n_embd", 0));
  ModelLayer plain;
  plain.heads_kv = whole(config, "num_key_value_heads", model.heads_q);
  plain.head_dim = whole(config, "head_dim", hidden / model.heads_q);
  plain.head_dim_v = whole(config, "v_head_dim", plain.head_dim);
  const std::vector<std::string> kinds = kinds_of(config);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    model.layers.insert(with_own_sizes(config, layer_of(config, plain, kinds[i]), i));
  }
  return model;
}

float scale_of(const ModelJson& config, const ModelLayer& layer) {
  const double wide = number(config, "query_pre_attn_scalar").value_or(0.0);
  return static_cast<float>(1.0 / std::sqrt(wide > 0.0 ? wide : static_cast<double>(layer.head_dim)));
}

/// Fields of models whose calls are others than those of the fields that are read.
std::string not_read(const ModelJson& config) {
  std::string names;
  for (const char* const name : {"swa_head_dim", "swa_v_head_dim", "swa_num_attention_heads", "swa_num_key_value_heads",
                                 "index_topk", "dual_chunk_attention_config"}) {
    const auto found = config.find(name);
    if (found == config.end() || found->is_null()) continue;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names.empty() ? names : "not read: " + names + "; record a run (STROBE_RECORD) for the calls that follow";
}

Result<ModelConfig> model_of(const ModelJson& whole_file) {
  if (!whole_file.is_object()) return rejected("is no JSON object: a model's config.json is expected");
  const ModelJson& config = text_part(whole_file);
  ModelConfig model;
  model.dtype = dtype_of_model(config.contains("dtype") || config.contains("torch_dtype") ? config : whole_file);
  model.heads_q = whole(config, "num_attention_heads", whole(config, "n_head", 0));
  if (model.heads_q <= 0) return rejected("has no num_attention_heads");
  model.softcap = static_cast<float>(number(config, "attn_logit_softcapping").value_or(0.0));
  model.has_sink = is(config, "model_type", "gpt_oss");
  model.not_read = not_read(config);
  Result<ModelConfig> with_sizes =
      whole(config, "kv_lora_rank", 0) > 0 ? with_latents(config, model) : with_layers(config, model);
  if (!with_sizes.ok()) return with_sizes;
  for (const ModelLayer& layer : with_sizes->layers) {
    if (Status status = check(layer, model.heads_q); !status.ok()) return status;
  }
  with_sizes->scale = scale_of(config, *with_sizes->layers.begin());
  return with_sizes;
}

}  // namespace

Result<ModelConfig> read_model_config(const std::filesystem::path& path) {
  const auto of_file = [&](const std::string& why) { return fmt::format("'{}' {}", path.string(), why); };
  std::ifstream file(path);
  if (!file.is_open()) return rejected(of_file("cannot be read"));
  Result<ModelConfig> model = model_of(ModelJson::parse(file, nullptr, /*allow_exceptions=*/false));
  if (!model.ok()) return rejected(of_file(model.status().message()));
  if (!model->not_read.empty()) model->not_read = of_file("is read in part; " + model->not_read);
  return model;
}

}  // namespace strobe::program
