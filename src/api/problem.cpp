// SPDX-License-Identifier: Apache-2.0
#include "api/problem.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "api/eight_bit.h"
#include "api/heads_first.h"
#include "api/modifiers.h"
#include "api/options.h"
#include "api/side_layout.h"
#include "api/tensor_checks.h"
#include "call/checked.h"
#include "call/eight_bit.h"
#include "call/limits.h"
#include "call/score_rule.h"
#include "call/tensors.h"

namespace strobe::api {
namespace {

Status check_input_dtype(const ConstTensorView& q, Pass pass) {
  switch (q.dtype) {
    case DType::float32:
    case DType::float16:
    case DType::bfloat16: return {};
    case DType::int8:
    case DType::float8_e4m3:
      if (pass == Pass::forward) return {};
      return unsupported("q is {}: no engine of this build has a backward of 8-bit inputs", name_of(q.dtype));
    case DType::int32:
    case DType::int64:
    case DType::uint8: break;
  }
  return invalid("q is {}: it must be float32, float16 or bfloat16", name_of(q.dtype));
}

/// float32, float16 or bfloat16, whatever 8-bit inputs are.
Status check_output_dtype(const NamedTensor& o) {
  if (o.view.dtype == DType::float32 || o.view.dtype == DType::float16 || o.view.dtype == DType::bfloat16) return {};
  return invalid("{} is {}: it must be float32, float16 or bfloat16", o.name, name_of(o.view.dtype));
}

Status check_lengths_layout(const NamedTensor& lengths, std::int64_t wanted, std::string_view layout,
                            const Device& device) {
  if (!lengths.view.given()) return {};
  return first_failure(
      [&] { return check_layout(lengths, 1, layout); }, [&] { return check_dtype(lengths, DType::int32, ""); },
      [&] { return check_shape(lengths, {wanted}, layout); }, [&] { return check_device(lengths, device); });
}

/// What cannot be combined, of the options of a key-value cache.
Status check_cache_options(const Sequences& sequences, const ConstTensorView& page_table) {
  for (const auto& [name, view] : {NamedTensor{"page_table", page_table}, NamedTensor{"leftpad_k", sequences.leftpad_k},
                                   NamedTensor{"cache_batch_idx", sequences.cache_batch_idx}}) {
    if (view.given() && sequences.cu_seqlens_k.given()) {
      return invalid("{} is given with cu_seqlens_k: packed keys are not a cache, use seqused_k for its lengths", name);
    }
  }
  if (!page_table.given() || !sequences.cache_batch_idx.given()) return {};
  return invalid("cache_batch_idx is given with page_table: give the rows of page_table in the order of the batch");
}

/// What both passes share: q, k, v, options and sequences. `page_table` is the forward's alone.
class ProblemMaker {
 public:
  ProblemMaker(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v, const ConstTensorView& qv,
               const Sequences& sequences, const ConstTensorView& page_table, const AttentionOptions& options)
      : q_{"q", q},
        k_{"k", k},
        v_{"v", v},
        qv_{"qv", qv},
        page_table_{"page_table", page_table},
        sequences_(sequences),
        options_(options),
        queries_(query_layout(sequences)),
        keys_(key_layout(sequences, page_table)) {}

  Result<AttentionProblem> make(Pass pass) {
    Status status = first_failure(
        [&] { return check_layout(q_, queries_.rank(), queries_.axes); },
        [&] { return check_layout(k_, keys_.rank(), keys_.axes); },
        [&] { return check_layout(v_, keys_.rank(), keys_.value_axes); },
        [&] { return check_input_dtype(q_.view, pass); }, [&] { return check_keys(pass); },
        [&] { return check_page_table(); }, [&] { return check_batch(); }, [&] { return check_heads(); },
        [&] { return check_query_values(); }, [&] { return check_elements(); }, [&] { return check_sequences(); },
        [&] { return check_options(options_); }, [&] { return check_offsets(sequences_, options_); });
    if (!status.ok()) return status;
    return problem(pass);
  }

  /// Same dtype and device as q.
  Status check_like_q(const NamedTensor& tensor) const {
    if (Status status = check_dtype(tensor, q_.view.dtype, ", as q is"); !status.ok()) return status;
    return check_device(tensor, q_.view.device);
  }

  /// Those of a forward may be stored in 8 bits.
  Status check_keys(Pass pass) const {
    const DType stored = k_.view.dtype;
    if (pass == Pass::backward || is_eight_bit(q_.view.dtype) || !is_eight_bit(stored)) {
      return first_failure([&] { return check_like_q(k_); }, [&] { return check_like_q(v_); });
    }
    return first_failure([&] { return check_device(k_, q_.view.device); },
                         [&] { return check_device(v_, q_.view.device); },
                         [&] { return check_dtype(v_, stored, ", as k is"); });
  }

