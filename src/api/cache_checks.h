// SPDX-License-Identifier: Apache-2.0
// The numbers that say where a cache's rows lie: of pages and of entries. `tensors` names the cache: "k and v".
#pragma once

#include "api/tensor_checks.h"

namespace strobe::api {

inline Status check_page_number(std::int64_t sequence, std::int64_t entry, std::int64_t page, std::int64_t pages,
                                std::string_view tensors) {
  if (page >= 0 && page < pages) return {};
  return invalid("page_table[{}][{}] is {}: the pages of {} are numbered from 0 to {}", sequence, entry, page, tensors,
                 pages - 1);
}

inline Status check_entry_number(std::int64_t sequence, std::int64_t entry, std::int64_t entries,
                                 std::string_view tensors) {
  if (entry >= 0 && entry < entries) return {};
  return invalid("cache_batch_idx[{}] is {}: the entries of {} are numbered from 0 to {}", sequence, entry, tensors,
                 entries - 1);
}

}  // namespace strobe::api
