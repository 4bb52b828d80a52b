// SPDX-License-Identifier: Apache-2.0
// One cell of a benchmark: what is computed, in the sizes that every implementation is given.
#pragma once

#include <cstdint>

#include "strobe/tensor.h"

namespace strobe::bench {

enum class BenchPass : std::uint8_t { forward, backward };

/// Self-attention: queries and keys of one length.
struct Cell {
  BenchPass pass = BenchPass::forward;
  DType dtype = DType::float32;
  std::int64_t batch = 1;
  std::int64_t seqlen = 1;
  std::int64_t heads = 1;
  std::int64_t heads_kv = 1;
  std::int64_t head_dim = 1;
  std::int64_t head_dim_v = 1;
  bool causal = false;
  int threads = 1;

  bool operator==(const Cell&) const = default;
};

/// FLOPs as the FlashAttention papers count them: two products of 2 b h s s d for the forward, halved when causal;
/// five for the backward, 2.5 times as many.
inline double flops(const Cell& cell) {
  const double scores = static_cast<double>(cell.batch * cell.heads) * static_cast<double>(cell.seqlen) *
                        static_cast<double>(cell.seqlen) * (cell.causal ? 0.5 : 1.0);
  const double forward = 2.0 * scores * static_cast<double>(cell.head_dim + cell.head_dim_v);
  return cell.pass == BenchPass::forward ? forward : 2.5 * forward;
}

inline const char* name_of(BenchPass pass) { return pass == BenchPass::forward ? "forward" : "backward"; }

}  // namespace strobe::bench
