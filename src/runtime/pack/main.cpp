// SPDX-License-Identifier: Apache-2.0
// The build's own tool: makes what is embedded in the library. It needs no GPU.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/pack/build_pack.h"
#include "runtime/pack/files.h"
#include "runtime/pack/gather_sources.h"

namespace strobe::runtime {
namespace {

constexpr std::string_view kUsage =
    "strobe-pack sources OUT NVRTC KERNELS INCLUDE...\n"
    "  writes to OUT the archive of the headers under KERNELS and of the CUDA headers that they reach in the INCLUDEs\n"
    "strobe-pack kernels OUT REPORT SOURCES CACHE PATTERN NVRTC...\n"
    "  compiles the common kernels whose names the regular expression PATTERN finds from the archive SOURCES by way "
    "of\n"
    "  the cache folder CACHE, writes their archive to OUT and to REPORT what each uses, as JSON. A kernel that the "
    "first\n"
    "  NVRTC spills or serialises is left to the next one\n";

Status make_sources(std::span<char* const> arguments) {
  const auto nvrtc = Nvrtc::open(arguments[1]);
  if (!nvrtc.ok()) return nvrtc.status();
  const Result<std::string> sources = gather_sources(**nvrtc, arguments[2], {arguments.begin() + 3, arguments.end()},
                                                     {std::string(newest_architecture())});
  if (!sources.ok()) return sources.status();
  return write_file(arguments[0], *sources);
}

std::string report_as_json(const std::vector<PackedKernel>& kernels) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const PackedKernel& kernel : kernels) {
    rows.push_back({{"name", kernel.kernel.variant.name},
                    {"kernel", kernel.kernel.variant.expression},
                    {"header", kernel.kernel.variant.include},
                    {"architecture", kernel.kernel.variant.architecture},
                    {"nvrtc", to_string(kernel.nvrtc)},
                    {"registers", kernel.report.registers},
                    {"static_shared_bytes", kernel.report.static_shared_bytes},
                    {"dynamic_shared_bytes", kernel.kernel.dynamic_shared_bytes},
                    {"spill_bytes", kernel.report.spill_bytes},
                    {"stack_bytes", kernel.report.stack_bytes},
                    {"cubin_bytes", kernel.cubin_bytes},
                    {"compile_ms", kernel.compile_ms}});
  }
  return rows.dump(1) + "\n";
}

Status make_kernels(std::span<char* const> arguments) {
  const Result<std::string> bytes = read_file(arguments[2]);
  if (!bytes.ok()) return bytes.status();
  const Result<Archive> sources = Archive::parse_untrusted(*bytes);
  if (!sources.ok()) return sources.status();
  std::vector<std::unique_ptr<const Nvrtc>> opened;
  std::vector<const Nvrtc*> nvrtcs;
  for (const char* const path : arguments.subspan(5)) {
    Result<std::unique_ptr<const Nvrtc>> nvrtc = Nvrtc::open(path);
    if (!nvrtc.ok()) return nvrtc.status();
    nvrtcs.push_back(nvrtc->get());
    opened.push_back(std::move(*nvrtc));
  }
  const KernelStore store(*sources, {}, DiskCache::open(arguments[3]), {});
  store.cache().keep_to_this_process();
  std::vector<CommonVariant> variants = common_variants();
  const std::regex pattern(arguments[4]);
  std::erase_if(variants,
                [&](const CommonVariant& kernel) { return !std::regex_search(kernel.variant.name, pattern); });
  const Result<Pack> pack = build_pack(store, nvrtcs, std::move(variants));
  if (!pack.ok()) return pack.status();
  if (Status status = write_file(arguments[0], pack->archive); !status.ok()) return status;
  return write_file(arguments[1], report_as_json(pack->kernels));
}

int run(std::span<char* const> arguments) {
  const std::string_view command = arguments.size() > 1 ? arguments[1] : "";
  Status status;
  if (command == "sources" && arguments.size() >= 6) {
    status = make_sources(arguments.subspan(2));
  } else if (command == "kernels" && arguments.size() >= 8) {
    status = make_kernels(arguments.subspan(2));
  } else {
    fmt::print(stderr, "{}", kUsage);
    return EXIT_FAILURE;
  }
  if (!status.ok()) fmt::print(stderr, "strobe-pack: {}\n", status.message());
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace strobe::runtime

int main(int count, char** arguments) {
  try {
    return strobe::runtime::run({arguments, static_cast<std::size_t>(count)});
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "strobe-pack: %s\n", exception.what());
    return EXIT_FAILURE;
  }
}