  /// O of 8-bit inputs has a dtype of its own.
  Status check_dtype_and_device(const NamedTensor& tensor) const {
    if (!is_eight_bit(q_.view.dtype)) return check_like_q(tensor);
    return first_failure([&] { return check_output_dtype(tensor); },
                         [&] { return check_device(tensor, q_.view.device); });
  }

  /// A tensor of `like`'s side whose last extent is `columns`.
  Status check_companion(const NamedTensor& tensor, const NamedTensor& like, std::int64_t columns,
                         std::string_view layout) const {
    return first_failure(
        [&] { return check_layout(tensor, like.view.rank, layout); }, [&] { return check_dtype_and_device(tensor); },
        [&] {
          const auto& shape = like.view.shape;
          return like.view.rank == 3 ? check_shape(tensor, {shape[0], shape[1], columns}, layout)
                                     : check_shape(tensor, {shape[0], shape[1], shape[2], columns}, layout);
        });
  }

  Status check_output(const NamedTensor& tensor, const NamedTensor& like, std::int64_t columns,
                      std::string_view layout) const {
    if (Status status = check_companion(tensor, like, columns, layout); !status.ok()) return status;
    return check_distinct_elements(tensor);
  }

  Status check_lse(const NamedTensor& lse) const {
    const bool packed = sequences_.cu_seqlens_q.given();
    const std::string_view layout = packed ? "[heads_q, total_q]" : "[batch, heads_q, seqlen_q]";
    const auto& shape = q_.view.shape;
    return first_failure([&] { return check_layout(lse, packed ? 2 : 3, layout); },
                         [&] { return check_dtype(lse, DType::float32, ""); },
                         [&] { return check_device(lse, q_.view.device); },
                         [&] {
                           return packed ? check_shape(lse, {shape[1], shape[0]}, layout)
                                         : check_shape(lse, {shape[0], shape[2], shape[1]}, layout);
                         });
  }

  std::string_view output_axes() const { return queries_.value_axes; }
  std::string_view key_axes() const { return keys_.axes; }
  std::string_view query_axes() const { return queries_.axes; }
  std::string_view value_axes() const { return keys_.value_axes; }

  const NamedTensor& q() const { return q_; }
  const NamedTensor& k() const { return k_; }
  const NamedTensor& v() const { return v_; }

 private:
  std::int64_t batch_of(const ConstTensorView& tensor, const ConstTensorView& cu_seqlens) const {
    return cu_seqlens.given() ? cu_seqlens.shape[0] - 1 : tensor.shape[0];
  }
  std::int64_t batch() const { return batch_of(q_.view, sequences_.cu_seqlens_q); }

  Status check_page_table() const {
    if (!page_table_.view.given()) return {};
    constexpr std::string_view kLayout = "[batch, max_pages]";
    constexpr std::int64_t kMostRows = std::int64_t{1} << 48;
    const std::int64_t page_size = k_.view.shape[1];
    return first_failure([&] { return check_layout(page_table_, 2, kLayout); },
                         [&] { return check_dtype(page_table_, DType::int32, ""); },
                         [&] { return check_device(page_table_, q_.view.device); },
                         [&]() -> Status {
                           if (page_size == 0) {
                             return invalid("k has shape {}: a page must have 1 row or more", shape_text(k_.view));
                           }
                           const auto& shape = page_table_.view.shape;
                           const Checked sequences = std::max<std::int64_t>(shape[0], 1);
                           if ((sequences * shape[1] * page_size).at_most(kMostRows)) return {};
                           return invalid("page_table has shape {} of pages of {} rows: it must span at most 2^48 rows",
                                          shape_text(page_table_.view), page_size);
                         });
  }

  Status check_batch() const {
    for (const auto& [name, view] :
         {NamedTensor{"cu_seqlens_q", sequences_.cu_seqlens_q}, NamedTensor{"cu_seqlens_k", sequences_.cu_seqlens_k}}) {
      if (!view.given()) continue;
      if (Status status = check_layout({name, view}, 1, "[batch + 1]"); !status.ok()) return status;
      if (view.shape[0] < 1) return invalid("{} has shape [0]: it must be [batch + 1]", name);
    }
    if (page_table_.view.given()) {
      return check_shape(page_table_, {batch(), page_table_.view.shape[1]}, "[batch, max_pages]");
    }
    const std::int64_t keys_batch = batch_of(k_.view, sequences_.cu_seqlens_k);
    if (batch() == keys_batch || sequences_.cache_batch_idx.given()) return {};
    return invalid("q has batch {} and k has batch {}: they must be equal", batch(), keys_batch);
  }

