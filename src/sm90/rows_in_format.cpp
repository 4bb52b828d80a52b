// SPDX-License-Identifier: Apache-2.0
#include "sm90/rows_in_format.h"

#include <algorithm>

#include "call/problem.h"
#include "call/row_format.h"
#include "gpu/params/row_format.h"
#include "gpu/plan/supported.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/forward_plan.h"

namespace strobe::sm90 {
namespace {

using gpu::unsupported;

/// What registers do not hold a panel of, beside all else that producers have.
bool is_wide_part(const RowPart& part) { return part.element == RowElement::float32; }

}  // namespace

Result<forward::Config> rows_config(const AttentionProblem& problem, const gpu::DeviceShape& shape,
                                    const RowFormat& format, const gpu::Choice& choice) {
  if (std::ranges::any_of(parts_of(format), is_wide_part)) {
    return unsupported("rows have float32 elements: the sm90 kernels convert those of up to 16 bits where they lie");
  }
  if (problem.softcap != 0.0F) {
    return unsupported("softcap is given: the sm90 kernels convert rows where they lie without it");
  }
  const Result<forward::Config> tiles = forward_config(problem, shape, choice);
  if (!tiles.ok()) return tiles.status();
  // Each tile converts the rows anew. log: wide-rows-in-format
  const std::int64_t tiles_of_list = problem.heads_q / tiles->packed_heads;
  if (tiles_of_list > 1) {
    return unsupported("{} tiles of query heads read each row: the sm90 kernels convert it where it lies for one",
                       tiles_of_list);
  }
  forward::Config config = *tiles;
  config.keys = forward::KeySource::rows_in_format;
  // A table of sorted sequences would take the place of a stage, where two blocks have to fit.
  const bool many = config.schedule == Schedule::split && problem.batch > forward::kMostFormatSequences;
  if (config.schedule == Schedule::sorted || many) config.schedule = Schedule::rounds;
  config.format = gpu::stored_format(format);
  const std::optional<forward::Config> shared = shared_values_config(problem, config);
  if (shared.has_value()) return *shared;
  return unsupported(
      "head_dim is {} and head_dim_v {}, of {} key heads: the sm90 kernels convert rows where they lie of one head, "
      "512 or 576 columns and 512 of V",
      problem.head_dim, problem.head_dim_v, problem.heads_kv);
}

}  // namespace strobe::sm90
