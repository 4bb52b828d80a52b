// SPDX-License-Identifier: Apache-2.0
#include "strobe/block_mask.h"

#include <bit>
#include <cstdlib>

#include "api/guarded.h"
#include "api/tensor_checks.h"

namespace strobe {
namespace {

Status check_mask(const TensorView& mask) {
  const api::NamedTensor named{"mask", mask};
  if (mask.rank < 2 || mask.rank > kMaxRank) {
    return api::invalid("mask has rank {}: it must be [.., query blocks, key blocks]", mask.rank);
  }
  return api::first_failure([&] { return api::check_layout(named, mask.rank, "[.., query blocks, key blocks]"); },
                            [&] { return api::check_dtype(named, DType::uint8, ""); },
                            [&] { return api::check_on_host(named); }, [&] { return api::check_data(named); },
                            [&] { return api::check_distinct_elements(named); });
}

/// visible(own, key) for every block of the last two axes, `own` being the key block that the query block is aligned
/// with; the same for all leading indices.
template <class Visible>
Status fill(const TensorView& mask, const Visible& visible) {
  if (Status status = check_mask(mask); !status.ok() || api::empty(mask)) return status;
  const auto axis = [&mask](int from_last) { return static_cast<std::size_t>(mask.rank - from_last); };
  const std::int64_t rows = mask.shape[axis(2)];
  const std::int64_t columns = mask.shape[axis(1)];
  const std::int64_t outer = mask.rank > 3 ? mask.shape[0] : 1;
  const std::int64_t inner = mask.rank > 2 ? mask.shape[axis(3)] : 1;
  for (std::int64_t plane = 0; plane < outer * inner; ++plane) {
    const std::int64_t start = (mask.rank > 3 ? plane / inner * mask.strides[0] : 0) +
                               (mask.rank > 2 ? plane % inner * mask.strides[axis(3)] : 0);
    for (std::int64_t i = 0; i < rows; ++i) {
      auto* row = static_cast<std::uint8_t*>(mask.data) + start + i * mask.strides[axis(2)];
      for (std::int64_t j = 0; j < columns; ++j) row[j] = visible(i + columns - rows, j) ? 1 : 0;
    }
  }
  return {};
}

}  // namespace

Status local_block_mask(const TensorView& mask, std::int64_t left, std::int64_t right) {
  return api::guarded([&]() -> Status {
    if (left < -1 || right < -1) {
      return api::invalid("left is {} and right {}: each must be 0 or more, or -1 for no bound", left, right);
    }
    // By distance: own + right may be more than an integer holds.
    return fill(mask, [=](std::int64_t own, std::int64_t key) {
      return (left < 0 || own - key <= left) && (right < 0 || key - own <= right);
    });
  });
}

Status strided_block_mask(const TensorView& mask, std::int64_t stride) {
  return api::guarded([&]() -> Status {
    if (stride < 1) return api::invalid("stride is {}: it must be 1 or more", stride);
    return fill(mask, [=](std::int64_t own, std::int64_t key) { return (own - key) % stride == 0; });
  });
}

Status butterfly_block_mask(const TensorView& mask) {
  return api::guarded([&] {
    return fill(mask, [](std::int64_t own, std::int64_t key) {
      return own >= 0 && std::popcount(static_cast<std::uint64_t>(own ^ key)) <= 1;
    });
  });
}

}  // namespace strobe
