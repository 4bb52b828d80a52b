// SPDX-License-Identifier: Apache-2.0
#include "model_calls.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

namespace strobe::program {
namespace {

using ModelJson = nlohmann::json;

/// What attention needs to know of a model.
struct Model {
  DType dtype = DType::bfloat16;
  std::int64_t heads_q = 0;
  std::int64_t heads_kv = 0;
  std::int64_t head_dim = 0;
  float scale = 0.0F;
  float softcap = 0.0F;
  bool has_sink = false;
  std::set<std::int64_t> windows;  // of the kinds of layers: keys to the left that a query sees, -1 for all
};

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

DType dtype_of_model(const ModelJson& config) {
  for (const char* const name : {"dtype", "torch_dtype"}) {
    const auto found = config.find(name);
    if (found != config.end() && *found == "float16") return DType::float16;
    if (found != config.end() && *found == "float32") return DType::float32;
  }
  return DType::bfloat16;
}

std::set<std::int64_t> windows_of(const ModelJson& config) {
  const std::int64_t window = whole(config, "sliding_window", 0);
  const auto used = config.find("use_sliding_window");
  if (window <= 0 || (used != config.end() && *used == false)) return {-1};
  const auto kinds = config.find("layer_types");
  if (kinds == config.end() || !kinds->is_array()) return {-1, window - 1};
  std::set<std::int64_t> windows;
  for (const ModelJson& kind : *kinds) windows.insert(kind == "sliding_attention" ? window - 1 : -1);
  return windows;
}

Result<Model> read_model(const std::filesystem::path& path) {
  const auto invalid = [&](const std::string& why) {
    return Status(StatusCode::invalid_argument, fmt::format("'{}' {}", path.string(), why));
  };
  std::ifstream file(path);
  if (!file.is_open()) return invalid("cannot be read");
  const ModelJson whole_file = ModelJson::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!whole_file.is_object()) return invalid("is no JSON object: a model's config.json is expected");
  const ModelJson& config = text_part(whole_file);
  Model model;
  model.dtype = dtype_of_model(config.contains("dtype") || config.contains("torch_dtype") ? config : whole_file);
  model.heads_q = whole(config, "num_attention_heads", whole(config, "n_head", 0));
  if (model.heads_q <= 0) return invalid("has no num_attention_heads");
  model.heads_kv = whole(config, "num_key_value_heads", model.heads_q);
  const std::int64_t hidden = whole(config, "hidden_size", whole(config, "n_embd", 0));
  model.head_dim = whole(config, "head_dim", hidden / model.heads_q);
  if (model.head_dim <= 0 || model.head_dim > 256) {
    return invalid(fmt::format("has head_dim {}: 1 to 256 are accepted", model.head_dim));
  }
  if (model.heads_kv <= 0 || model.heads_q % model.heads_kv != 0) {
    return invalid(fmt::format("has {} heads and {} key-value heads: the first must be a multiple of the second",
                               model.heads_q, model.heads_kv));
  }
  const double wide = number(config, "query_pre_attn_scalar").value_or(static_cast<double>(model.head_dim));
  model.scale = static_cast<float>(1.0 / std::sqrt(wide > 0.0 ? wide : static_cast<double>(model.head_dim)));
  model.softcap = static_cast<float>(number(config, "attn_logit_softcapping").value_or(0.0));
  model.has_sink = config.value("model_type", "") == "gpt_oss";
  model.windows = windows_of(config);
  return model;
}

/// The calls of one kind of layer.
class LayerCalls {
 public:
  LayerCalls(const Model& model, std::int64_t window, std::vector<AttentionProblem>& calls) : calls_(calls) {
    plain_.dtype = model.dtype;
    plain_.batch = 1;
    plain_.heads_q = model.heads_q;
    plain_.heads_kv = model.heads_kv;
    plain_.head_dim = plain_.head_dim_v = model.head_dim;
    plain_.scale = model.scale;
    plain_.softcap = model.softcap;
    plain_.causal = CausalMask::bottom_right;
    plain_.window.left = window;
    plain_.modifiers.has_sink = model.has_sink;
  }

  /// Whole sequences, as they come from a loader: batched, or packed one behind another.
  void add_prefills(Pass pass) {
    for (const std::int64_t seqlen : {128, 512, 2048, 8192, 32768}) {  // tiles depend on the length
      for (const bool packed : {false, true}) {
        AttentionProblem call = plain_;
        call.pass = pass;
        call.seqlen_q = call.seqlen_k = call.total_q = call.total_k = seqlen;
        call.packed_q = call.packed_k = packed;
        call.wants_lse = pass == Pass::forward;
        call.wants_d_sink = pass == Pass::backward && plain_.modifiers.has_sink;
        calls_.push_back(call);
      }
    }
  }

  /// A token at a time over a cache of used lengths, for few sequences and for many.
  void add_decodes() {
    for (const std::int64_t batch : {1, 8, 64, 256}) {
      for (const std::int64_t page_size : {0, 16, 64, 256}) {
        AttentionProblem call = plain_;
        call.batch = call.total_q = batch;
        call.seqlen_q = 1;
        call.seqlen_k = call.total_k = 4096;
        call.has_seqused_k = true;
        call.page_size = page_size;
        calls_.push_back(call);
      }
    }
  }

 private:
  AttentionProblem plain_;
  std::vector<AttentionProblem>& calls_;
};

}  // namespace

Result<std::vector<AttentionProblem>> model_calls(const std::filesystem::path& path, bool training) {
  const Result<Model> model = read_model(path);
  if (!model.ok()) return model.status();
  std::vector<AttentionProblem> calls;
  for (const std::int64_t window : model->windows) {
    LayerCalls layer(*model, window, calls);
    layer.add_prefills(Pass::forward);
    if (training) layer.add_prefills(Pass::backward);
    if (!training) layer.add_decodes();
  }
  return calls;
}

}  // namespace strobe::program
