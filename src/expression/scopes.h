// SPDX-License-Identifier: Apache-2.0
// What the values of an expression depend on within a tile of queries and keys, and which of them kernels keep: values
// that are found once for a query, a key or a diagonal, not once for each score.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "expression/graph.h"

namespace strobe::expression {

enum class Scope : std::uint8_t {
  tile,      // on neither query nor key, only on the head, the sequence and its lengths
  query,     // not on the key
  key,       // not on the query
  diagonal,  // on both, by k - q alone
  pair       // on the score, or on query and key in another way
};

/// Of every node.
std::vector<Scope> scopes_of(const Graph& graph);

/// Values that kernels keep, by scope, in the order of the graph.
struct KeptValues {
  std::vector<Id> tile, query, key, diagonal;
};

inline constexpr std::size_t kMostTileValues = 6;
inline constexpr std::size_t kMostLineValues = 3;  // of queries and of keys: registers and shared memory hold them
inline constexpr std::size_t kMostDiagonalValues = 2;

/// Of what `roots` need: the largest values of one scope that take more than a few instructions; if there are more than
/// kernels keep, the costliest.
KeptValues kept_values(const Graph& graph, std::span<const Id> roots);

/// Instructions for one pair, about, where `kept` are there; loads count as many.
int cost_of_pair(const Graph& graph, std::span<const Id> roots, std::span<const Id> kept);

}  // namespace strobe::expression
