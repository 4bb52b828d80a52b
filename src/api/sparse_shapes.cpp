// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "api/row_format.h"
#include "api/sparse.h"
#include "call/limits.h"
#include "call/sparse_lists.h"

namespace strobe::api {
namespace {

static_assert(kMaxRowColumns == kMaxHeadDim, "any row may be a key of either kind of attention");

Status check_sparse_float(const NamedTensor& tensor) {
  const DType dtype = tensor.view.dtype;
  if (dtype == DType::float32 || dtype == DType::float16 || dtype == DType::bfloat16) return {};
  return invalid("{} is {}: it must be float32, float16 or bfloat16", tensor.name, name_of(dtype));
}

Status check_sparse_columns(const NamedTensor& tensor) {
  const std::int64_t columns = tensor.view.shape[static_cast<std::size_t>(tensor.view.rank - 1)];
  if (columns >= 1 && columns <= kMaxRowColumns) return {};
  return invalid("{} has {} columns: a head_dim must be from 1 to {}", tensor.name, columns, kMaxRowColumns);
}

/// What the checks of the call's tensors share.
struct SparseShape {
  explicit SparseShape(const SparseForwardArguments& arguments)
      : a(arguments), packed(a.q.rank == 3), batch(SparseQueries(a.q, a.cu_seqlens_q).batch()) {}

  std::int64_t heads_q() const { return a.q.shape[packed ? 1 : 2]; }
  std::int64_t head_dim() const { return a.q.shape[packed ? 2 : 3]; }
  std::int64_t head_dim_v() const { return a.o.shape[packed ? 2 : 3]; }

  Status check_integers(const NamedTensor& tensor, std::initializer_list<std::int64_t> shape,
                        std::string_view layout) const {
    if (!tensor.view.given()) return {};
    return first_failure([&] { return check_layout(tensor, static_cast<int>(shape.size()), layout); },
                         [&] { return check_dtype(tensor, DType::int32, ""); },
                         [&] { return check_device(tensor, a.q.device); },
                         [&] { return check_shape(tensor, shape, layout); });
  }

  const SparseForwardArguments& a;
  bool packed;
  std::int64_t batch;
};

/// The checks of one source, each assuming the ones before.
class SourceShapes {
 public:
  SourceShapes(const SparseShape& call, std::size_t index)
      : call_(call), s_(call.a.sources[index]), name_(fmt::format("sources[{}]", index)) {}

  Status check() const {
    return first_failure([&] { return check_keys(); }, [&] { return check_values(); },
                         [&] { return check_sequences(); }, [&] { return check_lists(); });
  }

 private:
  std::string member(const char* name) const { return fmt::format("{}.{}", name_, name); }
  bool in_pages() const { return s_.page_table.given() || s_.in_pool; }
  std::int64_t heads_kv() const { return s_.k.shape[static_cast<std::size_t>(s_.k.rank - 2)]; }

  /// Rows of K or V: floats with so many columns, or bytes in a format that has as many.
  Status check_rows(const NamedTensor& rows, const RowFormat& format, std::int64_t columns,
                    std::string_view like) const {
    const bool packed = s_.k.rank == 3;
    const std::string layout = fmt::format("{}, {}]",
                                           packed       ? "[total_k, heads_kv"
                                           : in_pages() ? "[num_pages, page_size, heads_kv"
                                                        : "[batch, seqlen_k, heads_kv",
                                           format.given() ? "row_bytes" : "head_dim");
    if (Status status = first_failure([&] { return check_layout(rows, packed ? 3 : 4, layout); },
                                      [&] { return check_device(rows, call_.a.q.device); });
        !status.ok()) {
      return status;
    }
    std::int64_t given = rows.view.shape[packed ? 2 : 3];
    if (format.given()) {
      Status status = first_failure([&] { return check_named_format(fmt::format("{}_format", rows.name), format); },
                                    [&] { return check_formatted_cache(rows, format); });
      if (!status.ok()) return status;
      given = format.columns();
    } else if (Status status = check_sparse_float(rows); !status.ok()) {
      return status;
    }
    if (given == columns) return {};
    return invalid("{} has {} columns and {} has {}: they must be equal", rows.name, given, like, columns);
  }

  Status check_keys() const {
    const std::string name = member("k");
    if (in_pages() && s_.k.rank != 4) {
      return invalid("{} has rank {}: pages have rank 4 [num_pages, page_size, heads_kv, head_dim]", name, s_.k.rank);
    }
    if (s_.k.rank != 3 && s_.k.rank != 4) {
      return invalid("{} has rank {}: it must have rank 4 or, packed, 3", name, s_.k.rank);
    }
    if (Status status = check_rows({name, s_.k}, s_.k_format, call_.head_dim(), "q"); !status.ok()) return status;
    const std::int64_t first = call_.a.sources[0].k.shape[static_cast<std::size_t>(call_.a.sources[0].k.rank - 2)];
    if (heads_kv() != first) {
      return invalid("{} has {} heads and sources[0].k has {}: they must be equal", name, heads_kv(), first);
    }
    if (heads_kv() < 1 || call_.heads_q() % heads_kv() != 0) {
      return invalid("q has {} heads and {} has {}: the first must be a multiple of the second", call_.heads_q(), name,
                     heads_kv());
    }
    return {};
  }

