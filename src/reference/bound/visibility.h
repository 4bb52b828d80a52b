// SPDX-License-Identifier: Apache-2.0
// Which keys a query sees.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/modifiers.h"
#include "reference/tensors.h"

namespace strobe::reference {

/// Keys [begin, end); empty where begin >= end.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end > begin ? end - begin : 0; }
};

/// The position that masks and ALiBi measure from: the query's own, counted on the diagonal.
std::int64_t center_of(std::int64_t query, const SequenceRows& rows, const AttentionOptions& options);

/// Ascending and apart, none of them empty. Without a block mask or a tree mask there is one at most.
std::vector<KeyRange> visible_keys(std::int64_t query, const SequenceRows& rows, const AttentionOptions& options,
                                   const HeadModifiers& modifiers);

}  // namespace strobe::reference
