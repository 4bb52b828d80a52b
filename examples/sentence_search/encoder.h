// SPDX-License-Identifier: Apache-2.0
// The sentence encoder: BERT with Strobe's attention, then the mean of the last layer's tokens, normalised.
// Source: Devlin et al., "BERT" (2018); Reimers and Gurevych, "Sentence-BERT" (2019).
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "model.h"
#include "operands.h"
#include "strobe/attention.h"
#include "strobe/status.h"
#include "token_batch.h"

namespace sentence_search {

/// Sees every layer's attention before it runs: q, k and v are [tokens, heads, head_dim] and live as long as the call.
using AttentionObserver = std::function<void(std::size_t layer, const strobe::ForwardArguments& arguments)>;

class Encoder {
 public:
  /// `threads` work on a batch: 1 or more.
  Encoder(Model model, int threads, Operands operands = Operands::float32)
      : model_(std::move(model)), threads_(threads), operands_(operands) {}

  const ModelConfig& config() const { return model_.config(); }

  /// One unit vector per sentence, [sentences, hidden_size]. A sentence has 1 to config().max_positions tokens, each
  /// below config().vocabulary_size. Fails only if the attention does.
  strobe::Result<std::vector<float>> encode(const TokenBatch& batch, const AttentionObserver& observer = {}) const;

 private:
  Model model_;
  int threads_;
  Operands operands_;
};

}  // namespace sentence_search