  Status check_values() const {
    const std::int64_t columns = call_.head_dim_v();
    if (s_.v.given()) {
      const std::string name = member("v");
      if (s_.k_format.given() && s_.k_format.head_dim_v > 0) {
        return invalid("{} is given, and k_format says that V is the first {} columns of the rows of k", name,
                       s_.k_format.head_dim_v);
      }
      if (Status status = check_rows({name, s_.v}, s_.v_format, columns, "o"); !status.ok()) return status;
      for (std::size_t axis = 0; axis + 1 < static_cast<std::size_t>(s_.k.rank); ++axis) {
        if (s_.v.shape[axis] == s_.k.shape[axis]) continue;
        return invalid("{} has shape {} and {} {}: they must agree but for the last axis", name, shape_text(s_.v),
                       member("k"), shape_text(s_.k));
      }
      return {};
    }
    if (s_.v_format.given()) return invalid("{} is given without {}", member("v_format"), member("v"));
    if (s_.k_format.given() && s_.k_format.head_dim_v != columns) {
      return invalid("o has {} columns, and V of {} has {} (0: give its rows as v)", columns, member("k_format"),
                     s_.k_format.head_dim_v);
    }
    if (columns > call_.head_dim()) {
      return invalid("o has {} columns and the rows of {} have {}: without v, V is their first ones", columns,
                     member("k"), call_.head_dim());
    }
    return {};
  }

  Status check_sequences() const {
    if (s_.in_pool && (s_.page_table.given() || s_.seqused_k.given() || s_.causal)) {
      return invalid("{}.in_pool is set with {}: rows of a pool belong to no sequence", name_,
                     s_.page_table.given()  ? "page_table"
                     : s_.seqused_k.given() ? "seqused_k"
                                            : "causal");
    }
    if (s_.cu_seqlens_k.given() && s_.k.rank != 3) {
      return invalid("{} is given and k has rank 4: cumulative lengths belong to a packed k", member("cu_seqlens_k"));
    }
    const std::int64_t batch = call_.batch;
    Status status = first_failure(
        [&] { return call_.check_integers({member("cu_seqlens_k"), s_.cu_seqlens_k}, {batch + 1}, "[batch + 1]"); },
        [&] { return call_.check_integers({member("seqused_k"), s_.seqused_k}, {batch}, "[batch]"); },
        [&] {
          return call_.check_integers({member("page_table"), s_.page_table}, {batch, s_.page_table.shape[1]},
                                      "[batch, max_pages]");
        });
    if (!status.ok()) return status;
    const std::int64_t own = s_.k.rank == 4 ? s_.k.shape[0] : s_.cu_seqlens_k.given() ? batch : 1;
    if (in_pages() || own == batch) return {};
    return invalid("{} has {} sequences and q has {}: they must be equal", member("k"), own, batch);
  }

  Status check_lists() const {
    const std::string name = member("indices");
    const NamedTensor indices{name, s_.indices};
    const auto& q = call_.a.q.shape;
    const int rank = call_.packed ? 3 : 4;
    const std::string_view layout = call_.packed ? "[total_q, heads, topk]" : "[batch, seqlen_q, heads, topk]";
    if (Status status = check_layout(indices, rank, layout); !status.ok()) return status;
    const std::int64_t heads = s_.indices.shape[static_cast<std::size_t>(rank - 2)];
    const std::int64_t topk = s_.indices.shape[static_cast<std::size_t>(rank - 1)];
    if (heads != 1 && heads != heads_kv()) {
      return invalid("{} has {} heads: it must have 1, or those of k, which are {}", name, heads, heads_kv());
    }
    const std::string length = member("topk_length");
    Status status =
        call_.packed
            ? first_failure([&] { return call_.check_integers(indices, {q[0], heads, topk}, layout); },
                            [&] { return call_.check_integers({length, s_.topk_length}, {q[0]}, "[total_q]"); })
            : first_failure(
                  [&] { return call_.check_integers(indices, {q[0], q[1], heads, topk}, layout); },
                  [&] { return call_.check_integers({length, s_.topk_length}, {q[0], q[1]}, "[batch, seqlen_q]"); });
    if (!status.ok()) return status;
    const std::int64_t size = s_.block_size;
    if (size == 1 || size == 16 || size == 32 || size == 64 || size == 128) return {};
    return invalid("{}.block_size is {}: it must be 1, 16, 32, 64 or 128", name_, size);
  }

