// SPDX-License-Identifier: Apache-2.0
// What the kernels of sparse attention's gradients are given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gpu/sparse/backward_layout.h"
#include "kernels/auxiliary/listed_places_params.h"
#include "kernels/auxiliary/sink_gradient_params.h"
#include "kernels/auxiliary/sparse_backward/params.h"
#include "strobe/sparse.h"

namespace strobe::gpu {

/// The parameters of a call whose layout lies in `workspace`.
class SparseGradientParams {
 public:
  SparseGradientParams(const SparseBackwardArguments& arguments, const SparseGradientLayout& layout,
                       std::byte* workspace)
      : b_(arguments), layout_(layout), workspace_(workspace) {}

  auxiliary::SparsePrepareParams prepare() const;

  /// Of the products of every wave, but for its first query and the source.
  auxiliary::SparseBackwardParams products(const SparseOptions& options) const;

  /// The rows that the lists of queries from `first` on name, counted through all pages.
  auxiliary::ListedPlacesParams places(const SparseGradientRows& source, std::int64_t first) const;

  /// `ctas`: how many run on the device at once.
  auxiliary::SparseSumParams sum(const SparseGradientRows& source, std::int64_t queries, std::int64_t ctas) const;
  auxiliary::SparseStoreParams store(const SparseGradientRows& source) const;
  auxiliary::SinkGradientParams sink() const;

 private:
  auxiliary::SparseRows rows_of_source(const SparseGradientRows& source) const;
  Rows rows_of(std::string_view name, const ConstTensorView& tensor) const;

  template <class Number>
  Number* at(std::size_t offset) const {
    return reinterpret_cast<Number*>(workspace_ + offset);
  }

  const SparseBackwardArguments& b_;
  const SparseGradientLayout& layout_;
  std::byte* workspace_;
};

}  // namespace strobe::gpu
