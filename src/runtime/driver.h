// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, opened at first use: the program starts, and works on the CPU, where there is none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/cuda_abi.h"
#include "runtime/shared_object.h"
#include "strobe/status.h"

namespace strobe::runtime {

/// The driver's functions under their names without the prefix `cu`. Each is bound to the exported name whose binary
/// interface cuda_abi.h describes; all of them exist in drivers for CUDA 12.4.
struct Driver {
  explicit Driver(SharedObject object) : symbols(std::move(object)) {}

  SharedObject symbols;  // first: the initialisers below read it

  // NOLINTBEGIN(readability-identifier-naming): the driver's names
  CUresult (*Init)(unsigned flags) = symbols.find("cuInit");
  CUresult (*DriverGetVersion)(int* version) = symbols.find("cuDriverGetVersion");
  CUresult (*GetErrorName)(CUresult error, const char** name) = symbols.find("cuGetErrorName");
  CUresult (*GetErrorString)(CUresult error, const char** words) = symbols.find("cuGetErrorString");

  CUresult (*DeviceGetCount)(int* count) = symbols.find("cuDeviceGetCount");
  CUresult (*DeviceGet)(CUdevice* device, int ordinal) = symbols.find("cuDeviceGet");
  CUresult (*DeviceGetName)(char* name, int length, CUdevice device) = symbols.find("cuDeviceGetName");
  CUresult (*DeviceGetAttribute)(int* value, CUdevice_attribute attribute,
                                 CUdevice device) = symbols.find("cuDeviceGetAttribute");
  CUresult (*DeviceTotalMem)(std::size_t* bytes, CUdevice device) = symbols.find("cuDeviceTotalMem_v2");
  CUresult (*DevicePrimaryCtxRetain)(CUcontext* context, CUdevice device) = symbols.find("cuDevicePrimaryCtxRetain");

  CUresult (*CtxGetCurrent)(CUcontext* context) = symbols.find("cuCtxGetCurrent");
  CUresult (*CtxGetDevice)(CUdevice* device) = symbols.find("cuCtxGetDevice");
  CUresult (*CtxPushCurrent)(CUcontext context) = symbols.find("cuCtxPushCurrent_v2");
  CUresult (*CtxPopCurrent)(CUcontext* context) = symbols.find("cuCtxPopCurrent_v2");
  CUresult (*CtxSynchronize)() = symbols.find("cuCtxSynchronize");

  CUresult (*LibraryLoadData)(CUlibrary* library, const void* code, int* jit_options, void** jit_values,
                              unsigned jit_count, int* library_options, void** library_values,
                              unsigned library_count) = symbols.find("cuLibraryLoadData");
  CUresult (*LibraryUnload)(CUlibrary library) = symbols.find("cuLibraryUnload");
  CUresult (*LibraryGetKernel)(CUkernel* kernel, CUlibrary library,
                               const char* name) = symbols.find("cuLibraryGetKernel");
  CUresult (*KernelGetFunction)(CUfunction* function, CUkernel kernel) = symbols.find("cuKernelGetFunction");
  CUresult (*KernelGetAttribute)(int* value, CUfunction_attribute attribute, CUkernel kernel,
                                 CUdevice device) = symbols.find("cuKernelGetAttribute");
  CUresult (*KernelSetAttribute)(CUfunction_attribute attribute, int value, CUkernel kernel,
                                 CUdevice device) = symbols.find("cuKernelSetAttribute");
  CUresult (*LaunchKernelEx)(const CUlaunchConfig* config, CUfunction function, void** parameters,
                             void** extra) = symbols.find("cuLaunchKernelEx");
  CUresult (*OccupancyMaxActiveClusters)(int* clusters, CUfunction function,
                                         const CUlaunchConfig* config) = symbols.find("cuOccupancyMaxActiveClusters");
  CUresult (*TensorMapEncodeTiled)(void* tensor_map, CUtensorMapDataType type, std::uint32_t rank, void* address,
                                   const std::uint64_t* extents, const std::uint64_t* strides, const std::uint32_t* box,
                                   const std::uint32_t* element_strides, CUtensorMapInterleave interleave,
                                   CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                   CUtensorMapFloatOOBfill fill) = symbols.find("cuTensorMapEncodeTiled");

