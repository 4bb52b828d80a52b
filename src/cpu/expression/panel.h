// SPDX-License-Identifier: Apache-2.0
// What the texts of a call make of a panel of scores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "call/problem.h"
#include "cpu/expression/program.h"
#include "expression/formula.h"
#include "expression/ranges.h"
#include "strobe/attention.h"

namespace strobe::cpu {

/// The programs of a call: immutable, made when it is planned.
struct CallExpressions {
  CallExpressions(const AttentionProblem& problem, PanelOrder order);

  /// Memory of a worker.
  std::int64_t bytes() const;

  std::shared_ptr<const expression::Formula> formula;
  bool has_score;  // which options of the problem do not say
  bool has_mask;
  ExpressionProgram scores;                // new score and mask, of what the formula has
  ExpressionProgram slopes;                // a backward's: score, slope and mask
  ExpressionProgram gradients;             // a backward's: of each read in `reads` the derivative and the indices
  std::vector<expression::Read> reads;     // of captures whose gradient is wanted
  std::vector<expression::Id> mask_nodes;  // in order
};

/// The expressions of a call as one task evaluates them.
struct ExpressionTask {
  const CallExpressions* call = nullptr;  // null: there are none
  const ConstTensorView* captures = nullptr;
  const TensorView* d_captures = nullptr;  // a backward's: where gradients are wanted
  std::byte* memory = nullptr;             // CallExpressions::bytes(), 64-byte aligned, the worker's
  std::int32_t batch = 0;
  std::int32_t head = 0;  // the group's first
  std::int32_t head_kv = 0;
  std::int32_t q_len = 0;
  std::int32_t k_len = 0;
  std::int32_t first_position = 0;  // of row 0
  std::int32_t first_key = 0;       // of key 0

  bool given() const { return call != nullptr; }
  bool has_score() const { return given() && call->has_score; }
  bool has_mask() const { return given() && call->has_mask; }
};

/// Pairs of query rows and keys: rows of the array `along` memory, `width` elements across.
struct ExpressionPanel {
  std::int64_t row = 0;   // row = position * group + head
  std::int64_t rows = 0;  // that exist; what lies behind them is computed and never read
  std::int64_t group = 1;
  std::int64_t key = 0;
  std::int64_t keys = 0;   // likewise
  std::int64_t along = 0;  // rows of the array
  std::int64_t width = 0;
};

/// What a mask is over a tile of query rows and keys.
enum class TileVisibility : std::uint8_t { hidden, partial, full };
TileVisibility tile_visibility(const ExpressionTask& task, const ExpressionPanel& panel);

/// Scores become what the text makes of them; of keys that it hides -inf, where the panel is `masked`.
void transform_scores(const ExpressionTask& task, const ExpressionPanel& panel, bool masked, float* scores);

/// The same, with the derivative of each new score by the old one, 0 of hidden keys.
void transform_with_slopes(const ExpressionTask& task, const ExpressionPanel& panel, float* scores, float* slopes);

/// Adds to the captures' gradients from the scores before transform_with_slopes() and the new scores' gradients, 0 of
/// hidden keys, in the order of the array.
void add_capture_gradients(const ExpressionTask& task, const ExpressionPanel& panel, const float* scores,
                           const float* d_scores);

}  // namespace strobe::cpu
