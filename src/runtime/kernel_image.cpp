// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel_image.h"

#include <fmt/format.h>

namespace strobe::runtime {

std::string KernelImage::serialize(const std::string& key, const CompileOutput& output, double compile_ms) {
  return make_archive({{"key", key},
                       {"cubin", output.cubin},
                       {"lowered_name", output.lowered_name},
                       {"log", output.log},
                       {"compile_ms", fmt::format("{:.0f}", compile_ms)}});
}

Result<KernelImage> KernelImage::parse(const std::string& key, std::string_view bytes) {
  const Result<Archive> archive = Archive::parse(bytes);
  if (!archive.ok()) return archive.status();
  const auto content = [&archive](std::string_view name) { return archive->find(name).value_or(""); };
  if (content("key") != key || content("cubin").empty() || content("lowered_name").empty()) {
    return Status(StatusCode::invalid_argument, "the cached file does not hold this kernel");
  }
  return KernelImage{.cubin = content("cubin"),
                     .lowered_name = content("lowered_name"),
                     .log = content("log"),
                     .compile_ms = content("compile_ms"),
                     .storage = nullptr};
}

Result<KernelImage> KernelImage::parse(const std::string& key, std::string bytes) {
  auto storage = std::make_shared<const std::string>(std::move(bytes));
  Result<KernelImage> image = parse(key, std::string_view(*storage));
  if (image.ok()) image->storage = std::move(storage);
  return image;
}

}  // namespace strobe::runtime
