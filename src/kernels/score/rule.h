// SPDX-License-Identifier: Apache-2.0
// What a call asks of its scores: one value that every GPU kernel of both passes takes. Plain constexpr C++ without std
// headers: the host's compiler reads it for the plan and NVRTC for the kernel.
#pragma once

#include "kernels/math/element.h"

namespace strobe {

/// What texts make of scores and masks (src/expression). The code that says it is part of the kernel.
struct TextRule {
  bool score = false;       // scores are a text's
  bool slope = false;       // whose derivative by the score is not 1
  bool wide_slope = false;  // nor known to be 16 at most
  bool mask = false;        // a text hides keys
  bool short_mask = false;  // by few instructions for a pair, once the values below are known
  // Values that are found once for a tile, and for each query, key and diagonal of it (src/expression/scopes.h).
  int tile_values = 0;
  int query_values = 0;
  int key_values = 0;
  int diagonal_values = 0;
  int code_low = 0;  // 62 bits that name the code
  int code_high = 0;

  bool operator==(const TextRule&) const = default;
};

/// Block masks of which a block may be shown in part: how the bits lie that say which pairs (score/modifiers/
/// block_bits.h).
enum class BlockBits {
  none,        // every block is hidden or shown
  query_bits,  // words of a query have its keys
  key_bits     // words of a key have its queries
};

struct ScoreRule {
  Element element = Element::bf16;
  bool mask_right = false;  // causal, or a window bounded on the right
  bool mask_left = false;   // a window bounded on the left
  bool chunked = false;     // a query sees keys of its own chunk only; both masks above are on, too
  bool varlen = false;      // packed sequences, used lengths, left padding or pages
  bool leftpad = false;     // keys begin behind rows that are none; varlen is on, too
  bool softcap = false;
  bool log_length = false;    // products have a factor of how many keys their sequence has; varlen is on, too
  bool alibi = false;         // a slope per head times the distance from the diagonal
  bool bias = false;          // a tensor that is added to the scores
  bool bias_float32 = false;  // and holds float32, else what Q, K and V hold
  bool sink = false;          // a logit per head that joins the row's sum and has no value
  bool max_logits = false;    // each head's largest score is wanted, too
  bool dropout = false;       // probabilities become 0 at random
  int block_mask = 0;         // rows and keys of the blocks that a mask hides or shows: 64 or 128; 0: there is none
  BlockBits block_bits = BlockBits::none;
  bool tree_mask = false;      // forwards: of a sequence's last keys a query sees those that a number's bits say
  bool scale_first = false;    // scores are scaled before their maximum is taken: for scales that are not positive
  bool row_invariant = false;  // a row's bits depend on its own query and keys, not on the rows that share its tile
  bool offsets = false;        // sequences are parts of longer ones, at places that are given; varlen is on, too
  bool query_values = false;   // forwards: products of Q and K are joined by those of a second query and V
  bool normalized = true;      // else scores are the probabilities, 0 where they are -inf: there is no softmax
  TextRule text;

  bool operator==(const ScoreRule&) const = default;
};

/// Rules with query_values, FlashAttention-3's qv: the two products are one of longer rows, whose first columns are the
/// second query's and V's. Pieces of so many columns are of one tensor each; V's are a multiple.
inline constexpr int kJoinedColumns = 64;

/// Whether rows may begin or end at different keys.
constexpr bool has_diagonal(const ScoreRule& rule) { return rule.mask_left || rule.mask_right; }

/// Whether the products of a sequence are multiplied by a factor of its own before all else.
constexpr bool has_product_factor(const ScoreRule& rule) { return rule.log_length; }

/// Whether kernels take what texts read.
constexpr bool has_text(const TextRule& text) { return text.score || text.mask; }
constexpr bool has_text(const ScoreRule& rule) { return has_text(rule.text); }

/// Whether scores become what a text or a rule without a softmax takes: complete, before anything is made of them.
constexpr bool takes_scores(const ScoreRule& rule) { return rule.text.score || !rule.normalized; }

/// Whether what dP - D is multiplied with is not P: there is a derivative, or the scores are P.
constexpr bool has_slope(const ScoreRule& rule) { return rule.softcap || rule.text.slope || !rule.normalized; }

/// Whether scores have all of their scale before their maximum is taken, and are natural logarithms.
constexpr bool scores_are_natural(const ScoreRule& rule) { return rule.bias || takes_scores(rule); }

/// Whether some blocks of a block mask are shown in part.
constexpr bool has_block_bits(const ScoreRule& rule) { return rule.block_bits != BlockBits::none; }

/// Whether a text hides keys of blocks that are computed: it is asked of each pair, or bits say what it shows.
constexpr bool hides_by_text(const ScoreRule& rule) { return rule.text.mask || has_block_bits(rule); }

/// Whether a row may see none of a block's keys, or none at all.
constexpr bool is_masked(const ScoreRule& rule) { return has_diagonal(rule) || rule.tree_mask || hides_by_text(rule); }

/// Whether rows of a result that are not finite are computed again: hidden keys may have reached them, and products of
/// float32's parts make NaN of infinities.
constexpr bool is_repaired(const ScoreRule& rule) { return is_masked(rule) || rule.element == Element::fp32; }

/// Whether the scores of a row may all be -inf.
constexpr bool may_hide_all(const ScoreRule& rule) { return is_masked(rule) || rule.bias || rule.text.score; }

}  // namespace strobe
