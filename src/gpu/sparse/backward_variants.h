// SPDX-License-Identifier: Apache-2.0
// The kernels of sparse attention's gradients, for the kernel store.
#pragma once

#include <string_view>

#include "gpu/variant/fields.h"
#include "gpu/variant/score_fields.h"
#include "kernels/auxiliary/sparse_backward/params.h"
#include "runtime/device.h"
#include "runtime/kernel.h"

namespace strobe::auxiliary {

constexpr std::string_view type_name(const SparseBackwardConfig&) { return "strobe::auxiliary::SparseBackwardConfig"; }
constexpr auto fields_of(const SparseBackwardConfig&) {
  using Config = SparseBackwardConfig;
  using gpu::field;
  return gpu::all_fields(field("element", &Config::element), field("aligned", &Config::aligned),
                         field("heads", &Config::heads));
}

}  // namespace strobe::auxiliary

namespace strobe::gpu {

/// Those of a call, in the order in which they run.
struct SparseBackwardKernels {
  runtime::Kernel prepare, weights, query_gradient, shares, sum, store, sink;
};

/// `sink`: whether its gradient is wanted.
Result<SparseBackwardKernels> sparse_backward_kernels(const auxiliary::SparseBackwardConfig& config, bool sink,
                                                      const runtime::CudaDevice& device);

}  // namespace strobe::gpu