  CUresult (*MemAlloc)(CUdeviceptr* address, std::size_t bytes) = symbols.find("cuMemAlloc_v2");
  CUresult (*MemFree)(CUdeviceptr address) = symbols.find("cuMemFree_v2");
  CUresult (*MemGetInfo)(std::size_t* free, std::size_t* total) = symbols.find("cuMemGetInfo_v2");
  CUresult (*MemcpyHtoD)(CUdeviceptr to, const void* from, std::size_t bytes) = symbols.find("cuMemcpyHtoD_v2");
  CUresult (*MemcpyDtoH)(void* to, CUdeviceptr from, std::size_t bytes) = symbols.find("cuMemcpyDtoH_v2");
  CUresult (*MemcpyAsync)(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                          CUstream stream) = symbols.find("cuMemcpyAsync");
  CUresult (*MemsetD8Async)(CUdeviceptr address, unsigned char value, std::size_t count,
                            CUstream stream) = symbols.find("cuMemsetD8Async");
  CUresult (*MemsetD32Async)(CUdeviceptr address, unsigned value, std::size_t count,
                             CUstream stream) = symbols.find("cuMemsetD32Async");

  CUresult (*StreamCreate)(CUstream* stream, unsigned flags) = symbols.find("cuStreamCreate");
  CUresult (*StreamDestroy)(CUstream stream) = symbols.find("cuStreamDestroy_v2");
  CUresult (*StreamSynchronize)(CUstream stream) = symbols.find("cuStreamSynchronize");
  CUresult (*StreamWaitEvent)(CUstream stream, CUevent event, unsigned flags) = symbols.find("cuStreamWaitEvent");
  CUresult (*StreamGetId)(CUstream stream, unsigned long long* id) = symbols.find("cuStreamGetId");
  CUresult (*StreamGetCaptureInfo)(CUstream stream, CUstreamCaptureStatus* status, std::uint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, const CUgraphEdgeData** edges,
                                   std::size_t* dependency_count) = symbols.find("cuStreamGetCaptureInfo_v3");
  CUresult (*StreamBeginCapture)(CUstream stream, CUstreamCaptureMode mode) = symbols.find("cuStreamBeginCapture_v2");
  CUresult (*StreamEndCapture)(CUstream stream, CUgraph* graph) = symbols.find("cuStreamEndCapture");
  CUresult (*ThreadExchangeStreamCaptureMode)(CUstreamCaptureMode* mode) =
      symbols.find("cuThreadExchangeStreamCaptureMode");

  CUresult (*EventCreate)(CUevent* event, unsigned flags) = symbols.find("cuEventCreate");
  CUresult (*EventDestroy)(CUevent event) = symbols.find("cuEventDestroy_v2");
  CUresult (*EventRecord)(CUevent event, CUstream stream) = symbols.find("cuEventRecord");
  CUresult (*EventSynchronize)(CUevent event) = symbols.find("cuEventSynchronize");
  CUresult (*EventElapsedTime)(float* milliseconds, CUevent start, CUevent end) = symbols.find("cuEventElapsedTime");

  CUresult (*GraphInstantiate)(CUgraphExec* executable, CUgraph graph,
                               unsigned long long flags) = symbols.find("cuGraphInstantiateWithFlags");
  CUresult (*GraphLaunch)(CUgraphExec executable, CUstream stream) = symbols.find("cuGraphLaunch");
  CUresult (*GraphExecDestroy)(CUgraphExec executable) = symbols.find("cuGraphExecDestroy");
  CUresult (*GraphDestroy)(CUgraph graph) = symbols.find("cuGraphDestroy");
  // NOLINTEND(readability-identifier-naming)

  int version = 0;  // the newest CUDA that the driver is for, as 12040 for 12.4

  int major() const { return version / 1000; }
  int minor() const { return version % 1000 / 10; }

  /// ok for CUDA_SUCCESS; otherwise "<attempted>: <the driver's name for the error> (<the driver's words>)", as
  /// out_of_memory where the driver says so and as device_error in every other case.
  Status check(CUresult result, const char* attempted) const;
};

/// The driver of this process, opened and initialised by the first call. unsupported where there is no driver or one
/// older than CUDA 12.4, device_error where it does not start. Every later call gives the same answer.
Result<const Driver*> driver();

}  // namespace strobe::runtime
