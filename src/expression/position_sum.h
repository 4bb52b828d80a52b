// SPDX-License-Identifier: Apache-2.0
// Integers of a text that are sums of positions and lengths.
#pragma once

#include <cstdint>
#include <optional>

#include "expression/graph.h"

namespace strobe::expression {

/// Multiples of a query's and a key's position and of the lengths, and a constant.
struct PositionSum {
  std::int64_t q = 0, k = 0, q_len = 0, k_len = 0, constant = 0;

  PositionSum times(std::int64_t factor) const {
    return {q * factor, k * factor, q_len * factor, k_len * factor, constant * factor};
  }
  PositionSum plus(const PositionSum& other) const {
    return {q + other.q, k + other.k, q_len + other.q_len, k_len + other.k_len, constant + other.constant};
  }
  bool operator==(const PositionSum&) const = default;
};

/// The sum that an integer node is; none of other nodes. Constants are so small that no sum of a text wraps around.
std::optional<PositionSum> position_sum(const Graph& graph, Id id);

}  // namespace strobe::expression
