// SPDX-License-Identifier: Apache-2.0
// Which keys the lists of a sparse call name, and where their rows lie. For tensors in host memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/sequences.h"
#include "strobe/sparse.h"

namespace strobe {

/// A query of a sparse call.
struct SparseQuery {
  std::int64_t sequence;
  std::int64_t position;  // in its sequence
  std::int64_t count;     // queries that the sequence has
  std::int64_t row;       // of all
};

/// The queries of a call, [batch, seqlen_q, ..] or packed.
class SparseQueries {
 public:
  SparseQueries(const ConstTensorView& q, const ConstTensorView& cu_seqlens_q) : q_(q), cu_seqlens_(cu_seqlens_q) {}

  bool packed() const { return q_.rank == 3; }
  std::int64_t batch() const {
    if (!packed()) return q_.shape[0];
    return cu_seqlens_.given() ? cu_seqlens_.shape[0] - 1 : 1;
  }
  std::int64_t total() const { return packed() ? q_.shape[0] : q_.shape[0] * q_.shape[1]; }

  SparseQuery at(std::int64_t row) const {
    if (!packed()) return {row / q_.shape[1], row % q_.shape[1], q_.shape[1], row};
    if (!cu_seqlens_.given()) return {0, row, q_.shape[0], row};
    std::int64_t low = 0;
    std::int64_t high = batch();  // first(low) <= row < first(high)
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (int32_at(cu_seqlens_, middle) <= row ? low : high) = middle;
    }
    const std::int64_t first = int32_at(cu_seqlens_, low);
    return {low, row - first, int32_at(cu_seqlens_, low + 1) - first, row};
  }

  /// Element offset of a query in a tensor with the leading axes of q, as o, indices and topk_length have them.
  std::int64_t offset(const ConstTensorView& tensor, const SparseQuery& query) const {
    if (packed()) return query.row * tensor.strides[0];
    return query.sequence * tensor.strides[0] + query.position * tensor.strides[1];
  }

 private:
  const ConstTensorView& q_;
  const ConstTensorView& cu_seqlens_;
};

/// A row of a source: of page or batch entry `page`; a packed tensor is one.
struct SourceRow {
  std::int64_t page;
  std::int64_t row;
};

/// One source's lists and sequences.
class SparseLists {
 public:
  SparseLists(const SparseSource& source, const SparseQueries& queries) : s_(source), queries_(queries) {}

  bool packed() const { return s_.k.rank == 3; }
  std::int64_t topk() const { return s_.indices.shape[static_cast<std::size_t>(s_.indices.rank - 1)]; }
  /// Keys that a list can name at most.
  std::int64_t list_keys() const { return (Checked(topk()) * s_.block_size).value(); }

  /// Rows that a sequence may have.
  std::int64_t capacity(std::int64_t sequence) const {
    if (s_.page_table.given()) return (Checked(s_.page_table.shape[1]) * s_.k.shape[1]).value();
    if (!packed()) return s_.in_pool ? (Checked(s_.k.shape[0]) * s_.k.shape[1]).value() : s_.k.shape[1];
    if (!s_.cu_seqlens_k.given()) return s_.k.shape[0];
    return int32_at(s_.cu_seqlens_k, sequence + 1) - int32_at(s_.cu_seqlens_k, sequence);
  }
  /// Keys that it has.
  std::int64_t length(std::int64_t sequence) const {
    return s_.seqused_k.given() ? int32_at(s_.seqused_k, sequence) : capacity(sequence);
  }

  std::int64_t page_of(std::int64_t sequence, std::int64_t index) const {
    return static_cast<const std::int32_t*>(
        s_.page_table.data)[sequence * s_.page_table.strides[0] + index * s_.page_table.strides[1]];
  }

  /// Where key `key` of a sequence lies.
  SourceRow place(std::int64_t sequence, std::int64_t key) const {
    if (packed()) return {0, key + (s_.cu_seqlens_k.given() ? int32_at(s_.cu_seqlens_k, sequence) : 0)};
    if (s_.page_table.given()) return {page_of(sequence, key / s_.k.shape[1]), key % s_.k.shape[1]};
    if (s_.in_pool) return {key / s_.k.shape[1], key % s_.k.shape[1]};
    return {sequence, key};
  }

  /// Numbers of a query's list that count.
  std::int64_t count(const SparseQuery& query) const {
    if (!s_.topk_length.given()) return topk();
    return static_cast<const std::int32_t*>(s_.topk_length.data)[queries_.offset(s_.topk_length, query)];
  }

  const std::int32_t* list(const SparseQuery& query, std::int64_t head_kv) const {
    const auto heads_axis = static_cast<std::size_t>(s_.indices.rank - 2);
    const std::int64_t head = s_.indices.shape[heads_axis] == 1 ? 0 : head_kv;
    return static_cast<const std::int32_t*>(s_.indices.data) + queries_.offset(s_.indices, query) +
           head * s_.indices.strides[heads_axis];
  }

  /// visit(key) of the keys that the list names among its places [begin, end), each number having block_size places.
  template <class Visit>
  void for_each_key(const SparseQuery& query, std::int64_t head_kv, std::int64_t begin, std::int64_t end,
                    const Visit& visit) const {
    const std::int64_t size = s_.block_size;
    const std::int32_t* const numbers = list(query, head_kv);
    std::int64_t stop = length(query.sequence);
    if (s_.causal) stop = std::min(stop, query.position + 1 + stop - query.count);
    const std::int64_t last = std::min(count(query), ceil_div(std::max<std::int64_t>(end, 0), size));
    for (std::int64_t i = std::max<std::int64_t>(begin, 0) / size; i < last; ++i) {
      if (numbers[i] < 0) continue;
      const std::int64_t first = numbers[i] * size - i * size;  // key of place 0, were the run that long
      const std::int64_t from = std::max(i * size, begin);
      const std::int64_t to = std::min({(i + 1) * size, end, stop - first});
      for (std::int64_t place = from; place < to; ++place) visit(first + place);
    }
  }

 private:
  const SparseSource& s_;
  const SparseQueries& queries_;
};

}  // namespace strobe
