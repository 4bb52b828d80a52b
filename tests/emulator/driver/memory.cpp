// SPDX-License-Identifier: Apache-2.0
// Allocations, copies and fills, which are checked as a kernel's accesses are.
#include <cstdio>
#include <cstring>

#include "driver/state.h"

using namespace strobe::runtime;   // NOLINT(google-build-using-namespace): the driver's types
using namespace strobe::emulator;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::size_t kFreeBytes = std::size_t{10} << 30;  // of the host, which has less than such a GPU

bool exists(CUdeviceptr address, std::size_t bytes, const char* what) {
  const std::lock_guard lock(machine_mutex());
  if (bytes == 0 || GlobalMemory::instance().find(address).contains(address, bytes)) return true;
  std::fprintf(stderr, "emulator: %s of %zu bytes at 0x%llx, which is no global memory%s\n", what, bytes, address,
               GlobalMemory::instance().describe(address).c_str());
  return false;
}

/// Of either side: an address of the host is none of an allocation, but may be in the middle of none either.
bool is_device(CUdeviceptr address) {
  const std::lock_guard lock(machine_mutex());
  return GlobalMemory::instance().find(address).end != 0;
}

}  // namespace

STROBE_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
  const std::lock_guard lock(machine_mutex());
  if (bytes == 0) return kInvalidValue;
  if (bytes + GlobalMemory::instance().used() > kFreeBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = GlobalMemory::instance().allocate(bytes);
  return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  const std::lock_guard lock(machine_mutex());
  return address == 0 || GlobalMemory::instance().free(address) ? CUDA_SUCCESS : kInvalidValue;
}
STROBE_EXPORT CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  const std::lock_guard lock(machine_mutex());
  *total = std::size_t{80} << 30;
  *free = kFreeBytes - GlobalMemory::instance().used();
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  if (!exists(to, bytes, "a copy to the device")) return kInvalidValue;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  if (!exists(from, bytes, "a copy from the device")) return kInvalidValue;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return enqueue(stream, [=] {
    if (is_device(to) && !exists(to, bytes, "a copy")) return kInvalidValue;
    if (is_device(from) && !exists(from, bytes, "a copy")) return kInvalidValue;
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return CUDA_SUCCESS;
  });
}
STROBE_EXPORT CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, std::size_t count, CUstream stream) {
  return enqueue(stream, [=] {
    if (!exists(address, count, "a fill")) return kInvalidValue;
    std::memset(reinterpret_cast<void*>(address), value, count);
    return CUDA_SUCCESS;
  });
}
STROBE_EXPORT CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, std::size_t count, CUstream stream) {
  return enqueue(stream, [=] {
    if (!exists(address, 4 * count, "a fill")) return kInvalidValue;
    auto* const words = reinterpret_cast<unsigned*>(address);
    for (std::size_t i = 0; i < count; ++i) words[i] = value;
    return CUDA_SUCCESS;
  });
}

// Virtual memory, of which tests map parts: reserved addresses are memory that no kernel may touch yet.
STROBE_EXPORT CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const void*, int) {
  *bytes = std::size_t{2} << 20;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr,
                                           unsigned long long) {
  void* const memory = std::aligned_alloc(alignment, bytes);
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return memory == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, std::size_t) {
  std::free(reinterpret_cast<void*>(address));
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuMemCreate(unsigned long long* handle, std::size_t, const void*, unsigned long long) {
  *handle = 1;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuMemRelease(unsigned long long) { return CUDA_SUCCESS; }
STROBE_EXPORT CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t, unsigned long long,
                                unsigned long long) {
  const std::lock_guard lock(machine_mutex());
  std::memset(reinterpret_cast<void*>(address), 0xff, bytes);
  GlobalMemory::instance().add(address, bytes);
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuMemUnmap(CUdeviceptr address, std::size_t) {
  const std::lock_guard lock(machine_mutex());
  GlobalMemory::instance().remove(address);
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuMemSetAccess(CUdeviceptr, std::size_t, const void*, std::size_t) { return CUDA_SUCCESS; }
