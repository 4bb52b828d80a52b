// SPDX-License-Identifier: Apache-2.0
// Libraries of PTX, their kernels, and launches.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "driver/state.h"

using namespace strobe::runtime;   // NOLINT(google-build-using-namespace): the driver's types
using namespace strobe::emulator;  // NOLINT(google-build-using-namespace)

namespace {

void place_globals(SourceModule& module) {
  for (const auto& symbol : module.symbols) {
    if (symbol->space != Space::global && symbol->space != Space::constant) continue;
    const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(symbol->bytes, 1));
    const std::uint64_t address = GlobalMemory::instance().allocate(bytes);
    auto* const memory = reinterpret_cast<std::byte*>(address);
    std::memset(memory, 0, bytes);
    std::memcpy(memory, symbol->initial.data(), std::min(bytes, symbol->initial.size()));
    symbol->offset = static_cast<std::int64_t>(address);
  }
}

int registers_of(const Program& program) {
  const int threads = (program.max_threads + 127) / 128 * 128;
  return std::min(255, 65536 / (threads * program.min_blocks) / 8 * 8);
}

CUresult run(const Program& program, const Shape& shape, const std::vector<std::byte>& params) {
  const bool traces = Options::get().traces;
  const auto start = std::chrono::steady_clock::now();
  try {
    Grid grid(program, shape, params);
    grid.run();
  } catch (const Fault& fault) {
    std::fprintf(stderr, "emulator: %s\n", fault.what());
    return kLaunchFailed;
  }
  if (traces) {
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    std::fprintf(stderr, "emulator: %.0f ms for %u x %u x %u blocks of %u threads: %.200s\n", elapsed.count(),
                 shape.grid[0], shape.grid[1], shape.grid[2], shape.block[0], program.name.c_str());
  }
  return CUDA_SUCCESS;
}

}  // namespace

STROBE_EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void* code, int*, void**, unsigned, int*, void**,
                                         unsigned) {
  const std::lock_guard lock(machine_mutex());
  if (Options::get().idle) {
    *library = std::make_unique<CUlib_st>().release();
    return CUDA_SUCCESS;
  }
  const char* const text = static_cast<const char*>(code);
  if (std::memcmp(text, "\177ELF", 4) == 0) return CUDA_ERROR_INVALID_IMAGE;
  try {
    auto loaded = std::make_unique<CUlib_st>();
    loaded->module = parse_ptx(text);
    place_globals(*loaded->module);
    *library = loaded.release();
  } catch (const UnsupportedPtx& problem) {
    std::fprintf(stderr, "emulator: %s\n", problem.what());
    return kNotFound;
  }
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }

STROBE_EXPORT CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const std::lock_guard lock(machine_mutex());
  if (Options::get().idle) {
    library->kernels.push_back(std::make_unique<CUkern_st>());
    library->kernels.back()->program = std::make_unique<Program>();  // of machine code, which is not looked into
    *kernel = library->kernels.back().get();
    return CUDA_SUCCESS;
  }
  for (const auto& source : library->module->kernels) {
    if (source->name != name) continue;
    try {
      auto decoded = std::make_unique<CUkern_st>();
      decoded->program = Decoder(*library->module, *source).decode();
      *kernel = decoded.get();
      library->kernels.push_back(std::move(decoded));
      return CUDA_SUCCESS;
    } catch (const UnsupportedPtx& problem) {
      std::fprintf(stderr, "emulator: %s\n", problem.what());
      return kNotFound;
    }
  }
  return kNotFound;
}
STROBE_EXPORT CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
STROBE_EXPORT CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice) {
  const Program& program = *kernel->program;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = program.max_threads; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = static_cast<int>(program.static_shared); return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = static_cast<int>(program.local_bytes); return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = registers_of(program); return CUDA_SUCCESS;
    default: return kInvalidValue;
  }
}
STROBE_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice) {
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    kernel->most_dynamic_shared = static_cast<std::size_t>(value);
  }
  return CUDA_SUCCESS;
}

STROBE_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void**) {
  if (Options::get().idle) return CUDA_SUCCESS;
  auto* const kernel = reinterpret_cast<CUkernel>(function);
  const Program& program = *kernel->program;
  Shape shape{.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
              .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
              .cluster = program.cluster,
              .dynamic_shared = config->sharedMemBytes};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    shape.cluster = {attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z};
  }
  const unsigned threads = shape.block[0] * shape.block[1] * shape.block[2];
  if (threads == 0 || static_cast<int>(threads) > program.max_threads) return kInvalidValue;
  if (shape.dynamic_shared > kernel->most_dynamic_shared) return kInvalidValue;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (shape.grid[axis] == 0 || shape.grid[axis] % shape.cluster[axis] != 0) return kInvalidValue;
  }
  std::vector<std::byte> params(static_cast<std::size_t>(program.param_bytes) + 64);
  for (std::size_t i = 0; i < program.params.size(); ++i) {
    const auto& [offset, bytes] = program.params[i];
    std::memcpy(params.data() + offset, parameters[i], static_cast<std::size_t>(bytes));
  }
  return enqueue(config->hStream, [&program, shape, params] { return run(program, shape, params); });
}

STROBE_EXPORT CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig* config) {
  int size = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& cluster = config->attrs[i].value.clusterDim;
    size = static_cast<int>(cluster.x * cluster.y * cluster.z);
  }
  *clusters = 132 / size;
  return CUDA_SUCCESS;
}
