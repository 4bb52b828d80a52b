// SPDX-License-Identifier: Apache-2.0
// What must hold of a call's memory just before it runs: pointers, overlaps, the lengths that sequences are cut by,
// and the integers that texts read.
#include <cstdint>
#include <string_view>

#include "api/cache_checks.h"
#include "api/expression.h"
#include "api/problem.h"
#include "api/tensor_checks.h"
#include "api/tensor_memory.h"
#include "call/arithmetic.h"
#include "call/sequences.h"

namespace strobe::api {
namespace {

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

/// Positions are from 0, and sums of two fit 32 bits with their sign.
Status check_offset(std::string_view name, const ConstTensorView& offsets, std::int64_t b, const SequenceSide& side,
                    std::string_view rows) {
  if (!offsets.given()) return {};
  constexpr std::int64_t kPositions = std::int64_t{1} << 30;
  if (side.offset < 0) return invalid("{}[{}] is {}: it must be 0 or more", name, b, side.offset);
  if (side.offset + side.slots <= kPositions) return {};
  return invalid("{}[{}] is {} and sequence {} has {} {}: positions must be below 2^30", name, b, side.offset, b,
                 side.slots, rows);
}

Status check_offsets(const AttentionProblem& problem, const Sequences& s) {
  for (std::int64_t b = 0; b < problem.batch && problem.has_offsets; ++b) {
    Status status = first_failure(
        [&] { return check_offset("offset_q", s.offset_q, b, query_side(b, problem.seqlen_q, s), "queries"); },
        [&] { return check_offset("offset_k", s.offset_k, b, key_side(b, problem.seqlen_k, s), "keys"); });
    if (!status.ok()) return status;
  }
  return {};
}

Status check_lengths(const AttentionProblem& problem, const Sequences& s) {
  const SideLengths q{"cu_seqlens_q", "seqused_q", "total_q",        "max_seqlen_q",
                      s.cu_seqlens_q, s.seqused_q, problem.seqlen_q, problem.total_q};
  const SideLengths k{"cu_seqlens_k", "seqused_k", "total_k",        "max_seqlen_k",
                      s.cu_seqlens_k, s.seqused_k, problem.seqlen_k, problem.total_k};
  return first_failure([&] { return q.check(problem.batch); }, [&] { return k.check(problem.batch); },
                       [&] { return check_offsets(problem, s); });
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

/// Values on a device are not read back.
template <class Arguments>
Status check(const AttentionProblem& problem, const Arguments& a) {
  return first_failure([&] { return check_tensor_memory(a); },
                       [&] { return check_random_state(problem.dropout, a.random); },
                       [&] { return check_random_place(a.random, problem.batch, problem.heads_q); },
                       [&] { return problem.device.type == DeviceType::cpu ? check_values(problem, a) : Status(); });
}

}  // namespace

Status check_memory(const AttentionProblem& problem, const ForwardArguments& a) { return check(problem, a); }

Status check_memory(const AttentionProblem& problem, const BackwardArguments& a) { return check(problem, a); }

Status check_memory(const AttentionProblem& problem, const JvpArguments& a) { return check(problem, a); }

Status check_values(const AttentionProblem& problem, const ForwardArguments& a) {
  return first_failure([&] { return check_lengths(problem, a.sequences); }, [&] { return check_cache(problem, a); },
                       [&] { return check_capture_values(a.modifiers); });
}

Status check_values(const AttentionProblem& problem, const BackwardArguments& a) {
  Status status = check_lengths(problem, a.sequences);
  return status.ok() ? check_capture_values(a.modifiers) : status;
}

Status check_values(const AttentionProblem& problem, const JvpArguments& a) {
  return check_lengths(problem, a.sequences);
}

}  // namespace strobe::api
