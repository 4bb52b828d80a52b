// SPDX-License-Identifier: Apache-2.0
// A kernel of a configuration: loaded before, or from the pack, the user's cache or the compiler.
#pragma once

#include <future>

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

/// One of several kernels of a call: where it is wanted and not loaded yet, a thread of its own begins to load it. The
/// configuration must outlive this object.
template <class Config, class MakeVariant>
class KernelAhead {
 public:
  KernelAhead(bool wanted, const Config& config, const runtime::CudaDevice& device, int smem_bytes,
              MakeVariant make_variant)
      : wanted_(wanted),
        config_(config),
        device_(device),
        smem_bytes_(smem_bytes),
        make_variant_(make_variant),
        loading_(load_ahead(!wanted || kernel_table<Config, MakeVariant>().holds(config, device),
                            [this] { return find(); })) {}
  KernelAhead(const KernelAhead&) = delete;
  KernelAhead& operator=(const KernelAhead&) = delete;

  /// Sets the kernel where it is wanted; the Status says why there is none.
  Status take(runtime::Kernel& kernel) const {
    if (!wanted_) return {};
    const Result<runtime::Kernel> found = find();
    if (!found.ok()) return found.status();
    kernel = *found;
    return {};
  }

 private:
  Result<runtime::Kernel> find() const { return find_kernel(config_, device_, smem_bytes_, make_variant_); }

  bool wanted_;
  const Config& config_;
  const runtime::CudaDevice& device_;
  int smem_bytes_;
  MakeVariant make_variant_;
  std::future<void> loading_;  // the first to be destroyed: it waits for the thread
};

}  // namespace strobe::gpu
