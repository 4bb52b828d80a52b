// SPDX-License-Identifier: Apache-2.0
#include <tbb/info.h>

#include "cpu/bfloat16/kernels.h"
#include "cpu/cache_size.h"
#include "cpu/kernels/kernels.h"
#include "cpu/passes.h"

namespace strobe::cpu {
namespace {

// The smallest caches of the machines that run AVX2.
constexpr std::int64_t kDefaultL1 = 32 * 1024;
constexpr std::int64_t kDefaultL2 = 512 * 1024;

}  // namespace

const Machine& this_machine() {
  static const Machine machine{.kernels = kernel_traits(),
                               .l1_bytes = data_cache_bytes(1, kDefaultL1),
                               .l2_bytes = data_cache_bytes(2, kDefaultL2),
                               .bfloat16 = bf16::unit()};
  return machine;
}

int worker_count(int threads) { return threads > 0 ? threads : tbb::info::default_concurrency(); }

}  // namespace strobe::cpu
