// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "api/append.h"
#include "api/cache_checks.h"
#include "api/tensor_checks.h"
#include "call/cache_rows.h"
#include "call/checked.h"

namespace strobe::api {
namespace {

constexpr std::string_view kCache = "k_cache and v_cache";

/// Cumulative lengths from 0, never decreasing, that end within the tensor.
Status check_cumulative(std::string_view name, const SequenceRows& rows, std::int64_t batch) {
  if (!rows.packed()) return {};
  const auto at = [&](std::int64_t b) { return int32_at(rows.cu_seqlens, b); };
  if (at(0) != 0) return invalid("{}[0] is {}: it must be 0", name, at(0));
  for (std::int64_t b = 0; b < batch; ++b) {
    if (at(b + 1) >= at(b)) continue;
    return invalid("{}[{}] is {} after {}: cumulative lengths must not decrease", name, b + 1, at(b + 1), at(b));
  }
  if (at(batch) == rows.tensor.shape[0]) return {};
  return invalid("{}[{}] is {}: it must be the number of rows, which is {}", name, batch, at(batch),
                 rows.tensor.shape[0]);
}

/// Rows [begin, end) of all of the cache's, counted through its entries, that sequence b writes.
struct Written {
  std::int64_t begin, end, sequence;
};

class AppendValues {
 public:
  explicit AppendValues(const AppendArguments& a) : a_(a) {}

  Status check() const {
    Status status =
        first_failure([&] { return check_cumulative("cu_seqlens_new", new_, batch_); },
                      [&] { return a_.q.given() ? check_cumulative("cu_seqlens_q", queries_, batch_) : Status(); });
    std::vector<Written> written;
    for (std::int64_t b = 0; status.ok() && b < batch_; ++b) {
      status = first_failure(
          [&] { return check_length(b); }, [&] { return find_places(b, written); },
          [&] { return check_positions("key", b, keys_positions_, new_); },
          [&] { return a_.q.given() ? check_positions("query", b, query_positions_, queries_) : Status(); });
    }
    return status.ok() ? check_apart_places(written) : status;
  }

 private:
  Status check_length(std::int64_t b) const {
    const std::int64_t length = int32_at(a_.cache_seqlens, b);
    if (length < 0) return invalid("cache_seqlens[{}] is {}: it must not be negative", b, length);
    if (!a_.leftpad_k.given()) return {};
    const std::int64_t padding = int32_at(a_.leftpad_k, b);
    if (padding >= 0 && padding <= length) return {};
    return invalid("leftpad_k[{}] is {}: it must be from 0 to cache_seqlens[{}], which is {}", b, padding, b, length);
  }

  /// Adds what sequence b writes, page by page, where pages that follow one another count as one.
  Status find_places(std::int64_t b, std::vector<Written>& written) const {
    const std::int64_t per_entry = cache_.rows_per_entry();
    const std::int64_t begin = int32_at(a_.cache_seqlens, b);
    const std::int64_t end = begin + new_.count(b);
    if (begin == end) return {};
    const Checked capacity = Checked(per_entry) * (cache_.paged() ? a_.page_table.shape[1] : 1);
    if (capacity.at_most(end - 1)) {
      return invalid("sequence {} has {} rows and appends {}: its part of the cache has {}", b, begin, end - begin,
                     capacity.value());
    }
    if (!cache_.paged()) {
      const std::int64_t entry = cache_.entry(b);
      if (Status status = check_entry_number(b, entry, a_.k_cache.shape[0], kCache); !status.ok()) return status;
      written.push_back({entry * per_entry + begin, entry * per_entry + end, b});
      return {};
    }
    for (std::int64_t row = begin; row < end;) {
      const std::int64_t page = cache_.page(b, row / per_entry);
      if (Status status = check_page_number(b, row / per_entry, page, a_.k_cache.shape[0], kCache); !status.ok()) {
        return status;
      }
      const std::int64_t count = std::min(end - row, per_entry - row % per_entry);
      const std::int64_t first = page * per_entry + row % per_entry;
      if (!written.empty() && written.back().sequence == b && written.back().end == first) {
        written.back().end += count;
      } else {
        written.push_back({first, first + count, b});
      }
      row += count;
    }
    return {};
  }

  Status check_positions(std::string_view what, std::int64_t b, const RowPositions& positions,
                         const SequenceRows& rows) const {
    if (!a_.cos.given()) return {};
    const std::int64_t first = rows.first(b);
    const std::int64_t count = rows.count(b);
    // Those that are not given grow by one a row, or by nothing: the first is not negative, so the last says it all.
    for (std::int64_t i = positions.given.given() ? 0 : std::max<std::int64_t>(0, count - 1); i < count; ++i) {
      const std::int64_t position = positions.at(b, first + i);
      if (position >= 0 && position < a_.cos.shape[0]) continue;
      return invalid("{} {} of sequence {} is at position {}: cos and sin have {} positions", what, i, b, position,
                     a_.cos.shape[0]);
    }
    return {};
  }

  Status check_apart_places(std::vector<Written>& written) const {
    const auto by_begin = [](const Written& x, const Written& y) { return x.begin < y.begin; };
    if (!std::ranges::is_sorted(written, by_begin)) std::ranges::sort(written, by_begin);
    for (std::size_t i = 1; i < written.size(); ++i) {
      if (written[i].begin >= written[i - 1].end) continue;
      const std::int64_t per_entry = cache_.rows_per_entry();
      return invalid("row {} of {} {} is appended to by sequence {} and by sequence {}: new rows must not share memory",
                     written[i].begin % per_entry, cache_.paged() ? "page" : "cache entry",
                     written[i].begin / per_entry, std::min(written[i - 1].sequence, written[i].sequence),
                     std::max(written[i - 1].sequence, written[i].sequence));
    }
    return {};
  }

  const AppendArguments& a_;
  std::int64_t batch_ = a_.cache_seqlens.shape[0];
  SequenceRows new_{a_.k_new, a_.cu_seqlens_new};
  SequenceRows queries_{a_.q, a_.cu_seqlens_q};
  CachePlaces cache_{a_};
  RowPositions keys_positions_{a_.positions, new_, cache_};
  RowPositions query_positions_{a_.positions_q, queries_, cache_, a_.q_in_order};
};

}  // namespace

Status check_append_values(const AppendArguments& arguments) { return AppendValues(arguments).check(); }

}  // namespace strobe::api
