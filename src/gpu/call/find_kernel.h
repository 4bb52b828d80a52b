// SPDX-License-Identifier: Apache-2.0
// A kernel of a configuration: loaded before, or from the pack, the user's cache or the compiler.
#pragma once

#include <functional>
#include <future>
#include <vector>

#include "gpu/variant/kernel_table.h"
#include "gpu/variant/load_ahead.h"

namespace strobe::gpu {

/// One for each type of MakeVariant, so that each place that looks for kernels has its own.
template <class Config, class MakeVariant>
KernelTable<Config>& kernel_table() {
  static auto& table = *new KernelTable<Config>;
  return table;
}

/// `make_variant()` says what to load, with `smem_bytes` of dynamic shared memory, where this is the first call for it.
template <class Config, class MakeVariant>
Result<runtime::Kernel> find_kernel(const Config& config, const runtime::CudaDevice& device, int smem_bytes,
                                    const MakeVariant& make_variant) {
  return kernel_table<Config, MakeVariant>().find_or_load(config, device, [&] {
    return runtime::load_kernel(runtime::kernel_store(), make_variant(), device, static_cast<unsigned>(smem_bytes));
  });
}

/// Several kernels of a call: what is not loaded yet begins to load in a thread of its own.
class FindKernels {
 public:
  explicit FindKernels(const runtime::CudaDevice& device) : device_(device) {}
  FindKernels(const FindKernels&) = delete;
  FindKernels& operator=(const FindKernels&) = delete;

  /// `make_variant`, copied, says what to load. take() sets `kernel`.
  template <class Config, class MakeVariant>
  void operator()(const Config& config, int smem_bytes, const MakeVariant& make_variant, runtime::Kernel& kernel) {
    const bool is_loaded = kernel_table<Config, MakeVariant>().holds(config, device_);
    const auto find = [&device = device_, config, smem_bytes, make_variant] {
      return find_kernel(config, device, smem_bytes, make_variant);
    };
    wanted_.push_back({find, &kernel, load_ahead(is_loaded, find)});
  }

  /// Sets all of them; the Status says why one is not to be had.
  Status take() const {
    for (const Wanted& wanted : wanted_) {
      const Result<runtime::Kernel> found = wanted.find();
      if (!found.ok()) return found.status();
      *wanted.kernel = *found;
    }
    return {};
  }

 private:
  struct Wanted {
    std::function<Result<runtime::Kernel>()> find;
    runtime::Kernel* kernel;
    std::future<void> loading;  // its end waits for the thread
  };

  const runtime::CudaDevice& device_;
  std::vector<Wanted> wanted_;
};

}  // namespace strobe::gpu
