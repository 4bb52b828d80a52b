// SPDX-License-Identifier: Apache-2.0
#include "sm90/tile_fit.h"

#include "kernels/sm90/forward/smem.h"
#include "sm90/forward_fields.h"

namespace strobe::sm90 {

bool fits(const forward::Config& config) {
  return smem_plan(completed(config)).total_bytes <= (config.ctas_per_sm == 2 ? kMaxSmemBytesOfTwo : kMaxSmemBytes);
}

int tile_registers(const forward::Config& config, int block_n) {
  const int bias = !config.rule.bias || config.bias_stages > 0 ? 0
                   : config.rule.bias_float32                  ? block_n / 2
                                                               : block_n / 4;
  return block_n / 2 + block_n / 4 + config.head_dim_v / 2 + bias;
}

int option_registers(const ScoreRule& rule) {
  const int options = int{rule.alibi} + int{rule.bias} + int{rule.max_logits} + int{rule.softcap} +
                      int{rule.mask_left} + int{rule.tree_mask} + int{rule.varlen || rule.chunked} +
                      int{rule.block_mask != 0};
  return 8 * options + (rule.dropout ? 40 : 0);
}

}  // namespace strobe::sm90
