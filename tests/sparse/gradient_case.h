// SPDX-License-Identifier: Apache-2.0
// A backward of sparse attention of random shapes: the forward's case, run on the CPU, with random dO and dLSE and
// places for the gradients.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "reference/sparse.h"
#include "sparse_case.h"

namespace strobe::test {

/// A shape whose sources have gradients.
SparseShape random_trainable_shape(std::uint64_t seed);

/// Likewise one whose gradients the gpu engine has: of one dtype of 16 bits.
SparseShape random_trainable_gpu_shape(std::uint64_t seed);

class GradientCase {
 public:
  GradientCase(const SparseShape& shape, std::uint64_t seed);

  std::vector<GuardedTensor*> outputs();

  /// The arguments with copies elsewhere, place(tensor) being where one is.
  template <class Place>
  SparseBackwardArguments placed(const Place& place) const {
    SparseBackwardArguments a = arguments;
    a.forward = one.placed(place);
    const auto replace = [&](auto& view, const GuardedTensor& tensor) {
      if (view.given()) view = place(tensor);
    };
    replace(a.d_o, d_o);
    replace(a.d_lse, d_lse);
    replace(a.dq, dq);
    replace(a.d_sink, d_sink);
    for (std::size_t i = 0; i < a.gradients.size(); ++i) {
      replace(a.gradients[i].dk, dk[i]);
      replace(a.gradients[i].dv, dv[i]);
    }
    return a;
  }

  /// Every gradient within its bound, and nothing written beside.
  void expect_gradients(const reference::SparseBackwardResult& expected);

  SparseCase one;
  GuardedTensor d_o, d_lse, dq, d_sink;
  std::array<GuardedTensor, kMaxSparseSources> dk, dv;
  SparseBackwardArguments arguments;
};

}  // namespace strobe::test
