// SPDX-License-Identifier: Apache-2.0
#include "runtime/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace strobe::runtime {
namespace {

constexpr const char* kDriverName = "libcuda.so.1";
constexpr int kOldestDriver = 12040;  // as the oldest NVRTC that compiles the kernels

Result<const Driver*> open_driver() {
  void* handle = dlopen(kDriverName, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Status(StatusCode::unsupported, fmt::format("there is no NVIDIA driver on this machine: {}", dlerror()));
  }
  static Driver& table = *new Driver(SharedObject(handle));  // outlives every static destructor that still calls it
  if (!table.symbols.missing().empty()) {
    return Status(StatusCode::unsupported, fmt::format("the NVIDIA driver lacks {}; a driver for CUDA 12.4 or later is "
                                                       "needed",
                                                       table.symbols.missing()));
  }
  if (Status status = table.check(table.Init(0), "starting the CUDA driver"); !status.ok()) return status;
  if (Status status = table.check(table.DriverGetVersion(&table.version), "asking the driver's version");
      !status.ok()) {
    return status;
  }
  if (table.version < kOldestDriver) {
    return Status(StatusCode::unsupported,
                  fmt::format("the NVIDIA driver is for CUDA {}.{}; {}.{} or later is needed", table.major(),
                              table.minor(), kOldestDriver / 1000, kOldestDriver % 1000 / 10));
  }
  return &table;
}

}  // namespace

Status Driver::check(CUresult result, const char* attempted) const {
  if (result == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  const char* words = nullptr;
  if (GetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "an error without a name";
  if (GetErrorString(result, &words) != CUDA_SUCCESS || words == nullptr) words = "no description";
  const StatusCode code = result == CUDA_ERROR_OUT_OF_MEMORY ? StatusCode::out_of_memory : StatusCode::device_error;
  return {code, fmt::format("{}: {} ({})", attempted, name, words)};
}

Result<const Driver*> driver() {
  static const Result<const Driver*> opened = open_driver();
  return opened;
}

}  // namespace strobe::runtime
