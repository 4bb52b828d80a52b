// SPDX-License-Identifier: Apache-2.0
// The calls that a model makes.
#pragma once

#include <optional>
#include <vector>

#include "call/problem.h"
#include "model_config.h"

namespace strobe::program {

struct ModelUse {
  bool training = false;                // forwards and backwards, in the place of what serves
  bool served_steps = true;             // what a server packs into one call, where nothing is trained
  std::optional<DType> kv_cache_dtype;  // of caches in 8 bits; else they are of the model's dtype
};

/// Prefills, batched and packed; steps of a query at a time over caches, contiguous and in pages; and what servers pack
/// into one call over pages of 16 rows. With `training` prefills and their backwards. For each kind of layer. Of latent
/// attention prefills have keys and values of each head, and what reads a cache reads its rows, as strobe.mla does.
std::vector<AttentionProblem> model_calls(const ModelConfig& model, const ModelUse& use);

}  // namespace strobe::program
