// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel.h"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "runtime/nvrtc_choice.h"

namespace strobe::runtime {
namespace {

/// One variant of one store; loaded by the first that locks it, while lookups of other variants go on.
struct Loaded {
  std::mutex mutex;
  CUkernel kernel = nullptr;
};

Loaded& loaded_entry(const KernelStore& store, const Variant& variant) {
  using Name = std::pair<const KernelStore*, std::string>;
  static std::mutex mutex;
  static std::map<Name, Loaded>& entries = *new std::map<Name, Loaded>;  // a map's entries stay where they are
  const std::lock_guard lock(mutex);
  return entries[Name(&store, store.key(variant, {}))];
}

/// Machine code in a form that this driver does not load.
bool is_rejection(CUresult result) {
  return result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_NO_BINARY_FOR_GPU;
}

/// A library serves every device and context of the process, so it is loaded once and stays. `result`: the driver's
/// last one, which tells a rejection from other failures.
Result<CUkernel> load_library(const Driver& driver, const Variant& variant, const KernelImage& image,
                              CUresult& result) {
  CUlibrary library = nullptr;
  const std::string cubin(image.cubin);  // aligned as the driver may want it, which the archive's bytes are not
  result = driver.LibraryLoadData(&library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (Status status = driver.check(result, fmt::format("loading the kernel {}", variant.name).c_str()); !status.ok()) {
    return status;
  }
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  result = driver.LibraryGetKernel(&kernel, library, std::string(image.lowered_name).c_str());
  // The driver may not look at the code before a device needs it.
  if (result == CUDA_SUCCESS) result = driver.KernelGetFunction(&function, kernel);
  if (Status status = driver.check(result, fmt::format("finding the kernel {}", variant.name).c_str()); !status.ok()) {
    driver.LibraryUnload(library);
    return status;
  }
  return kernel;
}

/// Finds the variant and loads it; where the driver rejects code of a later CUDA than its own, code of its own.
Result<CUkernel> find_and_load(const KernelStore& store, const Variant& variant, const Driver& driver) {
  static std::atomic<bool> rejects_later{false};
  const NvrtcVersion own{driver.major(), driver.minor()};
  CUresult result = CUDA_SUCCESS;
  Status rejected;
  if (!rejects_later) {
    const Result<KernelImage> image = store.find(variant, newest_cubin(driver));
    if (!image.ok()) return image.status();
    Result<CUkernel> kernel = load_library(driver, variant, *image, result);
    if (kernel.ok() || !is_rejection(result)) return kernel;
    rejected = kernel.status();
  }
  const Result<KernelImage> image = store.find(variant, own);
  if (!image.ok()) {
    if (rejected.ok()) return image.status();
    return Status(rejected.code(), fmt::format("{}; {}", rejected.message(), image.status().message()));
  }
  Result<CUkernel> kernel = load_library(driver, variant, *image, result);
  if (kernel.ok()) rejects_later = true;
  return kernel;
}

Result<CUkernel> load_once(const KernelStore& store, const Variant& variant, const Driver& driver) {
  Loaded& entry = loaded_entry(store, variant);
  const std::lock_guard lock(entry.mutex);
  if (entry.kernel != nullptr) return entry.kernel;
  Result<CUkernel> kernel = find_and_load(store, variant, driver);
  if (kernel.ok()) entry.kernel = *kernel;
  return kernel;
}

Status read_resources(const CudaDevice& device, CUkernel kernel, KernelResources& resources) {
  const std::pair<CUfunction_attribute, int*> attributes[] = {
      {CU_FUNC_ATTRIBUTE_NUM_REGS, &resources.registers},
      {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &resources.local_bytes},
      {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &resources.static_shared},
      {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &resources.max_threads},
  };
  for (const auto& [attribute, value] : attributes) {
    const CUresult result = device.driver->KernelGetAttribute(value, attribute, kernel, device.handle);
    if (Status status = device.driver->check(result, "asking a kernel's attributes"); !status.ok()) return status;
  }
  return {};
}

}  // namespace

Result<Kernel> load_kernel(const KernelStore& store, const Variant& variant, const CudaDevice& device,
                           unsigned dynamic_shared_bytes) {
  const Driver& driver = *device.driver;
  const ContextScope context(device);
  if (!context.status().ok()) return context.status();
  const Result<CUkernel> handle = load_once(store, variant, driver);
  if (!handle.ok()) return handle.status();
  Kernel kernel{.handle = *handle, .function = nullptr, .context = context.current(), .resources = {}};
  // Getting the function loads the code onto the device now: the driver would otherwise do it at the first launch,
  // with a synchronisation that a stream under capture does not survive.
  if (Status status =
          driver.check(driver.KernelGetFunction(&kernel.function, kernel.handle), "loading a kernel onto a device");
      !status.ok()) {
    return status;
  }
  if (Status status = read_resources(device, kernel.handle, kernel.resources); !status.ok()) return status;
  const int available = device.max_shared_bytes - kernel.resources.static_shared;
  if (static_cast<std::int64_t>(dynamic_shared_bytes) > available) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("the kernel {} needs {} bytes of dynamic shared memory per block; {} has {} for it",
                              variant.name, dynamic_shared_bytes, device.name, available));
  }
  // All there is, and not what this plan needs: plans of the same variant must not take it from each other.
  if (Status status = driver.check(driver.KernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, available,
                                                             kernel.handle, device.handle),
                                   "opting in to a kernel's shared memory");
      !status.ok()) {
    return status;
  }
  return kernel;
}

}  // namespace strobe::runtime
