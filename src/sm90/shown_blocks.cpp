// SPDX-License-Identifier: Apache-2.0
#include "sm90/shown_blocks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "call/arithmetic.h"
#include "call/visible_keys.h"
#include "gpu/plan/text_mask.h"
#include "sm90/dealt_tiles.h"

namespace strobe::sm90 {

bool walks_by_text(const ScoreRule& rule) { return hides_by_text(rule) && rule.block_mask != 0; }

bool knows_shown_blocks(const AttentionProblem& problem, const forward::Config& config) {
  return walks_by_text(config.rule) && !config.rule.varlen && gpu::knows_text_mask(problem);
}

std::vector<double> shown_blocks(const AttentionProblem& problem, const forward::Config& config) {
  constexpr std::int64_t kMostLooks = 1 << 14;
  const std::int64_t tiles = m_tiles_of(problem, config);
  const std::int64_t blocks = ceil_div<std::int64_t>(problem.seqlen_k, config.block_n);
  const std::int64_t together = std::max<std::int64_t>(1, ceil_div(tiles * blocks, kMostLooks));
  const std::int64_t keys = together * config.block_n;
  const VisibleKeys visible = visible_keys(problem);
  const gpu::MayShow may_show = gpu::known_text_mask(problem);
  std::vector<double> shown(static_cast<std::size_t>(tiles));
  for (std::int64_t m = 0; m < tiles; ++m) {
    const std::int64_t first_row = m * block_m(config);
    const std::int64_t last_row = std::min<std::int64_t>(first_row + block_m(config), problem.seqlen_q) - 1;
    const std::int64_t end = visible.end(last_row);
    for (std::int64_t key = visible.begin(first_row) / keys * keys; key < end; key += keys) {
      const std::int64_t last_key = std::min(key + keys, end) - 1;
      const bool seen = may_show({first_row, last_row}, {key, last_key});
      shown[static_cast<std::size_t>(m)] += seen ? static_cast<double>(together) : 0.0;
    }
  }
  return shown;
}

}  // namespace strobe::sm90
