// SPDX-License-Identifier: Apache-2.0
// The driver's version, its one device and its context. STROBE_EMULATOR_DEVICE: "h100" or "a100".
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>

#include "driver/state.h"

using namespace strobe::runtime;   // NOLINT(google-build-using-namespace): the driver's types
using namespace strobe::emulator;  // NOLINT(google-build-using-namespace)

namespace {

struct Device {
  const char* name;
  std::size_t memory_bytes;
  std::map<int, int> attributes;
};

/// Source: NVIDIA's data sheets, and CUDA Programming Guide, "Compute Capabilities".
const Device& device() {
  static const Device h100{"NVIDIA H100 80GB HBM3 (emulated)",
                           std::size_t{80} << 30,
                           {{CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
                            {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
                            {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
                            {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
                            {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 << 20},
                            {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
                            {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                            {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 << 10}}};
  static const Device a100{"NVIDIA A100-SXM4-80GB (emulated)",
                           std::size_t{80} << 30,
                           {{CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1410000},
                            {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 108},
                            {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1593000},
                            {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
                            {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 40 << 20},
                            {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 8},
                            {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                            {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 163 << 10}}};
  const char* const chosen = std::getenv("STROBE_EMULATOR_DEVICE");
  return chosen != nullptr && std::string_view(chosen) == "a100" ? a100 : h100;
}

char the_context;
thread_local std::vector<CUcontext> contexts;

const std::map<CUresult, std::pair<const char*, const char*>>& errors() {
  static const std::map<CUresult, std::pair<const char*, const char*>> names = {
      {0, {"CUDA_SUCCESS", "no error"}},
      {1, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
      {2, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
      {200, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid: the emulator runs PTX"}},
      {500, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
      {700, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal access; standard error has what the emulator found"}},
      {719, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure; standard error has what the emulator found"}}};
  return names;
}

}  // namespace

// The oldest driver that the library takes: it rejects machine code compiled ahead, and has kernels compiled by the
// NVRTC beside it, which is as old. One that runs nothing loads what a real NVRTC of CUDA 13 makes.
STROBE_EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = Options::get().idle ? 13000 : 12040;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
STROBE_EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
  const auto found = errors().find(error);
  *name = found == errors().end() ? "CUDA_ERROR_UNKNOWN" : found->second.first;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuGetErrorString(CUresult error, const char** words) {
  const auto found = errors().find(error);
  *words = found == errors().end() ? "unknown error" : found->second.second;
  return CUDA_SUCCESS;
}

STROBE_EXPORT CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuDeviceGet(CUdevice* handle, int ordinal) {
  *handle = ordinal;
  return ordinal == 0 ? CUDA_SUCCESS : 101;
}
STROBE_EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::strncpy(name, device().name, static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const auto found = device().attributes.find(attribute);
  *value = found == device().attributes.end() ? 0 : found->second;
  return found == device().attributes.end() ? kInvalidValue : CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  *bytes = device().memory_bytes;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = reinterpret_cast<CUcontext>(&the_context);
  return CUDA_SUCCESS;
}

STROBE_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuCtxGetDevice(CUdevice* handle) {
  *handle = 0;
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  contexts.push_back(context);
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (contexts.empty()) return kInvalidValue;
  *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }

// NVRTC looks for a driver too, and takes one without these tables for none.
STROBE_EXPORT CUresult cuGetExportTable(const void**, const void*) { return kNotFound; }
STROBE_EXPORT CUresult cuGetProcAddress_v2(const char*, void** function, int, unsigned long long, void*) {
  *function = nullptr;
  return kNotFound;
}
