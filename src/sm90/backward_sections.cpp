// SPDX-License-Identifier: Apache-2.0
#include "sm90/backward_sections.h"

#include <algorithm>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/heads.h"
#include "gpu/plan/backward_plan.h"

namespace strobe::sm90 {
namespace {

using gpu::DeviceShape;

constexpr std::int64_t kFewSections = 8;

/// Of heads that were measured in flight on 132 multiprocessors: as many for each.
std::int64_t heads_for(const DeviceShape& shape, std::int64_t measured) {
  constexpr std::int64_t kMeasured = 132;
  return std::max<std::int64_t>(1, (measured * shape.multiprocessors + kMeasured / 2) / kMeasured);
}

std::int64_t heads_in_l2(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& config) {
  return gpu::key_heads_in_l2(problem, shape, sum_bytes(problem, config));
}

/// The least divisor of `heads` that is `least` or more, so that all sections are as long and the last one does not end
/// with long items alone. Where that is far above `least`, which is then a small part of the heads, `least`.
std::int64_t even_section(std::int64_t heads, std::int64_t least) {
  const std::int64_t most = std::min(heads, 4 * least);
  for (std::int64_t section = least; section <= most; ++section) {
    if (heads % section == 0) return section;
  }
  return std::min(heads, least);
}

/// Key blocks of a head; of packed sequences, whose lengths the host does not know, on average.
std::int64_t mean_key_blocks(const AttentionProblem& problem, const backward::Config& config, std::int64_t key_blocks) {
  if (!config.rule.varlen) return key_blocks;
  const Checked rows = Checked(block_n(config)) * std::max<std::int64_t>(1, problem.batch);
  return std::max<std::int64_t>(1, problem.total_k / rows.value());
}

/// Grouped heads under a causal mask: as many as have an item for each multiprocessor, within a tenth. Their items
/// start together, on the same query head, whose rows the others then find in L2. Those of more heads drift apart, and
/// the rows of all query heads pass through L2 again and again. At head_dim 64, twice as many have as many bytes.
/// log: bwd-sections-one-wave, bwd-sections-packed
std::int64_t grouped_causal_section(const AttentionProblem& problem, const DeviceShape& shape,
                                    const backward::Config& config, std::int64_t key_blocks) {
  const std::int64_t waves = config.head_dim <= 64 ? 2 : 1;
  const std::int64_t items = std::max<std::int64_t>(1, waves * shape.multiprocessors * 9 / 10);
  return even_section(gpu::backward_key_heads(problem), ceil_div(items, mean_key_blocks(problem, config, key_blocks)));
}

/// Where sections are few, the largest of at most `most` heads of which all are as long: the last one's long items
/// would end alone. log: bwd-sections-few
std::int64_t dividing_section(std::int64_t heads, std::int64_t most) {
  if (heads >= kFewSections * most) return most;
  for (std::int64_t section = std::min(heads, most); 2 * section > most; --section) {
    if (heads % section == 0) return section;
  }
  return most;
}

/// Under a causal mask: enough heads for the short items of a section to fill up behind the long ones.
/// log: bwd-sections-causal
std::int64_t causal_section(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& config,
                            std::int64_t key_blocks) {
  if (heads_per_key_head(problem) > 1) return grouped_causal_section(problem, shape, config, key_blocks);
  const std::int64_t most =
      std::clamp<std::int64_t>(heads_in_l2(problem, shape, config), heads_for(shape, 8), heads_for(shape, 16));
  return dividing_section(gpu::backward_key_heads(problem), most);
}

/// Without a mask: what is read again may come from memory now and then, the more so the longer its products take.
/// log: bwd-sections-full
std::int64_t full_section(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& config) {
  const std::int64_t bytes = static_cast<std::int64_t>(shape.l2_bytes) * 4 / 5 * config.head_dim / 64;
  return std::min(bytes / gpu::key_head_bytes(problem, sum_bytes(problem, config)),
                  heads_for(shape, 12) / std::max<std::int64_t>(1, heads_per_key_head(problem)));
}

/// By roles nothing is added to in global memory, and of a few heads Q and dO are read while they are in L2.
/// log: bwd-sections-roles
std::int64_t roles_section(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& config) {
  const std::int64_t most = heads_for(shape, 8);
  if (config.rule.mask_right) return most;
  return std::clamp<std::int64_t>(heads_in_l2(problem, shape, config), heads_for(shape, 4), most);
}

/// The same of grouped heads under a causal mask: as many as fit L2, and where sections are few, as many more or less
/// as make all of them as long. log: bwd-sections-roles-grouped
std::int64_t grouped_roles_section(const AttentionProblem& problem, const DeviceShape& shape,
                                   const backward::Config& config) {
  const std::int64_t heads = gpu::backward_key_heads(problem);
  const std::int64_t held = std::max<std::int64_t>(1, heads_in_l2(problem, shape, config));
  if (heads >= kFewSections * held) return held;
  const std::int64_t more = even_section(heads, held);
  return 2 * more <= 3 * held ? more : dividing_section(heads, held);
}

/// Where dQ's sums are added to in order, under a causal mask. Grouped heads all start together, or at 64 those that
/// long sequences leave room for: of fewer heads more items wait for one another.
/// log: bwd-ordered-causal-128, bwd-ordered-grouped
std::int64_t ordered_causal_section(const AttentionProblem& problem, const DeviceShape& shape,
                                    const backward::Config& config) {
  const std::int64_t heads = gpu::backward_key_heads(problem);
  const bool is_grouped = heads_per_key_head(problem) > 1;
  const bool is_long = problem.seqlen_k >= kLongCausal;
  if (is_grouped) return config.head_dim <= 64 && is_long ? heads_for(shape, 8) : heads;
  if (config.head_dim > 64) {
    const std::int64_t held = gpu::key_heads_in(problem, shape.l2_bytes / 2 * 3, sum_bytes(problem, config));
    return dividing_section(heads, std::clamp<std::int64_t>(held, heads_for(shape, 8), heads_for(shape, 16)));
  }
  const std::int64_t held = is_long ? gpu::key_heads_in(problem, shape.l2_bytes / 5 * 4, sum_bytes(problem, config))
                                    : heads_in_l2(problem, shape, config);  // log: bwd-sections-ordered-l2
  return dividing_section(heads, std::clamp<std::int64_t>(held, 1, is_long ? heads_for(shape, 8) : heads));
}

/// The same of other masks. log: bwd-sections-ordered-full
std::int64_t ordered_section(const AttentionProblem& problem, const DeviceShape& shape,
                             const backward::Config& config) {
  const ScoreRule& rule = config.rule;
  if (rule.mask_right && !rule.mask_left && !rule.varlen) return ordered_causal_section(problem, shape, config);
  const std::int64_t least = rule.mask_right ? 1 : heads_for(shape, 4);
  return std::max(least / heads_per_key_head(problem), heads_in_l2(problem, shape, config));
}

}  // namespace

std::int64_t sum_bytes(const AttentionProblem& problem, const backward::Config& config) {
  return config.by_roles ? 0 : static_cast<std::int64_t>(sizeof(float)) * problem.head_dim;
}

// Windows and, by roles, packed sequences and grouped heads without a mask were not measured; nor were packed ones
// without a mask.
std::int64_t section_heads(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& config,
                           std::int64_t key_blocks, int wanted) {
  const ScoreRule& rule = config.rule;
  std::int64_t section = heads_in_l2(problem, shape, config);
  if (wanted > 0) {
    section = wanted;
  } else if (config.ordered) {
    section = ordered_section(problem, shape, config);
  } else if (config.by_roles) {
    const bool is_grouped = heads_per_key_head(problem) > 1;
    const bool is_measured = !rule.mask_left && !rule.varlen && (!is_grouped || rule.mask_right);
    if (is_measured) {
      section = is_grouped ? grouped_roles_section(problem, shape, config) : roles_section(problem, shape, config);
    }
  } else if (rule.mask_right && !rule.mask_left) {
    section = causal_section(problem, shape, config, key_blocks);
  } else if (!rule.mask_left && !rule.varlen) {
    section = full_section(problem, shape, config);
  }
  return std::clamp<std::int64_t>(section, 1, gpu::backward_key_heads(problem));
}

}  // namespace strobe::sm90