  /// Elements through the batch, of which a key-value cache in pages or entries may hold fewer.
  Status check_elements() const {
    for (const NamedTensor* tensor : {&q_, &k_, &v_}) {
      const bool paged = tensor != &q_ && page_table_.view.given();
      if (counts_elements(tensor->view, batch(), paged ? page_table_.view.shape[1] : 1)) continue;
      return invalid("{} has shape {} and the batch is {}: its elements through the batch must be fewer than 2^59",
                     tensor->name, shape_text(tensor->view), batch());
    }
    return {};
  }

  Status check_heads() const {
    const std::int64_t head_dim = extent(q_.view, 1);
    const std::int64_t heads_q = extent(q_.view, 2);
    const std::int64_t heads_kv = extent(k_.view, 2);
    if (head_dim < 1 || head_dim > kMaxHeadDim) {
      return invalid("head_dim is {}: it must be from 1 to {}", head_dim, kMaxHeadDim);
    }
    if (extent(k_.view, 1) != head_dim) {
      return invalid("k has head_dim {} and q has {}: they must be equal", extent(k_.view, 1), head_dim);
    }
    if (extent(v_.view, 1) < 1 || extent(v_.view, 1) > kMaxHeadDimV) {
      return invalid("head_dim_v is {}: it must be from 1 to {}", extent(v_.view, 1), kMaxHeadDimV);
    }
    if (heads_kv == 0 ? heads_q != 0 : heads_q % heads_kv != 0) {
      return invalid("q has {} heads and k has {}: heads_q must be a multiple of heads_kv{}", heads_q, heads_kv,
                     looks_heads_first(q_.view, k_.view) ? " (are the axes [batch, heads, seqlen, head_dim]?)" : "");
    }
    return k_.view.rank == 3
               ? check_shape(v_, {k_.view.shape[0], heads_kv, extent(v_.view, 1)}, value_axes())
               : check_shape(v_, {k_.view.shape[0], k_.view.shape[1], heads_kv, extent(v_.view, 1)}, value_axes());
  }

  Status check_query_values() const {
    return qv_.view.given() ? check_companion(qv_, q_, extent(v_.view, 1), queries_.value_axes) : Status();
  }

  Status check_sequences() const {
    const Device device = q_.view.device;
    return first_failure(
        [&] {
          return check_each_tensor(sequences_, [&](const CallTensor& tensor, const ConstTensorView& view) {
            return is_cumulative(tensor) ? check_lengths_layout({tensor.name, view}, batch() + 1, "[batch + 1]", device)
                                         : check_lengths_layout({tensor.name, view}, batch(), "[batch]", device);
          });
        },
        [&]() -> Status {
          if (sequences_.max_seqlen_q < -1)
            return invalid("max_seqlen_q is {}: it must be 0 or more, or -1 for unknown", sequences_.max_seqlen_q);
          if (sequences_.max_seqlen_k < -1)
            return invalid("max_seqlen_k is {}: it must be 0 or more, or -1 for unknown", sequences_.max_seqlen_k);
          return {};
        });
  }

  AttentionProblem problem(Pass pass) const {
    const auto bound = [](std::int64_t given, std::int64_t otherwise) {
      return given < 0 ? otherwise : std::min(given, otherwise);
    };
    AttentionProblem problem;
    problem.pass = pass;
    problem.dtype = q_.view.dtype;
    problem.device = q_.view.device;
    problem.batch = batch();
    problem.heads_q = extent(q_.view, 2);
    problem.heads_kv = extent(k_.view, 2);
    problem.head_dim = extent(q_.view, 1);
    problem.head_dim_v = extent(v_.view, 1);
    problem.packed_q = sequences_.cu_seqlens_q.given();
    problem.packed_k = sequences_.cu_seqlens_k.given();
    problem.seqlen_q = problem.packed_q ? bound(sequences_.max_seqlen_q, q_.view.shape[0]) : q_.view.shape[1];
    problem.seqlen_k = problem.packed_k ? bound(sequences_.max_seqlen_k, k_.view.shape[0]) : k_.view.shape[1];
    if (page_table_.view.given()) {
      problem.page_size = k_.view.shape[1];
      problem.seqlen_k = (Checked(page_table_.view.shape[1]) * problem.page_size).value();
    }
    problem.total_q = problem.packed_q ? q_.view.shape[0] : (Checked(problem.batch) * problem.seqlen_q).value();
    problem.total_k = problem.packed_k ? k_.view.shape[0] : (Checked(problem.batch) * problem.seqlen_k).value();
    problem.has_seqused_q = sequences_.seqused_q.given();
    problem.has_seqused_k = sequences_.seqused_k.given();
    problem.has_leftpad_k = sequences_.leftpad_k.given();
    problem.has_cache_batch_idx = sequences_.cache_batch_idx.given();
    problem.has_offsets = sequences_.offset_q.given() || sequences_.offset_k.given();
    problem.has_qv = qv_.view.given();
    const std::int64_t columns = problem.head_dim + qv_columns(problem);
    problem.scale = options_.scale.value_or(1.0F / std::sqrt(static_cast<float>(columns)));
    problem.causal = options_.causal;
    problem.window = options_.window;
    problem.chunk = options_.chunk;
    problem.softcap = options_.softcap;
    problem.log_length = options_.log_length;
    problem.dropout = options_.dropout;
    problem.deterministic = options_.deterministic;
    problem.row_invariant = options_.row_invariant;
    problem.normalize = options_.normalize;
    return with_folded_log_length(problem);
  }

