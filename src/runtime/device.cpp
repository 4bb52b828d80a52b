// SPDX-License-Identifier: Apache-2.0
#include "runtime/device.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>

namespace strobe::runtime {
namespace {

Status read_properties(CudaDevice& device) {
  const Driver& driver = *device.driver;
  std::array<char, 256> name{};
  if (Status status = driver.check(driver.DeviceGetName(name.data(), static_cast<int>(name.size()), device.handle),
                                   "asking a device's name");
      !status.ok()) {
    return status;
  }
  device.name = name.data();
  int l2_bytes = 0;
  const std::pair<CUdevice_attribute, int*> attributes[] = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &device.compute_major},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &device.compute_minor},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &device.multiprocessors},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &l2_bytes},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &device.max_shared_bytes},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, &device.clock_khz},
  };
  for (const auto& [attribute, value] : attributes) {
    const CUresult result = driver.DeviceGetAttribute(value, attribute, device.handle);
    if (Status status = driver.check(result, "asking a device's attributes"); !status.ok()) return status;
  }
  device.l2_bytes = static_cast<std::size_t>(l2_bytes);
  // What not every driver knows stays 0.
  driver.DeviceGetAttribute(&device.memory_clock_khz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device.handle);
  driver.DeviceGetAttribute(&device.memory_bus_bits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device.handle);
  return driver.check(driver.DeviceTotalMem(&device.memory_bytes, device.handle), "asking a device's memory");
}

Result<const CudaDevice*> open_device(int index) {
  const Result<int> count = cuda_device_count();
  if (!count.ok()) return count.status();
  if (index < 0 || index >= *count) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("CUDA device {} does not exist: this machine has {}", index, *count));
  }
  auto device = std::make_unique<CudaDevice>();
  device->driver = *driver();
  device->index = index;
  const Driver& driver = *device->driver;
  if (Status status = driver.check(driver.DeviceGet(&device->handle, index), "opening a device"); !status.ok()) {
    return status;
  }
  if (Status status = read_properties(*device); !status.ok()) return status;
  if (Status status = driver.check(driver.DevicePrimaryCtxRetain(&device->context, device->handle),
                                   "starting a device's primary context");
      !status.ok()) {
    return status;
  }
  return device.release();  // for the process, as its context
}

}  // namespace

Result<int> cuda_device_count() {
  const Result<const Driver*> opened = driver();
  if (!opened.ok()) return opened.status();
  int count = 0;
  const CUresult result = (*opened)->DeviceGetCount(&count);
  if (result == CUDA_ERROR_NO_DEVICE) return 0;
  if (Status status = (*opened)->check(result, "counting devices"); !status.ok()) return status;
  return count;
}

Result<const CudaDevice*> cuda_device(int index) {
  static std::mutex mutex;
  static std::map<int, const CudaDevice*>& devices = *new std::map<int, const CudaDevice*>;
  const std::lock_guard lock(mutex);
  if (const auto at = devices.find(index); at != devices.end()) return at->second;
  Result<const CudaDevice*> opened = open_device(index);
  if (opened.ok()) devices.emplace(index, *opened);
  return opened;
}

ContextScope::ContextScope(const CudaDevice& device) : device_(device) {
  const Driver& driver = *device.driver;
  status_ = driver.check(driver.CtxGetCurrent(&current_), "asking the current context");
  if (!status_.ok() || current_ == device.context) return;
  if (current_ != nullptr) {  // a context of the caller's own making serves as well, if it is this device's
    CUdevice handle = -1;
    status_ = driver.check(driver.CtxGetDevice(&handle), "asking the current context's device");
    if (!status_.ok() || handle == device.handle) return;
  }
  status_ = driver.check(driver.CtxPushCurrent(device.context), "entering a device's primary context");
  pushed_ = status_.ok();
  current_ = device.context;
}

ContextScope::~ContextScope() {
  CUcontext popped = nullptr;
  if (pushed_) device_.driver->CtxPopCurrent(&popped);
}

}  // namespace strobe::runtime
