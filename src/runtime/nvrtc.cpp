// SPDX-License-Identifier: Apache-2.0
#include "runtime/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "runtime/nvrtc_choice.h"

namespace strobe::runtime {
namespace {

using NvrtcResult = int;
using NvrtcProgram = struct _nvrtcProgram*;
constexpr NvrtcResult kSuccess = 0;

/// NVRTC opens libnvrtc-builtins by bare name, which the loader does not find outside its own path; a library already
/// loaded under that name is taken as it is.
void preload_builtins(const std::filesystem::path& nvrtc) {
  if (!nvrtc.has_parent_path()) return;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(nvrtc.parent_path(), ignored)) {
    if (entry.path().filename().string().starts_with("libnvrtc-builtins.so.")) {
      dlopen(entry.path().c_str(), RTLD_NOW | RTLD_LOCAL);
    }
  }
}

/// The first line that reports an error, or the first line at all.
std::string_view first_error(std::string_view log) {
  const std::size_t error = log.find("error");
  const std::size_t newline = error == std::string_view::npos ? error : log.rfind('\n', error);
  const std::size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
  return log.substr(begin, log.find('\n', begin) - begin);
}

}  // namespace

std::string to_string(NvrtcVersion version) { return fmt::format("{}.{}", version.major, version.minor); }

struct Nvrtc::Functions {
  explicit Functions(SharedObject object) : symbols(std::move(object)) {}

  SharedObject symbols;  // first: the initialisers below read it

  // NOLINTBEGIN(readability-identifier-naming): NVRTC's names
  NvrtcResult (*Version)(int* major, int* minor) = symbols.find("nvrtcVersion");
  NvrtcResult (*GetNumSupportedArchs)(int* count) = symbols.find("nvrtcGetNumSupportedArchs");
  NvrtcResult (*GetSupportedArchs)(int* architectures) = symbols.find("nvrtcGetSupportedArchs");
  const char* (*GetErrorString)(NvrtcResult result) = symbols.find("nvrtcGetErrorString");
  NvrtcResult (*CreateProgram)(NvrtcProgram* program, const char* source, const char* name, int header_count,
                               const char* const* headers,
                               const char* const* header_names) = symbols.find("nvrtcCreateProgram");
  NvrtcResult (*DestroyProgram)(NvrtcProgram* program) = symbols.find("nvrtcDestroyProgram");
  NvrtcResult (*AddNameExpression)(NvrtcProgram program,
                                   const char* expression) = symbols.find("nvrtcAddNameExpression");
  NvrtcResult (*CompileProgram)(NvrtcProgram program, int option_count,
                                const char* const* options) = symbols.find("nvrtcCompileProgram");
  NvrtcResult (*GetLoweredName)(NvrtcProgram program, const char* expression,
                                const char** name) = symbols.find("nvrtcGetLoweredName");
  NvrtcResult (*GetProgramLogSize)(NvrtcProgram program, std::size_t* bytes) = symbols.find("nvrtcGetProgramLogSize");
  NvrtcResult (*GetProgramLog)(NvrtcProgram program, char* log) = symbols.find("nvrtcGetProgramLog");
  NvrtcResult (*GetCUBINSize)(NvrtcProgram program, std::size_t* bytes) = symbols.find("nvrtcGetCUBINSize");
  NvrtcResult (*GetCUBIN)(NvrtcProgram program, char* cubin) = symbols.find("nvrtcGetCUBIN");
  // NOLINTEND(readability-identifier-naming)
};

/// Owns one nvrtcProgram and turns every result into a Status.
class Nvrtc::Program {
 public:
  Program(const Functions& functions, const CompileRequest& request) : functions_(functions), request_(request) {}
  ~Program() {
    if (program_ != nullptr) functions_.DestroyProgram(&program_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Status create(const Archive& headers) {
    std::vector<const char*> names;
    std::vector<const char*> contents;
    for (const Archive::Entry& header : headers.entries()) {
      names.push_back(header.name.data());
      contents.push_back(header.content.data());
    }
    if (Status status = check(functions_.CreateProgram(&program_, request_.source.c_str(), request_.name.c_str(),
                                                       static_cast<int>(names.size()), contents.data(), names.data()));
        !status.ok()) {
      return status;
    }
    return check(functions_.AddNameExpression(program_, request_.expression.c_str()));
  }

  Status compile(std::string& log) {
    std::vector<const char*> options;
    for (const std::string& option : request_.options) options.push_back(option.c_str());
    const NvrtcResult result = functions_.CompileProgram(program_, static_cast<int>(options.size()), options.data());
    std::size_t bytes = 0;
    if (functions_.GetProgramLogSize(program_, &bytes) == kSuccess && bytes > 1) {
      log.resize(bytes);
      functions_.GetProgramLog(program_, log.data());
      log.resize(bytes - 1);  // the terminating zero is counted
    }
    return check(result, first_error(log));
  }

  Status lowered_name(std::string& name) {
    const char* lowered = nullptr;
    Status status = check(functions_.GetLoweredName(program_, request_.expression.c_str(), &lowered));
    if (status.ok()) name = lowered;
    return status;
  }

  Status cubin(std::string& cubin) {
    std::size_t bytes = 0;
    if (Status status = check(functions_.GetCUBINSize(program_, &bytes)); !status.ok()) return status;
    cubin.resize(bytes);
    return check(functions_.GetCUBIN(program_, cubin.data()));
  }

 private:
  Status check(NvrtcResult result, std::string_view detail = {}) const {
    if (result == kSuccess) return {};
    return {StatusCode::device_error,
            fmt::format("compiling {} for the GPU: {}{}{}", request_.name, functions_.GetErrorString(result),
                        detail.empty() ? "" : ": ", detail)};
  }

  const Functions& functions_;
  const CompileRequest& request_;
  NvrtcProgram program_ = nullptr;
};

Nvrtc::Nvrtc(std::string path, std::unique_ptr<const Functions> functions, NvrtcVersion version)
    : path_(std::move(path)), functions_(std::move(functions)), version_(version) {}

Nvrtc::~Nvrtc() = default;

Result<std::unique_ptr<const Nvrtc>> Nvrtc::open(const std::string& path) {
  preload_builtins(path);
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Status(StatusCode::unsupported, dlerror());
  auto functions = std::make_unique<const Functions>(SharedObject(handle));
  NvrtcVersion version;
  if (!functions->symbols.missing().empty() || functions->Version(&version.major, &version.minor) != kSuccess) {
    return Status(StatusCode::unsupported, fmt::format("{} is not a usable NVRTC", path));
  }
  if (version < kOldestNvrtc) {
    return Status(StatusCode::unsupported, fmt::format("{} is NVRTC {}; {} or later is needed", path,
                                                       to_string(version), to_string(kOldestNvrtc)));
  }
  return std::unique_ptr<const Nvrtc>(new Nvrtc(path, std::move(functions), version));
}

std::vector<int> Nvrtc::architectures() const {
  int count = 0;
  if (functions_->GetNumSupportedArchs(&count) != kSuccess || count <= 0) return {};
  std::vector<int> architectures(static_cast<std::size_t>(count));
  if (functions_->GetSupportedArchs(architectures.data()) != kSuccess) return {};
  return architectures;
}

Status Nvrtc::compile(const CompileRequest& request, const Archive& headers, CompileOutput& output) const {
  Program program(*functions_, request);
  if (Status status = program.create(headers); !status.ok()) return status;
  if (Status status = program.compile(output.log); !status.ok()) return status;
  if (Status status = program.lowered_name(output.lowered_name); !status.ok()) return status;
  return program.cubin(output.cubin);
}

}  // namespace strobe::runtime
