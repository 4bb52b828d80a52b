// SPDX-License-Identifier: Apache-2.0
#include "fake_driver.h"

#include <fmt/format.h>

namespace strobe::test {

using namespace runtime;  // the whole file stands in for one of its parts

namespace {

FakeDriver* living = nullptr;

thread_local std::vector<std::pair<CUcontext, CUdevice>> contexts;

template <class Handle>
std::uintptr_t number_of(Handle handle) {
  return reinterpret_cast<std::uintptr_t>(handle);
}

}  // namespace

CUstream fake_stream(std::uintptr_t number) { return reinterpret_cast<CUstream>(number); }
CUcontext fake_context(std::uintptr_t number) { return reinterpret_cast<CUcontext>(number); }

void set_fake_context(CUcontext context, CUdevice device) {
  contexts.clear();
  if (context != nullptr) contexts.emplace_back(context, device);
}

struct FakeCalls {
  static CUresult error_name(CUresult error, const char** name) {
    *name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_VALUE";
    return CUDA_SUCCESS;
  }
  static CUresult error_string(CUresult error, const char** words) {
    *words = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "invalid argument";
    return CUDA_SUCCESS;
  }

  static CUresult get_current(CUcontext* context) {
    *context = contexts.empty() ? nullptr : contexts.back().first;
    return CUDA_SUCCESS;
  }
  static CUresult get_device(CUdevice* device) {
    *device = contexts.back().second;
    return CUDA_SUCCESS;
  }
  static CUresult push(CUcontext context) {
    contexts.emplace_back(context, 0);
    return living->note("CtxPushCurrent", fmt::format("{}", number_of(context)));
  }
  static CUresult pop(CUcontext* context) {
    *context = contexts.back().first;
    contexts.pop_back();
    return living->note("CtxPopCurrent", "");
  }

  static CUresult allocate(CUdeviceptr* address, std::size_t bytes) {
    const CUresult result = living->note("MemAlloc", fmt::format("{} mode {}", bytes, static_cast<int>(living->mode_)));
    const std::lock_guard lock(living->mutex_);
    if (result == CUDA_SUCCESS) *address = 0x1000U * static_cast<unsigned>(++living->allocated_);
    return result;
  }
  static CUresult free(CUdeviceptr) {
    const std::lock_guard lock(living->mutex_);
    ++living->freed_;
    return CUDA_SUCCESS;
  }
  static CUresult exchange_mode(CUstreamCaptureMode* mode) {
    std::swap(*mode, living->mode_);
    return CUDA_SUCCESS;
  }

  static CUresult stream_id(CUstream stream, unsigned long long* id) {
    *id = number_of(stream);
    return living->capture_id == 0 ? CUDA_SUCCESS : kFakeError;  // not permitted while the stream is being captured
  }
  static CUresult capture_info(CUstream, CUstreamCaptureStatus* status, std::uint64_t* id, CUgraph*,
                               const CUgraphNode**, const CUgraphEdgeData**, std::size_t*) {
    *status = living->capture_id == 0 ? CU_STREAM_CAPTURE_STATUS_NONE : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    *id = living->capture_id;
    return CUDA_SUCCESS;
  }
  static CUresult wait_event(CUstream stream, CUevent event, unsigned) {
    return living->note("StreamWaitEvent", fmt::format("{} {}", number_of(stream), number_of(event)));
  }
  static CUresult create_event(CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(++living->events_));
    return CUDA_SUCCESS;
  }
  static CUresult destroy_event(CUevent) { return CUDA_SUCCESS; }
  static CUresult record_event(CUevent event, CUstream stream) {
    return living->note("EventRecord", fmt::format("{} {}", number_of(event), number_of(stream)));
  }

  static CUresult load_library(CUlibrary* library, const void*, int*, void**, unsigned, int*, void**, unsigned) {
    *library = reinterpret_cast<CUlibrary>(std::uintptr_t{1});
    return living->note("LibraryLoadData", "");
  }
  static CUresult get_kernel(CUkernel* kernel, CUlibrary, const char*) {
    *kernel = reinterpret_cast<CUkernel>(std::uintptr_t{1});
    return CUDA_SUCCESS;
  }
  static CUresult get_function(CUfunction* function, CUkernel) {
    *function = reinterpret_cast<CUfunction>(std::uintptr_t{1});
    return CUDA_SUCCESS;
  }
  static CUresult get_attribute(int* value, CUfunction_attribute, CUkernel, CUdevice) {
    *value = 0;
    return CUDA_SUCCESS;
  }
  static CUresult set_attribute(CUfunction_attribute, int, CUkernel, CUdevice) { return CUDA_SUCCESS; }