  const SparseShape& call_;
  const SparseSource& s_;
  std::string name_;
};

Status check_queries(const SparseForwardArguments& a) {
  const NamedTensor q{"q", a.q};
  if (a.q.given() && a.q.rank != 3 && a.q.rank != 4) {
    return invalid("{} has rank {}: it must have rank 4 or, packed, 3", "q", a.q.rank);
  }
  const bool packed = a.q.rank == 3;
  const std::string_view layout = packed ? "[total_q, heads_q, head_dim]" : "[batch, seqlen_q, heads_q, head_dim]";
  return first_failure(
      [&] { return check_layout(q, packed ? 3 : 4, layout); }, [&] { return check_sparse_float(q); },
      [&] { return check_sparse_columns(q); },
      [&]() -> Status {
        if (!a.cu_seqlens_q.given()) return {};
        if (!packed) {
          return invalid("cu_seqlens_q is given and q has rank 4: it belongs to a packed q");
        }
        const NamedTensor cumulative{"cu_seqlens_q", a.cu_seqlens_q};
        if (Status status = check_layout(cumulative, 1, "[batch + 1]"); !status.ok()) return status;
        if (a.cu_seqlens_q.shape[0] < 1) {
          return invalid("cu_seqlens_q has no element: it must have one more than there are sequences");
        }
        return first_failure([&] { return check_dtype(cumulative, DType::int32, ""); },
                             [&] { return check_device(cumulative, a.q.device); });
      });
}

Status check_outputs(const SparseShape& call) {
  const SparseForwardArguments& a = call.a;
  const auto& s = a.q.shape;
  const NamedTensor o{"o", a.o};
  const NamedTensor lse{"lse", a.lse};
  const NamedTensor sink{"sink", a.sink};
  const std::string_view layout =
      call.packed ? "[total_q, heads_q, head_dim_v]" : "[batch, seqlen_q, heads_q, head_dim_v]";
  const std::string_view lse_layout = call.packed ? "[heads_q, total_q]" : "[batch, heads_q, seqlen_q]";
  Status status =
      first_failure([&] { return check_layout(o, call.packed ? 3 : 4, layout); },
                    [&] { return check_dtype(o, a.q.dtype, ", as q is"); }, [&] { return check_device(o, a.q.device); },
                    [&] {
                      return call.packed ? check_shape(o, {s[0], s[1], a.o.shape[2]}, layout)
                                         : check_shape(o, {s[0], s[1], s[2], a.o.shape[3]}, layout);
                    },
                    [&] { return check_sparse_columns(o); }, [&] { return check_distinct_elements(o); });
  if (status.ok() && a.lse.given()) {
    status = first_failure([&] { return check_layout(lse, call.packed ? 2 : 3, lse_layout); },
                           [&] { return check_dtype(lse, DType::float32, ""); },
                           [&] { return check_device(lse, a.q.device); },
                           [&] {
                             return call.packed ? check_shape(lse, {s[1], s[0]}, lse_layout)
                                                : check_shape(lse, {s[0], s[2], s[1]}, lse_layout);
                           },
                           [&] { return check_distinct_elements(lse); });
  }
  if (!status.ok() || !a.sink.given()) return status;
  return first_failure(
      [&] { return check_layout(sink, 1, "[heads_q]"); }, [&] { return check_dtype(sink, DType::float32, ""); },
      [&] { return check_device(sink, a.q.device); }, [&] { return check_shape(sink, {call.heads_q()}, "[heads_q]"); });
}

}  // namespace

Status check_sparse_shapes(const SparseForwardArguments& arguments, const SparseOptions& options) {
  if (Status status = check_queries(arguments); !status.ok()) return status;
  const SparseShape call(arguments);
  if (Status status = check_outputs(call); !status.ok()) return status;
  for (std::size_t i = 0; i < arguments.sources.size(); ++i) {
    if (i > 0 && !arguments.sources[i].k.given()) {
      if (!arguments.sources[i].indices.given()) continue;
      return invalid("sources[{}].indices is given without sources[{}].k", i, i);
    }
    if (!arguments.sources[i].k.given()) return invalid("sources[0].k is missing: give a tensor of keys");
    if (Status status = SourceShapes(call, i).check(); !status.ok()) return status;
  }
  if (options.scale && !std::isfinite(*options.scale)) {
    return invalid("scale is {}: it must be finite", *options.scale);
  }
  if (std::isfinite(options.softcap) && options.softcap >= 0.0F) return {};
  return invalid("softcap is {}: it must be positive, or 0 for none", options.softcap);
}

}  // namespace strobe::api
