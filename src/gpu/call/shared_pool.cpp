// SPDX-License-Identifier: Apache-2.0
#include "gpu/call/shared_pool.h"

#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace strobe::gpu {

runtime::WorkspacePool& shared_pool(const runtime::CudaDevice& device, std::size_t bytes) {
  using Key = std::pair<int, std::size_t>;
  static std::mutex mutex;
  static auto& pools = *new std::map<Key, std::unique_ptr<runtime::WorkspacePool>>;
  const std::size_t rounded = std::bit_ceil(bytes);
  const std::lock_guard lock(mutex);
  auto& pool = pools[{device.index, rounded}];
  if (pool == nullptr) pool = std::make_unique<runtime::WorkspacePool>(device, rounded);
  return *pool;
}

}  // namespace strobe::gpu
