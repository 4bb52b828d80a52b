// SPDX-License-Identifier: Apache-2.0
// The score and the mask of a call as a user wrote them, ready for every engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "call/limits.h"
#include "expression/derivative.h"
#include "expression/graph.h"
#include "expression/parser.h"
#include "expression/scopes.h"
#include "expression/score_terms.h"
#include "strobe/status.h"

namespace strobe::expression {

inline constexpr std::size_t kMostReads = 16;  // of real captures by a score

/// How the gradient of a capture is summed from the pairs of queries and keys, by the indices that read it.
enum class Pattern : std::uint8_t {
  none,      // nothing real is read of it
  head,      // indices depend on neither q nor k: one sum over all pairs
  query,     // on q alone: a sum over the keys
  key,       // on k alone: a sum over the queries
  diagonal,  // on q and k by k - q alone: a sum along each diagonal
  pair,      // one index is q, another k: every pair has its own element
  scattered  // anything else
};
std::string_view name_of(Pattern pattern);

/// A read of a capture and what the result's derivative with respect to it is.
struct Read {
  int capture = 0;
  Id load = 0;
  Id derivative = 0;
  Pattern pattern = Pattern::none;
};

/// Which of a formula's texts.
struct Parts {
  bool score = false;
  bool mask = false;
};

/// Immutable once parsed, and shared by the calls that use it.
class Formula {
 public:
  /// A text that is empty is left out: scores stay as they are, every key is seen. One of them must be given.
  static Result<std::shared_ptr<const Formula>> parse(std::string_view score, std::string_view mask,
                                                      std::span<const Capture> captures);

  const std::vector<Capture>& captures() const { return captures_; }
  bool has_score() const { return score_.has_value(); }
  bool has_mask() const { return mask_.has_value(); }
  Parts parts() const { return {.score = has_score(), .mask = has_mask()}; }

  /// Simplified, with the derivatives.
  const Graph& graph() const { return graph_; }
  Id score() const { return *score_; }  // the new score
  Id mask() const { return *mask_; }    // whether the key is seen
  Id slope() const { return slope_; }   // of the new score by the score
  const std::vector<Read>& reads() const { return reads_; }

  /// The score as a sum of what options say; none where it says anything else, or there is none.
  const std::optional<ScoreTerms>& score_terms() const { return score_terms_; }

  /// As written, for the reference.
  const Graph& written() const { return written_; }
  Id written_score() const { return *written_score_; }
  Id written_mask() const { return *written_mask_; }

  /// What kernels keep for a tile, of the mask, and of the score and its slope: of all, or of those that are asked for.
  const KeptValues& kept() const { return kept_; }
  const KeptValues& kept(const Parts& parts) const {
    return parts.score && parts.mask ? kept_ : parts.mask ? kept_of_mask_ : kept_of_score_;
  }

  /// Which variables the mask depends on.
  Variables mask_variables() const { return mask_ ? dependencies(graph_)[*mask_] : 0U; }
  /// Whether there is a mask that reads positions and lengths alone, which all heads and sequences have in common.
  bool mask_is_of_positions() const { return mask_is_of_positions_; }

  /// As they were given; empty where there is none.
  const std::string& score_text() const { return score_text_; }
  const std::string& mask_text() const { return mask_text_; }

  /// The captures' names, types and ranks and the texts: what identifies a formula, and what is printed of a call.
  const std::string& text() const { return text_; }
  /// The same for texts that say the same in another order.
  std::uint64_t hash() const { return hash_; }

  /// Of several lines: the simplified score, slope and mask, the captures and their gradients.
  std::string explain() const;

 private:
  Formula() = default;
  Status parse_texts(std::string_view score, std::string_view mask);
  void derive();
  void keep_values();
  std::uint64_t hash_of_all() const;

  std::vector<Capture> captures_;
  Graph graph_;
  Graph written_{false};
  std::optional<Id> score_, mask_, written_score_, written_mask_;
  Id slope_ = 0;
  std::vector<Read> reads_;
  std::optional<ScoreTerms> score_terms_;
  bool mask_is_of_positions_ = false;
  KeptValues kept_, kept_of_score_, kept_of_mask_;
  std::string score_text_, mask_text_, text_;
  std::uint64_t hash_ = 0;
};

}  // namespace strobe::expression
