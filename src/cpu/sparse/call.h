// SPDX-License-Identifier: Apache-2.0
// What forward and backward of sparse attention have in common: the call's numbers, and the keys that a query reads.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>

#include "call/row_format.h"
#include "call/score_rule.h"
#include "call/sparse_lists.h"
#include "cpu/sparse/kernels.h"
#include "cpu/sparse/rows.h"

namespace strobe::cpu {

/// Memory of a call, aligned to cache lines. Throws std::bad_alloc.
class CallMemory {
 public:
  explicit CallMemory(std::size_t bytes)
      : memory_(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kAlignment)))) {}

  std::byte* at(std::size_t offset) const { return memory_.get() + offset; }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t(kAlignment)); }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

/// One source as the kernels read it.
class ListedSource {
 public:
  ListedSource(const SparseSource& source, const SparseQueries& queries)
      : lists(source, queries),
        v_apart(source.v.given()),
        k_format_(source.k_format.given() ? source.k_format : plain_rows(source.k.dtype, columns_of(source.k))),
        v_format_(source.v_format.given() ? source.v_format
                  : v_apart               ? plain_rows(source.v.dtype, columns_of(source.v))
                                          : RowFormat{}),
        k_(source.k, k_format_),
        v_(v_apart ? source.v : source.k, v_apart ? v_format_ : k_format_) {}

  ListedKey key(const SourceRow& row, std::int64_t head_kv) const {
    const RowBytes<const std::byte> k = k_.at(row.page, row.row, head_kv);
    if (!v_apart) return {k, k, &k_format_, nullptr};
    return {k, v_.at(row.page, row.row, head_kv), &k_format_, &v_format_};
  }

  SparseLists lists;
  bool v_apart;

 private:
  static std::int64_t columns_of(const ConstTensorView& rows) {
    return rows.shape[static_cast<std::size_t>(rows.rank - 1)];
  }

  RowFormat k_format_;
  RowFormat v_format_;
  FormattedRows<const void*> k_;
  FormattedRows<const void*> v_;
};

/// A checked call.
class SparseCall {
 public:
  SparseCall(const SparseForwardArguments& arguments, const SparseOptions& options)
      : a(arguments), queries(a.q, a.cu_seqlens_q) {
    const auto axis = static_cast<std::size_t>(a.q.rank - 2);
    heads_q = a.q.shape[axis];
    head_dim = a.q.shape[axis + 1];
    head_dim_v = a.o.shape[axis + 1];
    heads_kv = a.sources[0].k.shape[static_cast<std::size_t>(a.sources[0].k.rank - 2)];
    group = heads_q / heads_kv;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (!a.sources[i].k.given()) continue;
      sources[i].emplace(a.sources[i], queries);
      v_apart = v_apart || sources[i]->v_apart;
      list_keys = (Checked(list_keys) + sources[i]->lists.list_keys()).value();
    }
    scale = options.scale.value_or(1.0F / std::sqrt(static_cast<float>(head_dim)));
    softcap = options.softcap;
    scores.scale_log2 = scale * kLog2E;
    if (softcap > 0.0F) scores = {scores.scale_log2, scale / softcap, softcap * kLog2E};
  }

  /// visit(keys, where) for the keys of a query among places [begin, end) of its lists, up to kSparseBlock at a time:
  /// those of the first source, then the second's. `where` are their sources and rows.
  template <class Visit>
  void for_each_block(const SparseQuery& query, std::int64_t head_kv, std::int64_t begin, std::int64_t end,
                      const Visit& visit) const {
    std::array<ListedKey, kSparseBlock> keys;
    std::array<SourcePlace, kSparseBlock> places;
    std::size_t count = 0;
    std::int64_t first = 0;  // place of the source's first
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (!sources[i]) continue;
      const ListedSource& source = *sources[i];
      source.lists.for_each_key(query, head_kv, begin - first, end - first, [&](std::int64_t key) {
        const SourceRow row = source.lists.place(query.sequence, key);
        places[count] = {i, row};
        keys[count++] = source.key(row, head_kv);
        if (count < keys.size()) return;
        visit(std::span<const ListedKey>(keys), std::span<const SourcePlace>(places));
        count = 0;
      });
      first += source.lists.list_keys();
    }
    if (count == 0) return;
    visit(std::span<const ListedKey>(keys.data(), count), std::span<const SourcePlace>(places.data(), count));
  }

  /// Query head 0 of a key head's, in bytes from the start of a tensor with q's leading axes.
  std::int64_t offset(const ConstTensorView& tensor, const SparseQuery& query, std::int64_t head_kv) const {
    return (queries.offset(tensor, query) + head_kv * group * head_stride(tensor)) *
           static_cast<std::int64_t>(size_of(tensor.dtype));
  }
  static std::int64_t head_stride(const ConstTensorView& tensor) {
    return tensor.strides[static_cast<std::size_t>(tensor.rank - 2)];
  }
  /// Element of lse, or of a tensor with its axes.
  std::int64_t lse_index(const ConstTensorView& lse, const SparseQuery& query, std::int64_t head_q) const {
    if (queries.packed()) return head_q * lse.strides[0] + query.row;
    return query.sequence * lse.strides[0] + head_q * lse.strides[1] + query.position;
  }

  struct SourcePlace {
    std::size_t source;
    SourceRow row;
  };

  const SparseForwardArguments& a;
  SparseQueries queries;
  std::int64_t heads_q, heads_kv, group, head_dim, head_dim_v;
  std::int64_t list_keys = 0;  // that the lists of a query can name, of all sources
  bool v_apart = false;
  std::array<std::optional<ListedSource>, kMaxSparseSources> sources;
  float scale, softcap;
  ListedScores scores{};
};

/// The rows of the query heads that read a key head as float32, zeros behind `columns`, and their strides `stride`.
void widen_heads(const SparseCall& call, const ConstTensorView& tensor, const SparseQuery& query, std::int64_t head_kv,
                 std::int64_t columns, float* to, std::int64_t stride);

}  // namespace strobe::cpu
