// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel_pack.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace strobe::runtime {
namespace {

/// As make() writes them: "12.9 13.0".
std::vector<NvrtcVersion> versions_of(const Archive& pack) {
  std::string_view text = pack.find(KernelPack::kVersionsEntry).value_or("");
  std::vector<NvrtcVersion> versions;
  while (!text.empty()) {
    NvrtcVersion version;
    const auto major = std::from_chars(text.begin(), text.end(), version.major);
    if (major.ec != std::errc() || major.ptr == text.end() || *major.ptr != '.') return {};
    const auto minor = std::from_chars(major.ptr + 1, text.end(), version.minor);
    if (minor.ec != std::errc()) return {};
    versions.push_back(version);
    text.remove_prefix(std::min<std::size_t>(minor.ptr - text.begin() + 1, text.size()));
  }
  return versions;
}

}  // namespace

KernelPack::KernelPack(Archive archive, Images images)
    : archive_(std::move(archive)), images_(images), versions_(versions_of(archive_)) {}

std::optional<KernelImage> KernelPack::find(const std::string& key) const {
  const std::optional<std::string_view> bytes = archive_.find(key);
  if (!bytes.has_value()) return std::nullopt;
  if (images_ == Images::checked && !Archive::parse_untrusted(*bytes).ok()) return std::nullopt;
  const Result<KernelImage> image = KernelImage::parse(key, *bytes);
  return image.ok() ? std::optional(*image) : std::nullopt;
}

std::string KernelPack::make(std::span<const NvrtcVersion> versions,
                             std::vector<std::pair<std::string, std::string>> images) {
  std::vector<std::string> texts;
  for (const NvrtcVersion version : versions) texts.push_back(to_string(version));
  images.emplace_back(kVersionsEntry, fmt::format("{}", fmt::join(texts, " ")));
  return make_archive(std::move(images));
}

}  // namespace strobe::runtime
