// SPDX-License-Identifier: Apache-2.0
// Any bytes as the text of a score and, behind a line's end, of a mask: a formula that prints as itself and can be
// evaluated everywhere, or a message.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "expect.h"
#include "expression/cuda.h"
#include "expression/evaluate.h"
#include "expression/formula.h"
#include "expression/print.h"
#include "expression/ranges.h"

namespace {

using strobe::DType;
using strobe::expression::Formula;
using strobe::expression::Id;
using strobe::expression::Point;
using strobe::expression::Range;
using strobe::fuzz::expect;

const std::vector<strobe::CaptureType>& captures() {
  static const std::vector<strobe::CaptureType> all{
      {"a", DType::float32, 1}, {"b", DType::bfloat16, 2}, {"i", DType::int32, 1}, {"f", DType::uint8, 0}};
  return all;
}

Point point_of(double position) {
  Point point;
  point.variables = {0.5, position, 3.0, 1.0, 0.0, 0.0, 8.0, 8.0};
  point.load = [](int, std::span<const std::int64_t> indices) {
    return indices.empty() || (indices[0] >= 0 && indices[0] < 2) ? 1.0 : 0.0;
  };
  return point;
}

/// The intervals over a tile hold the mask's value in it.
void check_mask(const Formula& formula) {
  const std::vector<Id> ids = strobe::expression::reachable(formula.graph(), std::array{formula.mask()});
  strobe::expression::TileRanges tile;
  const Point point = point_of(6.0);
  for (std::size_t i = 1; i < tile.variables.size(); ++i) {
    tile.variables[i] = strobe::expression::just(static_cast<long long>(point.variables[i]));
  }
  tile.variables[1] = {0, 7};
  const Range range = strobe::expression::range_of(formula.graph(), ids, formula.mask(), tile);
  const bool shown = strobe::expression::evaluate(formula.graph(), ids, point).back() != 0.0;
  expect(shown ? range.high == 1 : range.low == 0, "a tile's interval holds the mask's value");
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t line = text.find('\n');
  const std::string_view mask = line == std::string_view::npos ? std::string_view() : text.substr(line + 1);
  const auto formula = Formula::parse(text.substr(0, line), mask, captures());
  if (!formula.ok()) {
    expect(formula.status().code() == strobe::StatusCode::invalid_argument, "a bad text is an invalid argument");
    expect(!formula.status().message().empty(), "a rejection has a message");
    return 0;
  }
  expect(!(*formula)->explain().empty(), "a formula can be explained");
  expect(!strobe::expression::device_code(**formula, (*formula)->parts()).empty(), "a formula has device code");
  if ((*formula)->has_mask()) check_mask(**formula);
  if ((*formula)->has_score()) {
    const std::vector<Id> ids =
        strobe::expression::reachable((*formula)->graph(), std::array{(*formula)->score(), (*formula)->slope()});
    strobe::expression::evaluate_bounded((*formula)->graph(), ids, point_of(-1.0));
  }
  return 0;
}
