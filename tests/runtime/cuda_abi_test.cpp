// SPDX-License-Identifier: Apache-2.0
// Holds runtime/cuda_abi.h and the driver's function table against NVIDIA's own header. Nothing runs: if this file
// compiles, they agree.
#include <cuda.h>
#include <gtest/gtest.h>

#include <tuple>

#include "runtime/driver.h"
#include "runtime/tensor_map.h"

namespace {

namespace ours = strobe::runtime;

/// The same size, and both pointers or neither: what a call passes is then the same.
template <class A, class B>
constexpr bool kSamePassing = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

template <class A, class B>
constexpr bool kSameCall = false;

template <class... A, class... B>
  requires(sizeof...(A) == sizeof...(B))
constexpr bool kSameCall<int (*)(A...), CUresult (*)(B...)> = (kSamePassing<A, B> && ...);

#define STROBE_SAME_CALL(member, function) \
  static_assert(kSameCall<decltype(ours::Driver::member), decltype(&::function)>, #function)

STROBE_SAME_CALL(Init, cuInit);
STROBE_SAME_CALL(DriverGetVersion, cuDriverGetVersion);
STROBE_SAME_CALL(DeviceGetCount, cuDeviceGetCount);
STROBE_SAME_CALL(DeviceGet, cuDeviceGet);
STROBE_SAME_CALL(DeviceGetName, cuDeviceGetName);
STROBE_SAME_CALL(DeviceGetAttribute, cuDeviceGetAttribute);
STROBE_SAME_CALL(DeviceTotalMem, cuDeviceTotalMem);
STROBE_SAME_CALL(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain);
STROBE_SAME_CALL(CtxGetCurrent, cuCtxGetCurrent);
STROBE_SAME_CALL(CtxGetDevice, cuCtxGetDevice);
STROBE_SAME_CALL(CtxPushCurrent, cuCtxPushCurrent);
STROBE_SAME_CALL(CtxPopCurrent, cuCtxPopCurrent);
STROBE_SAME_CALL(CtxSynchronize, cuCtxSynchronize);
STROBE_SAME_CALL(LibraryLoadData, cuLibraryLoadData);
STROBE_SAME_CALL(LibraryUnload, cuLibraryUnload);
STROBE_SAME_CALL(LibraryGetKernel, cuLibraryGetKernel);
STROBE_SAME_CALL(KernelGetFunction, cuKernelGetFunction);
STROBE_SAME_CALL(KernelGetAttribute, cuKernelGetAttribute);
STROBE_SAME_CALL(KernelSetAttribute, cuKernelSetAttribute);
STROBE_SAME_CALL(LaunchKernelEx, cuLaunchKernelEx);
STROBE_SAME_CALL(OccupancyMaxActiveClusters, cuOccupancyMaxActiveClusters);
STROBE_SAME_CALL(TensorMapEncodeTiled, cuTensorMapEncodeTiled);
STROBE_SAME_CALL(MemAlloc, cuMemAlloc);
STROBE_SAME_CALL(MemFree, cuMemFree);
STROBE_SAME_CALL(MemGetInfo, cuMemGetInfo);
STROBE_SAME_CALL(MemcpyHtoD, cuMemcpyHtoD);
STROBE_SAME_CALL(MemcpyDtoH, cuMemcpyDtoH);
STROBE_SAME_CALL(MemcpyAsync, cuMemcpyAsync);
STROBE_SAME_CALL(MemsetD8Async, cuMemsetD8Async);
STROBE_SAME_CALL(MemsetD32Async, cuMemsetD32Async);
STROBE_SAME_CALL(StreamCreate, cuStreamCreate);
STROBE_SAME_CALL(StreamDestroy, cuStreamDestroy);
STROBE_SAME_CALL(StreamSynchronize, cuStreamSynchronize);
STROBE_SAME_CALL(StreamWaitEvent, cuStreamWaitEvent);
STROBE_SAME_CALL(StreamGetId, cuStreamGetId);
STROBE_SAME_CALL(StreamGetCaptureInfo, cuStreamGetCaptureInfo);
STROBE_SAME_CALL(StreamBeginCapture, cuStreamBeginCapture);
STROBE_SAME_CALL(StreamEndCapture, cuStreamEndCapture);
STROBE_SAME_CALL(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode);
STROBE_SAME_CALL(EventCreate, cuEventCreate);
STROBE_SAME_CALL(EventDestroy, cuEventDestroy);
STROBE_SAME_CALL(EventRecord, cuEventRecord);
STROBE_SAME_CALL(EventSynchronize, cuEventSynchronize);
STROBE_SAME_CALL(EventElapsedTime, cuEventElapsedTime);
STROBE_SAME_CALL(GraphInstantiate, cuGraphInstantiateWithFlags);
STROBE_SAME_CALL(GraphLaunch, cuGraphLaunch);
STROBE_SAME_CALL(GraphExecDestroy, cuGraphExecDestroy);
STROBE_SAME_CALL(GraphDestroy, cuGraphDestroy);

#undef STROBE_SAME_CALL

#define STROBE_SAME_VALUE(name) static_assert(int(ours::name) == int(::name), #name)

STROBE_SAME_VALUE(CUDA_SUCCESS);
STROBE_SAME_VALUE(CUDA_ERROR_OUT_OF_MEMORY);
STROBE_SAME_VALUE(CUDA_ERROR_NO_DEVICE);
STROBE_SAME_VALUE(CUDA_ERROR_INVALID_IMAGE);
STROBE_SAME_VALUE(CUDA_ERROR_NO_BINARY_FOR_GPU);
STROBE_SAME_VALUE(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
STROBE_SAME_VALUE(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
STROBE_SAME_VALUE(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
STROBE_SAME_VALUE(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
STROBE_SAME_VALUE(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
STROBE_SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
STROBE_SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
STROBE_SAME_VALUE(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
STROBE_SAME_VALUE(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
STROBE_SAME_VALUE(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
STROBE_SAME_VALUE(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
STROBE_SAME_VALUE(CU_FUNC_ATTRIBUTE_NUM_REGS);
STROBE_SAME_VALUE(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
STROBE_SAME_VALUE(CU_STREAM_DEFAULT);
STROBE_SAME_VALUE(CU_STREAM_NON_BLOCKING);
STROBE_SAME_VALUE(CU_EVENT_DEFAULT);
STROBE_SAME_VALUE(CU_EVENT_DISABLE_TIMING);
STROBE_SAME_VALUE(CU_STREAM_CAPTURE_STATUS_NONE);
STROBE_SAME_VALUE(CU_STREAM_CAPTURE_STATUS_ACTIVE);
STROBE_SAME_VALUE(CU_STREAM_CAPTURE_MODE_GLOBAL);
STROBE_SAME_VALUE(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
STROBE_SAME_VALUE(CU_STREAM_CAPTURE_MODE_RELAXED);
STROBE_SAME_VALUE(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
STROBE_SAME_VALUE(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
STROBE_SAME_VALUE(CU_TENSOR_MAP_DATA_TYPE_UINT8);
STROBE_SAME_VALUE(CU_TENSOR_MAP_DATA_TYPE_INT32);
STROBE_SAME_VALUE(CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
STROBE_SAME_VALUE(CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
STROBE_SAME_VALUE(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
STROBE_SAME_VALUE(CU_TENSOR_MAP_INTERLEAVE_NONE);
STROBE_SAME_VALUE(CU_TENSOR_MAP_SWIZZLE_NONE);
STROBE_SAME_VALUE(CU_TENSOR_MAP_SWIZZLE_32B);
STROBE_SAME_VALUE(CU_TENSOR_MAP_SWIZZLE_64B);
STROBE_SAME_VALUE(CU_TENSOR_MAP_SWIZZLE_128B);
STROBE_SAME_VALUE(CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
STROBE_SAME_VALUE(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);

#undef STROBE_SAME_VALUE

#define STROBE_SAME_OFFSET(type, field) static_assert(offsetof(ours::type, field) == offsetof(::type, field))

STROBE_SAME_OFFSET(CUlaunchConfig, gridDimX);
STROBE_SAME_OFFSET(CUlaunchConfig, gridDimZ);
STROBE_SAME_OFFSET(CUlaunchConfig, blockDimX);
STROBE_SAME_OFFSET(CUlaunchConfig, blockDimZ);
STROBE_SAME_OFFSET(CUlaunchConfig, sharedMemBytes);
STROBE_SAME_OFFSET(CUlaunchConfig, hStream);
STROBE_SAME_OFFSET(CUlaunchConfig, attrs);
STROBE_SAME_OFFSET(CUlaunchConfig, numAttrs);
STROBE_SAME_OFFSET(CUlaunchAttribute, id);
STROBE_SAME_OFFSET(CUlaunchAttribute, value);
STROBE_SAME_OFFSET(CUlaunchAttributeValue, clusterDim.x);
STROBE_SAME_OFFSET(CUlaunchAttributeValue, clusterDim.z);
STROBE_SAME_OFFSET(CUlaunchAttributeValue, programmaticStreamSerializationAllowed);

#undef STROBE_SAME_OFFSET

static_assert(sizeof(ours::CUlaunchConfig) == sizeof(::CUlaunchConfig));
static_assert(sizeof(ours::CUlaunchAttribute) == sizeof(::CUlaunchAttribute));
static_assert(ours::kTensorMapBytes == sizeof(::CUtensorMap));
static_assert(sizeof(ours::CUdeviceptr) == sizeof(::CUdeviceptr));

}  // namespace
