// SPDX-License-Identifier: Apache-2.0
// One call of forward and backward as a value: what it asks for, not where its tensors lie.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "guarded_tensor.h"
#include "strobe/attention.h"
#include "texts.h"

namespace strobe::test {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// What the inputs hold.
enum class Values : std::uint8_t {
  normal,    // N(0, 1)
  outliers,  // N(0, 1) + N(0, 100) * Bernoulli(0.001), as in the FlashAttention-3 paper
  small,     // N(0, 1) * 2^-10
  sharp,     // N(0, 1) * 4: the softmax has one winner
};

/// Lengths of one side. Empty vectors stand for views that are not given.
struct SideLengths {
  std::int64_t rows = 0;                 // seqlen when batched, the total when packed
  std::vector<std::int32_t> cu_seqlens;  // given: packed
  std::vector<std::int32_t> seqused;
  std::int64_t max_seqlen = -1;
  std::vector<std::int32_t> offsets;  // given: sequences are parts of longer ones, which begin there
};

enum class Alibi : std::uint8_t { none, per_head, per_batch_and_head };

/// What a tensor [batch or 1, heads_q or 1, ..] is shared by.
struct Sharing {
  bool per_batch = false;
  bool per_head = false;
};

struct BiasCase {
  DType dtype = DType::float32;  // float32 or the case's
  Sharing sharing;
  double hidden = 0.0;  // the share of elements that are -inf; a tenth of it comes as whole rows
  bool wants_gradient = true;
  bool aligned = true;  // as the case's other tensors; else to nothing
};

struct BlockCase {
  std::int64_t size = 128;
  Sharing sharing;
  double visible = 0.5;  // the share of blocks; rows of blocks without any come up by themselves
};

/// Forward only: sequences of at most 64 queries.
struct TreeCase {
  // Numbers of the trees of speculative decoding, each node below an earlier one, or random bits of which so many are
  // set. Bits past the queries are random in both.
  bool random_bits = false;
  double visible = 0.5;
};

struct AttentionCase {
  DType dtype = DType::float32;
  std::int64_t batch = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;
  std::int64_t head_dim = 64;
  std::int64_t head_dim_v = 64;
  SideLengths q;
  SideLengths k;
  AttentionOptions options;
  Alibi alibi = Alibi::none;
  std::optional<BiasCase> bias;
  std::optional<BlockCase> blocks;
  std::optional<TreeCase> tree;
  std::optional<TextCase> text;
  bool has_sink = false;
  bool has_qv = false;
  RandomState random;  // of the dropout
  bool wants_lse = true;
  bool wants_max_logits = false;
  bool has_d_lse = true;
  bool wants_d_sink = true;  // where there is a sink
  Values values = Values::normal;
  Placement placement;
  std::uint64_t seed = 0;
};

/// Everything about the case in one line.
std::string describe(const AttentionCase& attention);

/// Whether the case has sums of rows: lse, sinks, max_logits.
inline bool is_normalized(const AttentionCase& attention) {
  return attention.options.normalize == Normalization::softmax;
}

/// Whether its backward runs, too: that of a softmax reads lse.
inline bool has_backward(const AttentionCase& attention) {
  return (attention.wants_lse || !is_normalized(attention)) && !attention.tree;
}

/// What the case asks an engine for beyond plain attention: "alibi", "packed q", "d_bias", ...
std::vector<std::string> options_of(const AttentionCase& attention);

}  // namespace strobe::test
