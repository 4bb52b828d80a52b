// SPDX-License-Identifier: Apache-2.0
// What must hold of a call's memory just before it runs: pointers, overlaps, and the lengths that sequences are cut by.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "api/cache_checks.h"
#include "api/problem.h"
#include "api/tensor_checks.h"
#include "call/arithmetic.h"
#include "call/sequences.h"

namespace strobe::api {
namespace {

/// The tensors of a call that have elements, in the order in which they are added; their pointers are checked then.
/// Held by address: every run of a plan comes here.
class Tensors {
 public:
  Status add(std::string_view name, const ConstTensorView& view) {
    if (!view.given()) return {};
    if (Status status = check_data({name, view}); !status.ok()) return status;
    if (!empty(view)) tensors_[count_++] = {name, &view, Span(view)};
    return {};
  }

  /// The tensors from `first` on are outputs: apart from one another and from those before.
  Status check_apart_from(std::size_t first) const {
    for (std::size_t i = first; i < count_; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (tensors_[i].span.apart_from(tensors_[j].span)) continue;
        const Tensor& output = tensors_[j < first ? i : j];  // of two outputs the first is named first
        const Tensor& other = tensors_[j < first ? j : i];
        Status status = check_apart({output.name, *output.view}, {other.name, *other.view});
        if (!status.ok()) return status;
      }
    }
    return {};
  }

  std::size_t count() const { return count_; }

 private:
  struct Tensor {
    std::string_view name;
    const ConstTensorView* view = nullptr;
    Span span;
  };
  static constexpr std::size_t kMost = 22;  // of a forward, the larger pass
  std::array<Tensor, kMost> tensors_;
  std::size_t count_ = 0;
};

/// One side's lengths: cumulative lengths from 0, never decreasing, within the tensor; used lengths within the
/// sequence.
struct SideLengths {
  std::string_view cu_name, used_name, total_name, max_name;
  const ConstTensorView& cu_seqlens;
  const ConstTensorView& seqused;
  std::int64_t seqlen;  // batched: of every sequence; packed: the bound
  std::int64_t total;

  Status check(std::int64_t batch) const {
    if (cu_seqlens.given() && int32_at(cu_seqlens, 0) != 0)
      return invalid("{}[0] is {}: it must be 0", cu_name, int32_at(cu_seqlens, 0));
    for (std::int64_t b = 0; b < batch; ++b) {
      if (Status status = check_sequence(b); !status.ok()) return status;
    }
    if (!cu_seqlens.given() || int32_at(cu_seqlens, batch) <= total) return {};
    return invalid("{}[{}] is {}: it must be at most {}, which is {}", cu_name, batch, int32_at(cu_seqlens, batch),
                   total_name, total);
  }

  Status check_sequence(std::int64_t b) const {
    std::int64_t length = seqlen;
    if (cu_seqlens.given()) {
      length = int32_at(cu_seqlens, b + 1) - int32_at(cu_seqlens, b);
      if (length < 0) {
        return invalid("{}[{}] is {} after {}: cumulative lengths must not decrease", cu_name, b + 1,
                       int32_at(cu_seqlens, b + 1), int32_at(cu_seqlens, b));
      }
      if (length > seqlen && seqlen < total) {
        return invalid("sequence {} has length {} in {}: {} is {}", b, length, cu_name, max_name, seqlen);
      }
    }
    if (!seqused.given() || (int32_at(seqused, b) >= 0 && int32_at(seqused, b) <= length)) return {};
    return invalid("{}[{}] is {}: it must be from 0 to the sequence's length, which is {}", used_name, b,
                   int32_at(seqused, b), length);
  }
};

Status check_lengths(const AttentionProblem& problem, const Sequences& s) {
  const SideLengths q{"cu_seqlens_q", "seqused_q", "total_q",        "max_seqlen_q",
                      s.cu_seqlens_q, s.seqused_q, problem.seqlen_q, problem.total_q};
  const SideLengths k{"cu_seqlens_k", "seqused_k", "total_k",        "max_seqlen_k",
                      s.cu_seqlens_k, s.seqused_k, problem.seqlen_k, problem.total_k};
  if (Status status = q.check(problem.batch); !status.ok()) return status;
  return k.check(problem.batch);
}

/// The pages that a sequence's rows [0, used) lie in, but for those of the padding alone.
Status check_pages(const AttentionProblem& problem, const ForwardArguments& a, std::int64_t b,
                   const SequenceSide& keys) {
  const std::int64_t pages = a.k.shape[0];
  const auto* entries = static_cast<const std::int32_t*>(a.page_table.data) + b * a.page_table.strides[0];
  const std::int64_t end = ceil_div(keys.leftpad + keys.length, problem.page_size);
  for (std::int64_t entry = keys.leftpad / problem.page_size; entry < end; ++entry) {
    const std::int64_t page = entries[entry * a.page_table.strides[1]];
    if (Status status = check_page_number(b, entry, page, pages, "k and v"); !status.ok()) return status;
  }
  return {};
}

/// Where the keys of a cache lie, after check_lengths().
Status check_cache(const AttentionProblem& problem, const ForwardArguments& a) {
  const Sequences& s = a.sequences;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const SequenceSide keys = key_side(b, problem.seqlen_k, s);
    if (s.leftpad_k.given() && (keys.leftpad < 0 || keys.length < 0)) {
      return invalid("leftpad_k[{}] is {}: it must be from 0 to the sequence's used rows, which are {}", b,
                     keys.leftpad, keys.leftpad + keys.length);
    }
    if (s.cache_batch_idx.given()) {
      if (Status status = check_entry_number(b, keys.begin, a.k.shape[0], "k and v"); !status.ok()) return status;
    }
    if (problem.page_size == 0) continue;
    if (Status status = check_pages(problem, a, b, keys); !status.ok()) return status;
  }
  return {};
}

