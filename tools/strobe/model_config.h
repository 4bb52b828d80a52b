// SPDX-License-Identifier: Apache-2.0
// What attention needs to know of a model, from its config.json as transformers writes it.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe::program {

/// What the calls of layers differ in.
struct ModelLayer {
  std::int64_t heads_kv = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;
  std::int64_t window = -1;  // keys to the left that a query sees; -1: all
  std::int64_t chunk = 0;    // keys of a chunk, outside of which a query sees none; 0: there are none

  auto operator<=>(const ModelLayer&) const = default;
};

/// Columns of a row that latent attention keeps for a token.
struct LatentRow {
  std::int64_t latent = 0;  // 0: the model has no latent attention
  std::int64_t rope = 0;
};

struct ModelConfig {
  DType dtype = DType::bfloat16;
  std::int64_t heads_q = 0;
  float scale = 0.0F;
  float softcap = 0.0F;
  bool has_sink = false;
  std::set<ModelLayer> layers;  // each kind once; of latent attention with keys and values of each head
  LatentRow row;
  std::string not_read;  // one line on fields that say more of the model's attention than is read; or empty
};

/// invalid_argument names what the file lacks, or has and must not.
Result<ModelConfig> read_model_config(const std::filesystem::path& path);

}  // namespace strobe::program
