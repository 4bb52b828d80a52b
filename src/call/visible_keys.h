// SPDX-License-Identifier: Apache-2.0
// Which keys a query sees by causality, window and chunk. Block masks, which are data, come on top.
#pragma once

#include <algorithm>
#include <cstdint>

#include "call/problem.h"
#include "call/sequences.h"

namespace strobe {

/// An interval of keys per query of one sequence: [center - left, center + right] with center = position + diagonal,
/// cut to center's chunk and to [0, keys). Positions and keys are counted from the first that the call has.
struct VisibleKeys {
  /// Reaches every key from every query. Positions plus or minus it do not overflow.
  static constexpr std::int64_t kUnbounded = std::int64_t{1} << 61;

  std::int64_t keys = 0;
  // seqlen_k - seqlen_q where the last query sees the last key, 0 where the first the first; of a part of a sequence
  // how far its first query is behind its first key.
  std::int64_t diagonal = 0;
  std::int64_t left = kUnbounded;
  std::int64_t right = kUnbounded;
  std::int64_t chunk = 0;       // 0: none
  std::int64_t chunk_keys = 0;  // keys of the first key's chunk that are before it, and not the call's

  /// Whether any key before, or after, a query's center may be hidden from it, whatever the lengths are.
  bool bounded_left() const { return left < kUnbounded || chunk > 0; }
  bool bounded_right() const { return right < kUnbounded || chunk > 0; }

  /// Where the chunk of key or center `at` begins; centers may be negative.
  std::int64_t chunk_begin(std::int64_t at) const {
    const std::int64_t rest = (at + chunk_keys) % chunk;
    return at - (rest < 0 ? rest + chunk : rest);
  }

  /// Keys [begin, end) are visible from `position`.
  std::int64_t begin(std::int64_t position) const {
    const std::int64_t center = position + diagonal;
    const std::int64_t first = chunk == 0 ? center - left : std::max(center - left, chunk_begin(center));
    return std::clamp<std::int64_t>(first, 0, keys);
  }
  std::int64_t end(std::int64_t position) const {
    const std::int64_t center = position + diagonal;
    const std::int64_t last = chunk == 0 ? center + right : std::min(center + right, chunk_begin(center) + chunk - 1);
    return std::clamp<std::int64_t>(last + 1, 0, keys);
  }

  /// The same relation from the key's side: positions [first_position, last_position) of `positions` see it.
  std::int64_t first_position(std::int64_t key, std::int64_t positions) const {
    const std::int64_t first = chunk == 0 ? key - right : std::max(key - right, chunk_begin(key));
    return std::clamp<std::int64_t>(first - diagonal, 0, positions);
  }
  std::int64_t last_position(std::int64_t key, std::int64_t positions) const {
    const std::int64_t last = chunk == 0 ? key + left : std::min(key + left, chunk_begin(key) + chunk - 1);
    return std::clamp<std::int64_t>(last - diagonal + 1, 0, positions);
  }
};

/// Of a sequence of `seqlen_q` queries and `seqlen_k` keys.
inline VisibleKeys visible_keys(const AttentionProblem& problem, std::int64_t seqlen_q, std::int64_t seqlen_k) {
  const auto reach = [](std::int64_t window) {
    return window < 0 ? VisibleKeys::kUnbounded : std::min(window, VisibleKeys::kUnbounded);
  };
  VisibleKeys visible{.keys = seqlen_k,
                      .diagonal = problem.causal == CausalMask::top_left ? 0 : seqlen_k - seqlen_q,
                      .left = reach(problem.window.left),
                      .right = reach(problem.window.right),
                      .chunk = problem.chunk};
  if (problem.causal != CausalMask::none) visible.right = 0;
  return visible;
}

/// Of a sequence of such sides, whose offsets count where the call has any.
inline VisibleKeys visible_keys(const AttentionProblem& problem, const SequenceSide& q, const SequenceSide& k) {
  VisibleKeys visible = visible_keys(problem, q.length, k.length);
  if (!problem.has_offsets) return visible;
  visible.diagonal = q.offset - k.offset;
  if (visible.chunk > 0) visible.chunk_keys = k.offset % visible.chunk;
  return visible;
}

/// Of the longest sequence: what a plan knows where lengths are on the device. Of offsets it knows nothing.
inline VisibleKeys visible_keys(const AttentionProblem& problem) {
  return visible_keys(problem, problem.seqlen_q, problem.seqlen_k);
}

}  // namespace strobe
