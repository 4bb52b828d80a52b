// SPDX-License-Identifier: Apache-2.0
#include <tbb/info.h>
#include <unistd.h>

#include "cpu/amx/amx.h"
#include "cpu/kernels/kernels.h"
#include "cpu/passes.h"

namespace strobe::cpu {
namespace {

// Containers and emulators report 0; these are then the smallest caches of the machines that run AVX2.
constexpr std::int64_t kDefaultL1 = 32 * 1024;
constexpr std::int64_t kDefaultL2 = 512 * 1024;

std::int64_t cache_bytes(int name, std::int64_t otherwise) {
  const long bytes = sysconf(name);
  return bytes > 0 ? bytes : otherwise;
}

}  // namespace

const Machine& this_machine() {
  static const Machine machine{.kernels = kernel_traits(),
                               .l1_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, kDefaultL1),
                               .l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, kDefaultL2),
                               .amx = amx::available()};
  return machine;
}

int worker_count(int threads) { return threads > 0 ? threads : tbb::info::default_concurrency(); }

}  // namespace strobe::cpu
