// SPDX-License-Identifier: Apache-2.0
// What no family of kernels takes.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "call/problem.h"
#include "strobe/attention.h"
#include "strobe/status.h"

namespace strobe::gpu {

inline constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

template <class... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::unsupported, fmt::format(format, std::forward<Args>(args)...)};
}

/// What calls with texts cannot have beside them.
Status check_texts(const AttentionProblem& problem);

/// What the kernels for wide heads, which serve calls with qv, lack of those. `problem` is with_joined_columns().
Status check_query_values(const AttentionProblem& problem);

/// With the columns of qv and V counted as Q's and K's, of whose rows kernels make one product.
AttentionProblem with_joined_columns(AttentionProblem problem);

/// The widest rows of Q and K, and of V and O.
struct MostColumns {
  std::int64_t head_dim = 256;
  std::int64_t head_dim_v = 256;
};

/// Columns of a row that tiles of other than wide heads hold.
inline constexpr int kMostNarrowColumns = 256;

/// Whether calls take the kernels for wide heads, which serve any with qv.
inline bool has_wide_heads(const AttentionProblem& problem) {
  return problem.head_dim > kMostNarrowColumns || problem.head_dim_v > kMostNarrowColumns || problem.has_qv;
}

/// What a family's kernels for wide heads lack.
Status check_wide(const AttentionProblem& problem, std::string_view family);

/// Of 16 bits those of the CPU engine, and in backwards both have that of dV.
MostColumns most_columns(const AttentionProblem& problem);

/// head_dims and lengths.
Status check_sizes(const AttentionProblem& problem, const MostColumns& most = {});

}  // namespace strobe::gpu