  const NamedTensor q_, k_, v_, qv_, page_table_;
  const Sequences& sequences_;
  const AttentionOptions& options_;
  const SideLayout queries_, keys_;
};

}  // namespace

Status check_no_cache(const Sequences& sequences, std::string_view pass) {
  for (const auto& [name, view] :
       {NamedTensor{"leftpad_k", sequences.leftpad_k}, NamedTensor{"cache_batch_idx", sequences.cache_batch_idx}}) {
    if (view.given()) return unsupported("{} is given: no engine has the {} of a key-value cache", name, pass);
  }
  return {};
}

Result<AttentionProblem> make_problem(const ForwardArguments& a, const AttentionOptions& options) {
  const bool eight_bit = is_eight_bit(a.q.dtype);
  const bool stored = is_stored(a);
  Status given =
      first_failure([&] { return eight_bit ? check_eight_bit(a)
                                 : stored  ? check_stored(a)
                                           : check_no_scales(a); },
                    [&] { return check_cache_options(a.sequences, a.page_table); });
  if (!given.ok()) return given;
  ProblemMaker maker(a.q, a.k, eight_bit ? rows_of_values(a.v, a.k) : a.v, a.qv, a.sequences, a.page_table, options);
  Result<AttentionProblem> problem = maker.make(Pass::forward);
  if (!problem.ok()) return problem;
  Status status = maker.check_output({"o", a.o}, maker.q(), problem->head_dim_v, maker.output_axes());
  if (status.ok() && a.lse.given()) {
    status = first_failure([&] { return maker.check_lse({"lse", a.lse}); },
                           [&] { return check_distinct_elements({"lse", a.lse}); });
  }
  if (status.ok()) status = read_modifiers(a.modifiers, *problem);
  if (status.ok()) status = read_tree_mask({"tree_mask", a.tree_mask}, *problem);
  if (status.ok()) status = check_max_logits({"max_logits", a.max_logits}, *problem);
  if (status.ok() && eight_bit) status = read_eight_bit(a, *problem);
  if (status.ok() && stored) status = read_stored(a, *problem);
  if (status.ok()) status = check_normalization(a, options);
  if (!status.ok()) return status;
  problem->wants_lse = a.lse.given();
  problem->wants_max_logits = a.max_logits.given();
  return problem;
}

Result<AttentionProblem> make_problem(const BackwardArguments& a, const AttentionOptions& options) {
  if (Status status = check_no_cache(a.sequences, "backward"); !status.ok()) return status;
  ProblemMaker maker(a.q, a.k, a.v, a.qv, a.sequences, {}, options);
  Result<AttentionProblem> problem = maker.make(Pass::backward);
  if (!problem.ok()) return problem;
  const std::int64_t d = problem->head_dim;
  const std::int64_t dv = problem->head_dim_v;
  Status status = first_failure(
      [&] { return check_normalization(a, options); },
      [&] {
        const bool read = is_normalized(*problem) || a.o.given();
        return read ? maker.check_companion({"o", a.o}, maker.q(), dv, maker.output_axes()) : Status();
      },
      [&] { return is_normalized(*problem) ? maker.check_lse({"lse", a.lse}) : Status(); },
      [&] { return maker.check_companion({"d_o", a.d_o}, maker.q(), dv, maker.output_axes()); },
      [&] { return a.d_lse.given() ? maker.check_lse({"d_lse", a.d_lse}) : Status(); },
      [&] { return maker.check_output({"dq", a.dq}, maker.q(), d, maker.query_axes()); },
      [&] { return maker.check_output({"dk", a.dk}, maker.k(), d, maker.key_axes()); },
      [&] { return maker.check_output({"dv", a.dv}, maker.v(), dv, maker.value_axes()); },
      [&]() -> Status {
        if (a.qv.given()) return maker.check_output({"dqv", a.dqv}, maker.q(), dv, maker.output_axes());
        return a.dqv.given() ? invalid("dqv is given without qv: give qv, too") : Status();
      },
      [&] { return read_modifiers(a.modifiers, *problem); }, [&] { return check_modifier_gradients(a, *problem); });
  if (!status.ok()) return status;
  problem->has_d_lse = a.d_lse.given();
  problem->wants_d_bias = a.d_bias.given();
  problem->wants_d_sink = a.d_sink.given();
  return problem;
}

}  // namespace strobe::api
