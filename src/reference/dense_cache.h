// SPDX-License-Identifier: Apache-2.0
// A key-value cache as contiguous tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "strobe/attention.h"

namespace strobe::reference {

/// The keys and values of a call whose k and v are pools of pages, have left padding or an index of their entries,
/// copied to [batch, seqlen_k, heads_kv, head_dim] with each sequence's first key in row 0. Other rows hold zeros.
class DenseCache {
 public:
  explicit DenseCache(const ForwardArguments& arguments);

  static bool needed(const ForwardArguments& arguments);

  /// The call on the copies, which live as long as this object.
  ForwardArguments arguments() const;

 private:
  ConstTensorView copy(const ConstTensorView& cache, std::vector<std::byte>& bytes) const;

  ForwardArguments arguments_;  // the call's own
  std::int64_t batch_ = 0;
  std::int64_t seqlen_k_ = 0;
  std::vector<std::int32_t> leftpad_, lengths_;
  std::vector<std::byte> k_, v_;
  ConstTensorView k_view_, v_view_;
};

}  // namespace strobe::reference
