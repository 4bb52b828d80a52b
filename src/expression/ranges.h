// SPDX-License-Identifier: Apache-2.0
// What a mask may be over a tile of queries and keys.
#pragma once

#include <array>
#include <functional>
#include <span>

#include "expression/graph.h"
#include "expression/names.h"
#include "kernels/expression/range.h"

namespace strobe::expression {

struct TileRanges {
  std::array<Range, kVariables> variables{};  // by Variable; the score's is not read
  // What an integer or boolean capture may hold where its indices are in these ranges.
  std::function<Range(int capture, std::span<const Range> indices)> load;
};

/// Of integers and booleans whose value is not known.
Range any_of(Type type);

/// The range of `root`, a boolean or an integer; `ids` are those of reachable().
Range range_of(const Graph& graph, std::span<const Id> ids, Id root, const TileRanges& tile);

}  // namespace strobe::expression
