// SPDX-License-Identifier: Apache-2.0
// A formula as steps over panels of scores: what varies with the query, the key or neither alone is computed once for
// all that share it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "expression/graph.h"

namespace strobe::cpu {

/// What a value differs over, of a panel that holds rows `along` memory and lanes `across` them.
enum class Extent : std::uint8_t { one, across, along, all };

/// A step makes a slot of elements from others: 32-bit floats or, of integers and booleans, 32-bit integers.
struct ExpressionStep {
  expression::Op op = expression::Op::literal;
  expression::Type type = expression::Type::real;          // of the result
  expression::Type operand_type = expression::Type::real;  // of the last operand
  Extent extent = Extent::one;
  bool expands = false;                                   // the operand, of a smaller extent, to this one
  Extent from = Extent::one;                              // where it expands
  std::uint8_t which = 0;                                 // of variables and captures
  std::uint8_t count = 0;                                 // of operands
  std::array<int, expression::kMostChildren> operands{};  // slots
  int result = 0;
  double value = 0.0;  // of literals
};

/// Which way a panel lies: the forward's has queries across the lanes, the backward's keys.
enum class PanelOrder : std::uint8_t { queries_across, keys_across };

struct ExpressionProgram {
  ExpressionProgram() = default;
  /// `of` are the nodes that it computes, each for every element of a panel.
  ExpressionProgram(const expression::Graph& graph, std::span<const expression::Id> of, PanelOrder panel_order);

  PanelOrder order = PanelOrder::queries_across;
  std::vector<ExpressionStep> once;   // of a panel: what is one or across
  std::vector<ExpressionStep> steps;  // of each part of its rows
  std::vector<int> roots;             // slots
  int slots = 0;
};

}  // namespace strobe::cpu
