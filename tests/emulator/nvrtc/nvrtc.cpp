// SPDX-License-Identifier: Apache-2.0
// An NVRTC that gives PTX where machine code is asked for. STROBE_EMULATOR_NVRTC: the real one, which it calls.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#define STROBE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Program = void*;

void* real_library() {
  static void* const library = [] {
    const char* const path = std::getenv("STROBE_EMULATOR_NVRTC");
    if (path == nullptr) {
      std::fprintf(stderr, "emulator: STROBE_EMULATOR_NVRTC has to name the real libnvrtc.so\n");
      std::abort();
    }
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(path).parent_path(), ignored)) {
      if (entry.path().filename().string().starts_with("libnvrtc-builtins.so.")) {
        dlopen(entry.path().c_str(), RTLD_NOW | RTLD_LOCAL);
      }
    }
    void* const opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) {
      std::fprintf(stderr, "emulator: %s\n", dlerror());
      std::abort();
    }
    return opened;
  }();
  return library;
}

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(real_library(), name));
}

// As ptxas says it, of a kernel that spills nothing: what kernels really take is known of machine code alone.
constexpr const char* kLog =
    "ptxas info    : 0 bytes gmem\n"
    "ptxas info    : Function properties for the kernel\n"
    "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "ptxas info    : Used 128 registers, 0 bytes smem\n";

}  // namespace

/// As old as the oldest that the library takes: no other compiler's code, nor that of a pack, is taken for its own.
STROBE_EXPORT int nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 4;
  return 0;
}
STROBE_EXPORT int nvrtcGetNumSupportedArchs(int* count) { return real<int(int*)>("nvrtcGetNumSupportedArchs")(count); }
STROBE_EXPORT int nvrtcGetSupportedArchs(int* architectures) {
  return real<int(int*)>("nvrtcGetSupportedArchs")(architectures);
}
STROBE_EXPORT const char* nvrtcGetErrorString(int result) {
  return real<const char*(int)>("nvrtcGetErrorString")(result);
}
STROBE_EXPORT int nvrtcCreateProgram(Program* program, const char* source, const char* name, int count,
                                     const char* const* headers, const char* const* names) {
  using Create = int(Program*, const char*, const char*, int, const char* const*, const char* const*);
  return real<Create>("nvrtcCreateProgram")(program, source, name, count, headers, names);
}
STROBE_EXPORT int nvrtcDestroyProgram(Program* program) { return real<int(Program*)>("nvrtcDestroyProgram")(program); }
STROBE_EXPORT int nvrtcAddNameExpression(Program program, const char* expression) {
  return real<int(Program, const char*)>("nvrtcAddNameExpression")(program, expression);
}
STROBE_EXPORT int nvrtcCompileProgram(Program program, int count, const char* const* options) {
  std::vector<std::string> kept;
  for (int i = 0; i < count; ++i) {
    std::string option = options[i];
    if (option.starts_with("--ptxas-options")) continue;
    if (const std::size_t at = option.find("=sm_"); at != std::string::npos) option.replace(at, 4, "=compute_");
    kept.push_back(std::move(option));
  }
  std::vector<const char*> pointers;
  for (const std::string& option : kept) pointers.push_back(option.c_str());
  return real<int(Program, int, const char* const*)>("nvrtcCompileProgram")(program, static_cast<int>(pointers.size()),
                                                                            pointers.data());
}
STROBE_EXPORT int nvrtcGetLoweredName(Program program, const char* expression, const char** name) {
  return real<int(Program, const char*, const char**)>("nvrtcGetLoweredName")(program, expression, name);
}
STROBE_EXPORT int nvrtcGetProgramLogSize(Program program, std::size_t* bytes) {
  const int result = real<int(Program, std::size_t*)>("nvrtcGetProgramLogSize")(program, bytes);
  *bytes += std::strlen(kLog);
  return result;
}
STROBE_EXPORT int nvrtcGetProgramLog(Program program, char* log) {
  const int result = real<int(Program, char*)>("nvrtcGetProgramLog")(program, log);
  std::strcat(log, kLog);
  return result;
}
STROBE_EXPORT int nvrtcGetPTXSize(Program program, std::size_t* bytes) {
  return real<int(Program, std::size_t*)>("nvrtcGetPTXSize")(program, bytes);
}
STROBE_EXPORT int nvrtcGetPTX(Program program, char* ptx) {
  return real<int(Program, char*)>("nvrtcGetPTX")(program, ptx);
}
STROBE_EXPORT int nvrtcGetCUBINSize(Program program, std::size_t* bytes) { return nvrtcGetPTXSize(program, bytes); }
STROBE_EXPORT int nvrtcGetCUBIN(Program program, char* cubin) { return nvrtcGetPTX(program, cubin); }
