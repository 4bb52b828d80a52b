// SPDX-License-Identifier: Apache-2.0
#include "runtime/pack/gather_sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "runtime/pack/files.h"
#include "runtime/pack/source_digests.h"

namespace strobe::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "strobe-header:";

/// Whether the header is under NVIDIA's CUDA EULA and not in the list of what may be redistributed, its attachment A.
/// CCCL's headers are under the Apache License.
bool is_proprietary(std::string_view name, std::string_view text) {
  return text.find("NOTICE TO LICENSEE") != std::string_view::npos && name != "cuda_fp16.h" && name != "cuda_fp16.hpp";
}

bool is_header(const fs::path& path) {
  const std::string extension = path.extension();
  return extension.empty() || extension == ".h" || extension == ".hpp" || extension == ".cuh" || extension == ".inl";
}

/// Every header below `folder`, named from there. The first folder that has a name keeps it, as with -I.
Status add_headers(const fs::path& folder, const std::string& prefix, Headers& headers) {
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!at->is_regular_file() || !is_header(at->path())) continue;
    Result<std::string> text = read_file(at->path());
    if (!text.ok()) return text.status();
    if (text->find('\0') != std::string::npos) continue;  // no text
    headers.emplace(prefix + fs::relative(at->path(), folder).generic_string(), std::move(*text));
  }
  if (error) return {StatusCode::invalid_argument, fmt::format("{}: {}", folder.string(), error.message())};
  return {};
}

/// What follows each mark in the log, up to the closing quote.
std::set<std::string> marked_names(std::string_view log) {
  std::set<std::string> names;
  for (std::size_t at = log.find(kMark); at != std::string_view::npos; at = log.find(kMark, at)) {
    at += kMark.size();
    names.emplace(log.substr(at, log.find('"', at) - at));
  }
  return names;
}

}  // namespace

Result<std::string> gather_sources(const Nvrtc& nvrtc, const fs::path& kernels,
                                   const std::vector<fs::path>& include_folders,
                                   const std::vector<std::string>& architectures) {
  Headers own;
  if (Status status = add_headers(kernels, "kernels/", own); !status.ok()) return status;
  Headers candidates;
  for (const fs::path& folder : include_folders) {
    if (Status status = add_headers(folder, "", candidates); !status.ok()) return status;
  }
  // NVRTC does not list what it includes, so every header is made to say its name, and one compilation that includes
  // all of ours tells which of CUDA's thousands are reached.
  std::vector<std::pair<std::string, std::string>> gathered(own.begin(), own.end());
  std::vector<std::pair<std::string, std::string>> announcing = gathered;
  for (const auto& [name, text] : candidates) {
    announcing.emplace_back(name, fmt::format("#pragma message(\"{}{}\")\n{}", kMark, name, text));
  }
  const std::string probe_bytes = make_archive(std::move(announcing));
  const Result<Archive> probe_headers = Archive::parse(probe_bytes);
  if (!probe_headers.ok()) return probe_headers.status();
  std::string source;
  for (const auto& [name, text] : own) source += fmt::format("#include \"{}\"\n", name);
  source += "__global__ void probe() {}\n";
  std::set<std::string> reached;
  for (const std::string& architecture : architectures) {
    CompileOutput output;
    const CompileRequest request = {
        .name = "the probe for included headers",
        .source = source,
        .expression = "probe",
        .options = {"--gpu-architecture=" + architecture, "--std=c++20", "-default-device"},
    };
    if (Status status = nvrtc.compile(request, *probe_headers, output); !status.ok()) return status;
    reached.merge(marked_names(output.log));
  }
  // What this NVRTC skips by #if, another version may need: but the runtime's headers, whose types every NVRTC has.
  const std::set<std::string> named = named_headers(reached, candidates);
  std::erase_if(candidates, [&](const auto& header) { return !named.contains(header.first); });
  Result<std::vector<std::pair<std::string, std::string>>> digests = digests_of_sources(own, candidates);
  if (!digests.ok()) return digests.status();
  std::erase_if(candidates, [&](const auto& header) {
    return !reached.contains(header.first) && is_proprietary(header.first, header.second);
  });
  gathered.insert(gathered.end(), candidates.begin(), candidates.end());
  std::ranges::move(*digests, std::back_inserter(gathered));
  return make_archive(std::move(gathered));
}

}  // namespace strobe::runtime
