// SPDX-License-Identifier: Apache-2.0
// A list of kernels that are compiled ahead.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "call/problem.h"
#include "runtime/kernel.h"
#include "runtime/pack/common_variants.h"

namespace strobe::gpu {

/// Different problems share kernels: each is in the list once.
class PackList {
 public:
  /// One of the kernels of a call, as FindKernels is told it.
  template <class Config, class MakeVariant>
  void operator()(const Config&, int smem_bytes, const MakeVariant& make_variant, const runtime::Kernel&) {
    add(make_variant(), static_cast<unsigned>(smem_bytes));
  }

  void add(runtime::Variant variant, unsigned dynamic_shared_bytes) {
    for (const runtime::CommonVariant& other : variants_) {
      if (other.variant.expression == variant.expression && other.variant.architecture == variant.architecture) return;
    }
    variants_.push_back({std::move(variant), dynamic_shared_bytes});
  }

  std::vector<runtime::CommonVariant> take() { return std::move(variants_); }

 private:
  std::vector<runtime::CommonVariant> variants_;
};

/// add(dtype, head_dim, causal) for what most models ask for.
template <class Add>
void for_common_shapes(const Add& add) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) add(dtype, head_dim, causal);
    }
  }
}

}  // namespace strobe::gpu