using NamedViews = std::initializer_list<std::pair<std::string_view, const ConstTensorView*>>;

/// Pointers of all tensors, and outputs apart from one another and from inputs.
Status check_tensors(NamedViews inputs, const Sequences& s, const ScoreModifiers& m, NamedViews outputs) {
  Tensors tensors;
  const auto add_all = [&](NamedViews views) {
    for (const auto& [name, view] : views) {
      if (Status status = tensors.add(name, *view); !status.ok()) return status;
    }
    return Status();
  };
  std::size_t first_output = 0;
  return first_failure([&] { return add_all(inputs); },
                       [&] {
                         return add_all(NamedViews{{"cu_seqlens_q", &s.cu_seqlens_q},
                                                   {"cu_seqlens_k", &s.cu_seqlens_k},
                                                   {"seqused_q", &s.seqused_q},
                                                   {"seqused_k", &s.seqused_k},
                                                   {"leftpad_k", &s.leftpad_k},
                                                   {"cache_batch_idx", &s.cache_batch_idx},
                                                   {"alibi_slopes", &m.alibi_slopes},
                                                   {"bias", &m.bias},
                                                   {"sink", &m.sink},
                                                   {"block_mask", &m.block_mask}});
                       },
                       [&] {
                         first_output = tensors.count();
                         return add_all(outputs);
                       },
                       [&] { return tensors.check_apart_from(first_output); });
}

/// What is checked beside the tensors. Values on a device are not read back.
template <class Arguments>
Status check_numbers(const AttentionProblem& problem, const Arguments& a) {
  Status status = check_random_state(problem.dropout, a.random);
  return status.ok() && problem.device.type == DeviceType::cpu ? check_values(problem, a) : status;
}

}  // namespace

Status check_memory(const AttentionProblem& problem, const ForwardArguments& a) {
  const ConstTensorView o = a.o, lse = a.lse, max_logits = a.max_logits;
  Status status = check_tensors({{"q", &a.q},
                                 {"k", &a.k},
                                 {"v", &a.v},
                                 {"q_descale", &a.q_descale},
                                 {"k_descale", &a.k_descale},
                                 {"v_descale", &a.v_descale},
                                 {"q_shift", &a.q_shift},
                                 {"page_table", &a.page_table},
                                 {"tree_mask", &a.tree_mask}},
                                a.sequences, a.modifiers, {{"o", &o}, {"lse", &lse}, {"max_logits", &max_logits}});
  return status.ok() ? check_numbers(problem, a) : status;
}

Status check_memory(const AttentionProblem& problem, const BackwardArguments& a) {
  const ConstTensorView dq = a.dq, dk = a.dk, dv = a.dv, d_bias = a.d_bias, d_sink = a.d_sink;
  Status status = check_tensors(
      {{"q", &a.q}, {"k", &a.k}, {"v", &a.v}, {"o", &a.o}, {"lse", &a.lse}, {"d_o", &a.d_o}, {"d_lse", &a.d_lse}},
      a.sequences, a.modifiers, {{"dq", &dq}, {"dk", &dk}, {"dv", &dv}, {"d_bias", &d_bias}, {"d_sink", &d_sink}});
  return status.ok() ? check_numbers(problem, a) : status;
}

Status check_values(const AttentionProblem& problem, const ForwardArguments& a) {
  Status status = check_lengths(problem, a.sequences);
  return status.ok() ? check_cache(problem, a) : status;
}

Status check_values(const AttentionProblem& problem, const BackwardArguments& a) {
  return check_lengths(problem, a.sequences);
}

}  // namespace strobe::api