  static CUresult launch(const CUlaunchConfig* c, CUfunction, void** parameters, void**) {
    std::string text =
        fmt::format("grid {} {} {} block {} {} {} shared {} stream {}", c->gridDimX, c->gridDimY, c->gridDimZ,
                    c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes, number_of(c->hStream));
    for (unsigned i = 0; i < c->numAttrs; ++i) {
      const CUlaunchAttribute& attribute = c->attrs[i];
      if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
        const auto& cluster = attribute.value.clusterDim;
        text += fmt::format(" cluster {} {} {}", cluster.x, cluster.y, cluster.z);
      } else {
        text += fmt::format(" overlap {}", attribute.value.programmaticStreamSerializationAllowed);
      }
    }
    return living->note("LaunchKernelEx", text + fmt::format(" with {}", *static_cast<int*>(parameters[0])));
  }

  static CUresult encode(void*, CUtensorMapDataType type, std::uint32_t rank, void*, const std::uint64_t* extents,
                         const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t*,
                         CUtensorMapInterleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                         CUtensorMapFloatOOBfill) {
    return living->note(
        "TensorMapEncodeTiled",
        fmt::format("type {} extents {} strides {} box {} swizzle {}", static_cast<int>(type),
                    fmt::join(extents, extents + rank, ","), fmt::join(strides, strides + rank - 1, ","),
                    fmt::join(box, box + rank, ","), static_cast<int>(swizzle)));
  }
};

FakeDriver::FakeDriver() : driver_(SharedObject(nullptr)) {
  living = this;
  driver_.GetErrorName = FakeCalls::error_name;
  driver_.GetErrorString = FakeCalls::error_string;
  driver_.CtxGetCurrent = FakeCalls::get_current;
  driver_.CtxGetDevice = FakeCalls::get_device;
  driver_.CtxPushCurrent = FakeCalls::push;
  driver_.CtxPopCurrent = FakeCalls::pop;
  driver_.MemAlloc = FakeCalls::allocate;
  driver_.MemFree = FakeCalls::free;
  driver_.ThreadExchangeStreamCaptureMode = FakeCalls::exchange_mode;
  driver_.StreamGetId = FakeCalls::stream_id;
  driver_.StreamGetCaptureInfo = FakeCalls::capture_info;
  driver_.StreamWaitEvent = FakeCalls::wait_event;
  driver_.EventCreate = FakeCalls::create_event;
  driver_.EventDestroy = FakeCalls::destroy_event;
  driver_.EventRecord = FakeCalls::record_event;
  driver_.LibraryLoadData = FakeCalls::load_library;
  driver_.LibraryGetKernel = FakeCalls::get_kernel;
  driver_.KernelGetFunction = FakeCalls::get_function;
  driver_.KernelGetAttribute = FakeCalls::get_attribute;
  driver_.KernelSetAttribute = FakeCalls::set_attribute;
  driver_.LaunchKernelEx = FakeCalls::launch;
  driver_.TensorMapEncodeTiled = FakeCalls::encode;
  device_.driver = &driver_;
  device_.context = fake_context(100);
  set_fake_context(device_.context, 0);
}

FakeDriver::~FakeDriver() { living = nullptr; }

CUresult FakeDriver::note(const std::string& name, const std::string& rest) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(rest.empty() ? name : name + " " + rest);
  const auto failure = failures_.find(name);
  return failure == failures_.end() ? CUDA_SUCCESS : failure->second;
}

std::vector<std::string> FakeDriver::take_calls() {
  const std::lock_guard lock(mutex_);
  return std::exchange(calls_, {});
}

void FakeDriver::fail(const std::string& name, CUresult result) { failures_[name] = result; }

}  // namespace strobe::test
