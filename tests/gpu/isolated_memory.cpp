// SPDX-License-Identifier: Apache-2.0
#include "isolated_memory.h"

#include <map>

namespace strobe::test {
namespace {

using runtime::CUDA_SUCCESS;
using runtime::CUdeviceptr;
using runtime::CUresult;
using runtime::Driver;

// The driver's types and values under its names, of the functions that only this file calls.
// NOLINTBEGIN(readability-identifier-naming)
struct CUmemLocation {
  int type;
  int id;
};
struct CUmemAllocationProp {
  int type;
  int requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  std::uint64_t allocFlags;
};
struct CUmemAccessDesc {
  CUmemLocation location;
  int flags;
};
constexpr int CU_MEM_LOCATION_TYPE_DEVICE = 1;
constexpr int CU_MEM_ALLOCATION_TYPE_PINNED = 1;
constexpr int CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3;
constexpr CUresult CUDA_ERROR_INVALID_VALUE = 1;
// NOLINTEND(readability-identifier-naming)

using Handle = unsigned long long;

struct Block {
  CUdeviceptr reserved = 0;
  std::size_t reserved_bytes = 0;
  CUdeviceptr mapped = 0;
  std::size_t mapped_bytes = 0;
  Handle handle = 0;
};

/// In the place of the driver's MemAlloc and MemFree, once the first IsolatedMemory was made.
class Allocator {
 public:
  static Allocator& of(Driver& driver) {
    static Allocator& allocator = *new Allocator(driver);
    return allocator;
  }

  void isolate(int device, IsolatedMemory::At at) {
    location_ = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    at_ = at;
    isolates_ = true;
  }
  void stop() { isolates_ = false; }

 private:
  static constexpr std::size_t kAlignment = 256;  // as cuMemAlloc's

  explicit Allocator(Driver& driver) : driver_(driver), mem_alloc_(driver.MemAlloc), mem_free_(driver.MemFree) {
    self = this;
    driver.MemAlloc = [](CUdeviceptr* address, std::size_t bytes) { return self->allocate(*address, bytes); };
    driver.MemFree = [](CUdeviceptr address) { return self->free(address); };
  }

  CUresult allocate(CUdeviceptr& address, std::size_t bytes) {
    if (!isolates_) return mem_alloc_(&address, bytes);
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const CUmemAllocationProp what{.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                   .requestedHandleTypes = 0,
                                   .location = location_,
                                   .win32HandleMetaData = nullptr,
                                   .allocFlags = 0};
    const CUmemAccessDesc access{.location = location_, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    std::size_t unit = 0;
    CUresult result = get_granularity_(&unit, &what, 0);
    if (result != CUDA_SUCCESS) return result;
    Block block;
    block.mapped_bytes = (bytes + unit - 1) / unit * unit;
    block.reserved_bytes = block.mapped_bytes + 2 * unit;
    result = reserve_(&block.reserved, block.reserved_bytes, unit, 0, 0);
    block.mapped = block.reserved + unit;
    if (result == CUDA_SUCCESS) result = create_(&block.handle, block.mapped_bytes, &what, 0);
    if (result == CUDA_SUCCESS) result = map_(block.mapped, block.mapped_bytes, 0, block.handle, 0);
    if (result == CUDA_SUCCESS) result = set_access_(block.mapped, block.mapped_bytes, &access, 1);
    if (result != CUDA_SUCCESS) return result;
    address = block.mapped;
    if (at_ == IsolatedMemory::At::last) address += (block.mapped_bytes - bytes) / kAlignment * kAlignment;
    blocks_[address] = block;
    return CUDA_SUCCESS;
  }

  CUresult free(CUdeviceptr address) {
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return mem_free_(address);
    const Block block = found->second;
    blocks_.erase(found);
    CUresult result = driver_.CtxSynchronize();  // as MemFree does
    if (result == CUDA_SUCCESS) result = unmap_(block.mapped, block.mapped_bytes);
    if (result == CUDA_SUCCESS) result = release_(block.handle);
    return result == CUDA_SUCCESS ? free_address_(block.reserved, block.reserved_bytes) : result;
  }

  static inline Allocator* self = nullptr;

  Driver& driver_;
  CUresult (*mem_alloc_)(CUdeviceptr* address, std::size_t bytes);
  CUresult (*mem_free_)(CUdeviceptr address);
  CUresult (*get_granularity_)(std::size_t* bytes, const CUmemAllocationProp* what,
                               int flags) = driver_.symbols.find("cuMemGetAllocationGranularity");
  CUresult (*reserve_)(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr wanted,
                       unsigned long long flags) = driver_.symbols.find("cuMemAddressReserve");
  CUresult (*free_address_)(CUdeviceptr address, std::size_t bytes) = driver_.symbols.find("cuMemAddressFree");
  CUresult (*create_)(Handle* handle, std::size_t bytes, const CUmemAllocationProp* what,
                      unsigned long long flags) = driver_.symbols.find("cuMemCreate");
  CUresult (*release_)(Handle handle) = driver_.symbols.find("cuMemRelease");
  CUresult (*map_)(CUdeviceptr address, std::size_t bytes, std::size_t offset, Handle handle,
                   unsigned long long flags) = driver_.symbols.find("cuMemMap");
  CUresult (*unmap_)(CUdeviceptr address, std::size_t bytes) = driver_.symbols.find("cuMemUnmap");
  CUresult (*set_access_)(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access,
                          std::size_t count) = driver_.symbols.find("cuMemSetAccess");

  CUmemLocation location_{};
  IsolatedMemory::At at_ = IsolatedMemory::At::first;
  bool isolates_ = false;
  std::map<CUdeviceptr, Block> blocks_;
};

Allocator& allocator_of(const runtime::CudaDevice& device) {
  return Allocator::of(const_cast<Driver&>(*device.driver));
}

}  // namespace

IsolatedMemory::IsolatedMemory(const runtime::CudaDevice& device, At at) : device_(device) {
  allocator_of(device).isolate(device.index, at);
}

IsolatedMemory::~IsolatedMemory() { allocator_of(device_).stop(); }

}  // namespace strobe::test
