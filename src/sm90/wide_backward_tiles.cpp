// SPDX-License-Identifier: Apache-2.0
#include "sm90/wide_backward_tiles.h"

#include "kernels/sm90/backward/wide/smem.h"

namespace strobe::sm90 {
namespace {

constexpr int kMostPanels = 16;

/// Columns of K or V that the scores' warpgroup has registers for, as compiling shows.
int wide_register_columns(const ScoreRule& rule) {
  if (takes_scores(rule)) return 0;
  if (rule.varlen) return 64;
  if (rule.dropout || rule.bias || rule.block_mask != 0 || has_text(rule)) return 128;
  return 192;  // log: bwd-wide-registers
}

}  // namespace

backward::Config with_wide_tiles(const backward::Config& call) {
  backward::Config config = call;
  config.by_roles = true;
  config.block_m = kRowsPerWarpgroup;
  config.staged_dq = false;
  config.register_columns = wide_register_columns(call.rule);
  config.do_stages = 3;
  config.p_stages = 1;
  config.ds_stages = 2;
  config.q_stages = kMostPanels;
  while (config.q_stages > 2 && main_smem_bytes(config) > kMaxSmemBytes) --config.q_stages;
  return config;
}

}  // namespace strobe::sm90
