// SPDX-License-Identifier: Apache-2.0
// Where NVRTC may be on this machine.
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "runtime/nvrtc.h"

namespace strobe::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSoname = "libnvrtc.so.13";

fs::path environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The libraries in `folder` named libnvrtc.so.<major>, newest major first.
std::vector<std::string> libraries_in(const fs::path& folder) {
  constexpr std::string_view kPrefix = "libnvrtc.so.";
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kPrefix) && name.find_first_not_of("0123456789", kPrefix.size()) == std::string::npos) {
      found.push_back(entry.path());
    }
  }
  std::ranges::sort(found, std::greater<>());
  return found;
}

/// lib/python3.*/site-packages and dist-packages under an installation prefix.
void add_package_folders(const fs::path& prefix, std::set<fs::path>& folders) {
  if (prefix.empty()) return;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(prefix / "lib", ignored)) {
    if (!entry.path().filename().string().starts_with("python3")) continue;
    folders.insert(entry.path() / "site-packages");
    folders.insert(entry.path() / "dist-packages");
  }
}

/// The site-packages that libraries of this process were loaded from: a Python program shows its environment so.
int add_folder_of_library(dl_phdr_info* library, std::size_t, void* folders) {
  constexpr std::string_view kFolder = "/site-packages/";
  const std::string_view path = library->dlpi_name == nullptr ? "" : library->dlpi_name;
  const std::size_t at = path.find(kFolder);
  if (at != std::string_view::npos) {
    static_cast<std::set<fs::path>*>(folders)->insert(path.substr(0, at + kFolder.size() - 1));
  }
  return 0;
}

/// The prefix of the `python3` that $PATH finds: of the link for a virtual environment, of its target for the rest.
void add_python_on_path(std::set<fs::path>& folders) {
  const std::string path = environment("PATH");
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    const fs::path python = fs::path(path.substr(begin, end - begin)) / "python3";
    begin = end + 1;
    std::error_code error;
    const fs::path target = fs::canonical(python, error);
    if (error) continue;
    add_package_folders(python.parent_path().parent_path(), folders);
    add_package_folders(target.parent_path().parent_path(), folders);
    return;
  }
}

std::set<fs::path> python_package_folders() {
  std::set<fs::path> folders;
  dl_iterate_phdr(add_folder_of_library, &folders);
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) add_package_folders(environment(name), folders);
  add_python_on_path(folders);
  if (const fs::path home = environment("HOME"); !home.empty()) add_package_folders(home / ".local", folders);
  add_package_folders("/usr/local", folders);
  return folders;
}

Result<const Nvrtc*> search() {
  std::string reasons;
  for (const std::string& candidate : nvrtc_candidates()) {
    Result<std::unique_ptr<const Nvrtc>> opened = Nvrtc::open(candidate);
    if (opened.ok()) return opened->release();  // for the process
    reasons += fmt::format("; {}", opened.status().message());
  }
  return Status(StatusCode::unsupported,
                fmt::format("this GPU kernel has to be compiled and no usable NVRTC was found: pip install "
                            "nvidia-cuda-nvrtc, install a CUDA 13 toolkit, or set STROBE_NVRTC to libnvrtc.so.13{}",
                            reasons));
}

}  // namespace

std::vector<std::string> nvrtc_candidates() {
  if (const fs::path given = environment("STROBE_NVRTC"); !given.empty()) return {given};
  std::vector<std::string> candidates;
  const auto add = [&candidates](const fs::path& folder) {
    for (std::string& library : libraries_in(folder)) candidates.push_back(std::move(library));
  };
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const fs::path toolkit = environment(name); !toolkit.empty()) add(toolkit / "lib64");
  }
  if (const fs::path conda = environment("CONDA_PREFIX"); !conda.empty()) add(conda / "lib");
  candidates.emplace_back(kSoname);
  add("/usr/local/cuda/lib64");
  for (const fs::path& packages : python_package_folders()) {
    add(packages / "nvidia/cu13/lib");
    add(packages / "nvidia/cuda_nvrtc/lib");
  }
  return candidates;
}

Result<const Nvrtc*> nvrtc() {
  static const Result<const Nvrtc*> found = search();
  return found;
}

}  // namespace strobe::runtime
