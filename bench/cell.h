// SPDX-License-Identifier: Apache-2.0
// One cell of a benchmark: what is computed, in the sizes that every implementation is given.
#pragma once

#include <cstdint>

#include "strobe/tensor.h"

namespace strobe::bench {

enum class BenchPass : std::uint8_t { forward, backward };

/// Queries and keys of one length, but for decoding.
struct Cell {
  BenchPass pass = BenchPass::forward;
  DType dtype = DType::float32;
  std::int64_t batch = 1;
  std::int64_t seqlen = 1;    // queries of each sequence
  std::int64_t seqlen_k = 1;  // keys
  std::int64_t heads = 1;
  std::int64_t heads_kv = 1;
  std::int64_t head_dim = 1;
  std::int64_t head_dim_v = 1;
  bool causal = false;
  int threads = 1;

  bool operator==(const Cell&) const = default;
};

/// FLOPs as the FlashAttention papers count them: two products of 2 b h s s d for the forward, halved when causal;
/// five for the backward, 2.5 times as many. Of queries and keys of unequal lengths, causal ones see all but the upper
/// right triangle.
inline double flops(const Cell& cell) {
  const auto queries = static_cast<double>(cell.seqlen);
  const auto keys = static_cast<double>(cell.seqlen_k);
  const double visible = !cell.causal ? 1.0 : (queries == keys ? 0.5 : 1.0 - 0.5 * (queries - 1.0) / keys);
  const double scores = static_cast<double>(cell.batch) * static_cast<double>(cell.heads) * queries * keys * visible;
  const double forward = 2.0 * scores * static_cast<double>(cell.head_dim + cell.head_dim_v);
  return cell.pass == BenchPass::forward ? forward : 2.5 * forward;
}

/// Bytes of Q, K, V and O: what a forward of few queries takes time for.
inline double tensor_bytes(const Cell& cell) {
  const auto rows = [](std::int64_t seqlen, std::int64_t heads) {
    return static_cast<double>(seqlen) * static_cast<double>(heads);
  };
  const double all = rows(cell.seqlen, cell.heads) + rows(cell.seqlen_k, cell.heads_kv);
  const auto columns = static_cast<double>(cell.head_dim + cell.head_dim_v);
  return static_cast<double>(cell.batch) * all * columns * static_cast<double>(size_of(cell.dtype));
}

inline const char* name_of(BenchPass pass) { return pass == BenchPass::forward ? "forward" : "backward"; }

}  // namespace strobe::bench
