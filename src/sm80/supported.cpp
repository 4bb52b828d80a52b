// SPDX-License-Identifier: Apache-2.0
#include "sm80/supported.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "gpu/plan/row_invariant.h"
#include "gpu/plan/supported.h"
#include "sm80/engine.h"

namespace strobe::sm80 {

DeviceShape shape_of(const runtime::CudaDevice& device) {
  return {.compute_major = device.compute_major,
          .compute_minor = device.compute_minor,
          .multiprocessors = device.multiprocessors,
          .l2_bytes = device.l2_bytes,
          .shared_bytes = device.max_shared_bytes};
}

namespace {

/// Copies are of 16 bytes.
Status check_stored(const AttentionProblem& problem) {
  if (!problem.stored.given()) return {};
  constexpr std::int64_t kElements = 16;
  for (const auto& [name, value] :
       {std::pair{"head_dim", problem.head_dim}, std::pair{"head_dim_v", problem.head_dim_v}}) {
    if (value % kElements != 0) {
      return gpu::unsupported("{} is {} and k is {}: the ampere engine takes multiples of {}; the cpu engine takes any",
                              name, value, name_of(problem.stored.dtype), kElements);
    }
  }
  return {};
}

}  // namespace

Status check_supported(const AttentionProblem& problem) {
  if (problem.eight_bit.given()) {
    return gpu::unsupported("q is {}: the ampere engine has no 8-bit inputs; the hopper and cpu engines have",
                            name_of(problem.dtype));
  }
  if (Status status = gpu::check_dtype(problem, kEngine); !status.ok()) return status;
  if (Status status = check_stored(problem); !status.ok()) return status;
  if (Status status = gpu::check_row_invariant(problem, kEngine); !status.ok()) return status;
  return gpu::check_sizes(problem, kEngine);
}

int compiled_head_dim(std::int64_t head_dim) {
  constexpr int kCompiled[] = {32, 64, 96, 128, 192, 256};
  return *std::lower_bound(std::begin(kCompiled), std::end(kCompiled), static_cast<int>(head_dim));
}

std::string explain(const DeviceShape& shape) {
  const bool newer = shape.compute_major == 9 && shape.compute_minor == 0;
  return fmt::format("engine        ampere: {} compute capability {}.{}\n",
                     newer ? "wanted, on a GPU of" : "the tensors are on a GPU of", shape.compute_major,
                     shape.compute_minor);
}

}  // namespace strobe::sm80
