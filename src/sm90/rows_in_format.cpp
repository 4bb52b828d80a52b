// SPDX-License-Identifier: Apache-2.0
#include "sm90/rows_in_format.h"

#include <algorithm>

#include "call/problem.h"
#include "call/row_format.h"
#include "gpu/params/row_format.h"
#include "gpu/plan/converted_cache.h"
#include "gpu/plan/supported.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/cache_conversion.h"
#include "sm90/dealt_tiles.h"
#include "sm90/forward_plan.h"

namespace strobe::sm90 {
namespace {

using gpu::has_wide_heads, gpu::unsupported;

constexpr int kMostFormatSequences = 416;

/// What registers do not hold a panel of, beside all else that producers have.
bool is_wide_part(const RowPart& part) { return part.element == RowElement::float32; }

/// With at most so many tiles of query rows that read each row.
Result<forward::Config> config_of(const AttentionProblem& problem, const gpu::DeviceShape& shape,
                                  const StoredFormat& format, const gpu::Choice& choice, std::int64_t most_tiles) {
  if (problem.softcap != 0.0F) {
    return unsupported("softcap is given: the sm90 kernels convert rows where they lie without it");
  }
  const Result<forward::Config> tiles = forward_config(problem, shape, choice);
  if (!tiles.ok()) return tiles.status();
  forward::Config config = *tiles;
  config.keys = forward::KeySource::rows_in_format;
  // A whole table of sequences would take the place of a stage, where two blocks have to fit.
  config.table_sequences = kMostFormatSequences;
  const bool many = config.schedule == Schedule::split && problem.batch > kMostFormatSequences;
  if (config.schedule == Schedule::sorted || many) config.schedule = Schedule::rounds;
  config.format = format;
  const std::optional<forward::Config> shared = shared_values_config(problem, config);
  if (!shared.has_value()) {
    return unsupported(
        "head_dim is {} and head_dim_v {}, of {} key heads: the sm90 kernels convert rows where they lie of one head, "
        "512 or 576 columns and 512 of V",
        problem.head_dim, problem.head_dim_v, problem.heads_kv);
  }
  // Each tile converts the rows anew, or a pair of them. log: wide-rows-in-format
  const std::int64_t tiles_of_rows = m_tiles_of(problem, *shared) * (problem.heads_q / shared->packed_heads);
  if (tiles_of_rows > most_tiles * cluster_ctas(*shared)) {
    return unsupported(
        "{} tiles of query rows read each row: the sm90 kernels convert it where it lies for one, or a pair",
        tiles_of_rows);
  }
  return *shared;
}

}  // namespace

Result<forward::Config> rows_config(const AttentionProblem& problem, const gpu::DeviceShape& shape,
                                    const RowFormat& format, const gpu::Choice& choice) {
  if (std::ranges::any_of(parts_of(format), is_wide_part)) {
    return unsupported("rows have float32 elements: the sm90 kernels convert those of up to 16 bits where they lie");
  }
  return config_of(problem, shape, gpu::stored_format(format), choice, 1);
}

std::optional<forward::Config> cache_rows_config(const AttentionProblem& problem, const gpu::DeviceShape& shape,
                                                 const gpu::Choice& choice) {
  const bool is_too_large = gpu::is_too_large_to_convert(problem);
  const bool has_rows = has_wide_heads(problem) && (is_too_large || converts_cache(problem));
  if (!has_rows || problem.page_size == 0 || problem.has_leftpad_k) return std::nullopt;
  if (std::min(problem.stored.k_rows, problem.stored.v_rows) < problem.seqlen_k) return std::nullopt;  // several scales
  const RowFormat format = gpu::rows_of_cache(problem.stored.dtype, static_cast<std::int32_t>(problem.head_dim));
  const Result<forward::Config> config =
      config_of(with_rows_of_cache(problem), shape, gpu::with_scales_apart(gpu::stored_format(format)), choice,
                is_too_large ? gpu::kMaxInt : 1);
  return config.ok() ? std::optional(*config) : std::nullopt;
}

AttentionProblem with_rows_of_cache(AttentionProblem problem) {
  problem.stored = {};
  return problem;
}

}  // namespace strobe::sm90
