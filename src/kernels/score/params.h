// SPDX-License-Identifier: Apache-2.0
// What the host hands to a kernel for the scores' sake: masks that are tensors, transform. Plain C++ without std
// headers, shared by host and device.
#pragma once

#include "kernels/math/philox.h"
#include "kernels/score/modifiers/alibi.h"
#include "kernels/score/modifiers/bias.h"
#include "kernels/score/modifiers/softcap.h"

namespace strobe {

/// Block-mask rules: [batch or 1, query heads or 1, blocks of queries, blocks of keys], 0 hides.
struct BlockMaskParams {
  const unsigned char* data;
  long long batch_stride, head_stride, row_stride;
};

/// Tree-mask rules: a number for each query, [batch, seqlen_q], packed [total_q].
struct TreeParams {
  const unsigned long long* words;
  long long batch_stride;  // packed: 0
};

/// Dropout rules.
struct DropoutParams {
  DropoutKey key;
  const unsigned long long* state;      // null, or seed and offset in memory, instead of the key's
  float keep_probability, keep_factor;  // the probability of being kept, and one over it
};

/// What happens to a score.
struct ScoreParams {
  // Scores times this are exponents of 2; of softcap rules it is the cap, not the scale, that makes them.
  float scale_log2;
  SoftcapParams softcap;
  float scale;  // scale_log2 / log2(e): bias rules

  AlibiParams alibi;
  const float* sink;  // sink rules: [query heads]
  BiasParams bias;
  DropoutParams dropout;
};

}  // namespace strobe
