// SPDX-License-Identifier: Apache-2.0
// What the host hands to a kernel for what happens to a score. Each modifier's part is in its own header, masks that
// are tensors among them. Plain C++ without std headers, shared by host and device.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/score/modifiers/alibi.h"
#include "kernels/score/modifiers/bias.h"
#include "kernels/score/modifiers/block_mask.h"
#include "kernels/score/modifiers/dropout.h"
#include "kernels/score/modifiers/log_length.h"
#include "kernels/score/modifiers/softcap.h"
#include "kernels/score/modifiers/text.h"
#include "kernels/score/modifiers/tree_mask.h"
#include "kernels/score/rule.h"

namespace strobe {

/// What happens to a score.
struct ScoreParams {
  // Scores times this are exponents of 2; of softcap rules it is the cap, not the scale, that makes them.
  float scale_log2;
  SoftcapParams softcap;
  float scale;  // scale_log2 / log2(e): rules whose scores are natural

  AlibiParams alibi;
  const float* sink;  // sink rules: [query heads]
  BiasParams bias;
  DropoutParams dropout;
  LogLengthParams log_length;
};

namespace score {

/// What scores are still to be multiplied with, to be exponents of 2, when modifiers have been applied (apply.h).
constexpr float remaining_scale(const ScoreRule& rule, const ScoreParams& params) {
  return scores_are_natural(rule) ? kLog2E : rule.scale_first ? 1.0F : params.scale_log2;
}

}  // namespace score

/// max_logits rules: the largest score of each sequence and query head, -inf before the kernel.
struct MaxLogitParams {
  float* data;
  long long batch_stride;

  constexpr float* of(int sequence, int head) const { return data + sequence * batch_stride + head; }
};

}  // namespace strobe
