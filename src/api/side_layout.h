// SPDX-License-Identifier: Apache-2.0
// What the axes of q and o, and of k and v, are called, and where they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "strobe/attention.h"

namespace strobe::api {

/// One side's layout: what its tensors' axes are called and where they lie.
struct SideLayout {
  bool packed;
  std::string_view axes;        // of q or k
  std::string_view value_axes;  // of o or v

  int rank() const { return packed ? 3 : 4; }
};

inline SideLayout query_layout(const Sequences& sequences) {
  if (sequences.cu_seqlens_q.given()) {
    return {true, "[total_q, heads_q, head_dim]", "[total_q, heads_q, head_dim_v]"};
  }
  return {false, "[batch, seqlen_q, heads_q, head_dim]", "[batch, seqlen_q, heads_q, head_dim_v]"};
}

inline SideLayout key_layout(const Sequences& sequences, const ConstTensorView& page_table) {
  if (page_table.given()) {
    return {false, "[num_pages, page_size, heads_kv, head_dim]", "[num_pages, page_size, heads_kv, head_dim_v]"};
  }
  if (sequences.cu_seqlens_k.given()) {
    return {true, "[total_k, heads_kv, head_dim]", "[total_k, heads_kv, head_dim_v]"};
  }
  if (sequences.cache_batch_idx.given()) {
    return {false, "[entries, seqlen_k, heads_kv, head_dim]", "[entries, seqlen_k, heads_kv, head_dim_v]"};
  }
  return {false, "[batch, seqlen_k, heads_kv, head_dim]", "[batch, seqlen_k, heads_kv, head_dim_v]"};
}

inline std::int64_t extent(const ConstTensorView& view, int from_last) {
  return view.shape[static_cast<std::size_t>(view.rank - from_last)];
}

}  // namespace strobe::api
