// SPDX-License-Identifier: Apache-2.0
// Where NVRTC may be on this machine.
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "runtime/nvrtc_choice.h"

namespace strobe::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int kNewestMajor = 13;  // that packages of NVRTC are named for here
constexpr const char* kSonames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};

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

/// Every NVRTC of this machine that opens, and why the others do not.
struct Found {
  std::vector<std::unique_ptr<const Nvrtc>> nvrtcs;
  std::vector<NvrtcCandidate> candidates;  // the same ones
  std::vector<std::string> failures;
};

Found search() {
  Found found;
  for (const std::string& path : nvrtc_candidates()) {
    Result<std::unique_ptr<const Nvrtc>> opened = Nvrtc::open(path);
    if (!opened.ok()) {
      found.failures.push_back(opened.status().message());
      continue;
    }
    const Nvrtc& nvrtc = *found.nvrtcs.emplace_back(std::move(*opened));
    found.candidates.push_back({path, nvrtc.version(), nvrtc.architectures()});
  }
  return found;
}

const Found& found_nvrtcs() {
  static const Found& found = *new Found(search());  // for the process: NVRTC does not survive being closed
  return found;
}

std::string reason_of(const NvrtcCandidate& candidate, const CubinTarget& target) {
  return fmt::format("NVRTC {} ({}): {}", to_string(candidate.version), candidate.path, rejection(candidate, target));
}

std::string none_found(const Found& found, const CubinTarget& target) {
  std::string reasons;
  for (const NvrtcCandidate& candidate : found.candidates) reasons += "; " + reason_of(candidate, target);
  for (const std::string& failure : found.failures) reasons += "; " + failure;
  const int major = std::min(target.newest.major, kNewestMajor);
  return fmt::format(
      "no usable NVRTC was found: pip install {}, install a CUDA {} toolkit, or set STROBE_NVRTC to libnvrtc.so.{}{}",
      major == 12 ? "nvidia-cuda-nvrtc-cu12" : "nvidia-cuda-nvrtc", major, major, reasons);
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
  candidates.insert(candidates.end(), std::begin(kSonames), std::end(kSonames));
  add("/usr/local/cuda/lib64");
  for (const fs::path& packages : python_package_folders()) {
    add(packages / "nvidia/cu13/lib");
    add(packages / "nvidia/cuda_nvrtc/lib");  // of CUDA 12
  }
  return candidates;
}

Result<const Nvrtc*> nvrtc(const CubinTarget& target) {
  const Found& found = found_nvrtcs();
  if (const std::optional<std::size_t> index = choose_nvrtc(found.candidates, target)) {
    return found.nvrtcs[*index].get();
  }
  return Status(StatusCode::unsupported,
                fmt::format("this GPU kernel has to be compiled and {}", none_found(found, target)));
}

std::vector<std::string> describe_nvrtc(const CubinTarget& target) {
  const Found& found = found_nvrtcs();
  const std::optional<std::size_t> chosen = choose_nvrtc(found.candidates, target);
  std::vector<std::string> lines;
  if (!chosen.has_value()) {
    lines.push_back(none_found(found, target));
    return lines;
  }
  const NvrtcCandidate& taken = found.candidates[*chosen];
  lines.push_back(
      fmt::format("NVRTC {} ({}): {}", to_string(taken.version), taken.path,
                  taken.version >= kPreferredNvrtc
                      ? "the first that the driver and the device allow"
                      : "the newest that the driver and the device allow; from 12.9 on kernels with WGMMA are "
                        "faster"));
  for (const NvrtcCandidate& candidate : found.candidates) {
    if (!rejection(candidate, target).empty()) lines.push_back(fmt::format("not {}", reason_of(candidate, target)));
  }
  return lines;
}

}  // namespace strobe::runtime
