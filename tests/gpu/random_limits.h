// SPDX-License-Identifier: Apache-2.0
// What random configurations on GPUs are drawn from: a group of seeds shares what kernels are compiled for.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "attention/random_case.h"
#include "attention/seeds.h"

namespace strobe::test {

// Kernels are compiled on first use: so many seeds in a row share dtype, compiled head_dims and options.
inline constexpr std::uint64_t kSeedsPerKernel = 32;

/// head_dims up to 256 that are multiples of 8, of float32 up to 128; rows aligned to 16 bytes. STROBE_FLOAT32=1: that
/// dtype alone.
inline EngineLimits gpu_limits(std::uint64_t group) {
  Random random(group);
  EngineLimits limits;
  limits.text = false;  // see add_text()
  limits.normalize = false;
  limits.dtypes = {random.one_of({DType::float16, DType::bfloat16, DType::float32})};
  if (number_from("STROBE_FLOAT32", 0) != 0) limits.dtypes = {DType::float32};
  limits.alignment = 8;
  limits.row_invariant = false;
  limits.tree_mask = false;  // see add_tree()
  limits.qv = false;
  limits.offsets = false;  // see has_offsets()
  using HeadDims = std::array<std::int64_t, 2>;
  limits.head_dims = {random.one_of({HeadDims{32, 32}, HeadDims{64, 64}, HeadDims{64, 64}, HeadDims{96, 96},
                                     HeadDims{128, 128}, HeadDims{128, 128}, HeadDims{192, 128}, HeadDims{192, 192},
                                     HeadDims{256, 256}, HeadDims{64, 256}})};
  if (limits.dtypes[0] == DType::float32) {
    for (std::int64_t& head_dim : limits.head_dims[0]) head_dim = std::min<std::int64_t>(head_dim, 128);
    limits.dropout = limits.head_dims[0][1] <= 64;  // with bias and windows, too
  }
  limits.longest = static_cast<std::int64_t>(number_from("STROBE_LONGEST", 2000));
  return limits;
}

/// Whether the calls of a group of few queries have tree masks.
inline bool has_trees(std::uint64_t group) { return group / 2 % 2 == 1; }

/// Whether the sequences of a group are parts of longer ones. STROBE_OFFSETS=1: of all groups without trees.
inline bool has_offsets(std::uint64_t group, const EngineLimits& limits) {
  if (limits.most_queries > 0 && has_trees(group)) return false;
  return group % 5 == 4 || number_from("STROBE_OFFSETS", 0) != 0;
}

/// A few queries and a long cache: keys are split among CTAs.
inline EngineLimits few_queries_limits(std::uint64_t group) {
  EngineLimits limits = gpu_limits(group);
  limits.most_queries = has_trees(group) ? 64 : 20;
  limits.longest *= 3;
  limits.bias = limits.block_mask = limits.dropout = false;  // of calls that are not split
  return limits;
}

/// Heads of more than 256 columns.
inline EngineLimits wide_limits(std::uint64_t group) {
  EngineLimits limits = gpu_limits(group);
  Random random(group);
  limits.dtypes = {random.one_of({DType::float16, DType::bfloat16})};
  limits.dropout = true;
  using HeadDims = std::array<std::int64_t, 2>;
  limits.head_dims = {random.one_of({HeadDims{512, 512}, HeadDims{512, 512}, HeadDims{576, 512}, HeadDims{320, 256},
                                     HeadDims{288, 288}, HeadDims{384, 384}, HeadDims{64, 512}, HeadDims{448, 64}})};
  return limits;
}

/// The same of which there are gradients.
inline EngineLimits wide_backward_limits(std::uint64_t group) {
  EngineLimits limits = wide_limits(group);
  for (std::int64_t& head_dim : limits.head_dims[0]) head_dim = std::min<std::int64_t>(head_dim, 512);
  return limits;
}

inline EngineLimits few_wide_queries_limits(std::uint64_t group) {
  EngineLimits limits = wide_limits(group);
  limits.most_queries = 20;
  limits.longest *= 2;
  limits.bias = limits.block_mask = limits.dropout = false;
  return limits;
}

/// Scores of two products: of every second group with the columns of absorbed heads.
inline EngineLimits query_values_limits(std::uint64_t group) {
  EngineLimits limits = group % 4 < 2 ? wide_limits(group) : few_wide_queries_limits(group);
  Random random(group);
  using HeadDims = std::array<std::int64_t, 2>;
  limits.head_dims = {group % 2 == 0 ? HeadDims{64, 512}
                                     : random.one_of({HeadDims{64, 256}, HeadDims{128, 384}, HeadDims{192, 128}})};
  return limits;
}

/// Latent rows, read as key and value, under the few options with which they are loaded once. Every second case has few
/// queries of long sequences, whose keys are split among CTAs.
inline AttentionCase latent_case(std::uint64_t seed) {
  EngineLimits limits = wide_limits(seed % 2);
  limits.most_queries = seed % 2 == 1 ? 4 : 0;
  limits.longest = seed % 2 == 1 ? 6000 : 600;
  limits.bias = limits.block_mask = limits.dropout = limits.alibi = limits.chunk = limits.max_logits = false;
  limits.any_scale = false;
  AttentionCase attention = random_case(seed, limits);
  attention.tree.reset();
  attention.options = {.causal = seed % 4 == 2 ? CausalMask::bottom_right : CausalMask::none};
  attention.dtype = DType::bfloat16;
  attention.has_sink = false;
  attention.head_dim = 576;
  attention.head_dim_v = 512;
  attention.heads_kv = 1;
  attention.heads_q *= 4;
  return attention;
}

}  // namespace strobe::test
