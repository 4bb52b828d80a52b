// SPDX-License-Identifier: Apache-2.0
#include "gpu/sparse/launches.h"

#include <algorithm>

namespace strobe::gpu {
namespace {

/// Whether entries follow one another as their rows do.
bool entries_in_a_row(const ConstTensorView& tensor) {
  return tensor.rank == 3 || tensor.shape[0] <= 1 || tensor.shape[1] <= 1 ||
         tensor.strides[0] == tensor.shape[1] * tensor.strides[1];
}

}  // namespace

std::vector<Queries> launches_of(const SparseCall& call) {
  constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
  const SparseForwardArguments& a = call.arguments;
  const bool packed = a.q.rank == 3;
  const std::int64_t entries = packed ? 1 : a.q.shape[0];
  const std::int64_t rows = a.q.shape[packed ? 0 : 1];
  const std::int64_t most = std::max<std::int64_t>(1, kMostBytes / bytes_of_query(call));
  const bool together = entries_in_a_row(a.q) && (call.merges || entries_in_a_row(a.o));
  std::vector<Queries> launches;
  if (rows == 0) return launches;
  if (rows <= most) {
    const std::int64_t at_once = together ? most / rows : 1;
    for (std::int64_t entry = 0; entry < entries; entry += at_once) {
      launches.push_back({entry, std::min(at_once, entries - entry), 0, rows});
    }
    return launches;
  }
  for (std::int64_t entry = 0; entry < entries; ++entry) {
    for (std::int64_t row = 0; row < rows; row += most) {
      launches.push_back({entry, 1, row, std::min(most, rows - row)});
    }
  }
  return launches;
}

}  // namespace strobe::gpu
