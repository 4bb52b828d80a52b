// SPDX-License-Identifier: Apache-2.0
// Kernels that were loaded before, by their configuration and device. A variant's source text and its key in the store
// are made only for one that is not here.
#pragma once

#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "gpu/variant/fields.h"
#include "runtime/kernel.h"

namespace strobe::gpu {

template <class Config>
class KernelTable {
 public:
  bool holds(const Config& config, const runtime::CudaDevice& device) {
    const std::shared_lock lock(mutex_);
    return kernels_.contains({config, device.index});
  }

  /// `load()` gives the kernel where this is the first call for it. Failures are not kept.
  template <class Load>
  Result<runtime::Kernel> find_or_load(const Config& config, const runtime::CudaDevice& device, const Load& load) {
    const Key key{config, device.index};
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = kernels_.find(key); found != kernels_.end()) return found->second;
    }
    Result<runtime::Kernel> kernel = load();  // two threads may both come here: the store loads it once
    if (kernel.ok()) {
      const std::unique_lock lock(mutex_);
      kernels_.emplace(key, *kernel);
    }
    return kernel;
  }

 private:
  struct Key {
    Config config;
    int device;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const { return hash_of(key.config) ^ static_cast<std::size_t>(key.device); }
  };

  std::shared_mutex mutex_;
  std::unordered_map<Key, runtime::Kernel, Hash> kernels_;
};

}  // namespace strobe::gpu
