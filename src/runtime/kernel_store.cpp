// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "runtime/compile_progress.h"

namespace strobe::runtime {
namespace {

/// As make_pack writes them: "12.9 13.0".
std::vector<NvrtcVersion> versions_of(const Archive& pack) {
  std::string_view text = pack.find(KernelStore::kPackVersionsEntry).value_or("");
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

std::vector<std::string> compile_options(const Variant& variant) {
  std::vector<std::string> options = {"--gpu-architecture=" + variant.architecture, "--std=c++20", "-default-device",
                                      "--ptxas-options=-v"};  // -v: registers and spills, in the log
  options.insert(options.end(), variant.options.begin(), variant.options.end());
  return options;
}

CompileRequest compile_request(const Variant& variant) {
  return {.name = variant.name,
          .source = fmt::format("#include \"{}\"\n", variant.include),
          .expression = variant.expression,
          .options = compile_options(variant)};
}

}  // namespace

KernelStore::KernelStore(Archive sources, Archive pack, DiskCache cache, Compiler compiler)
    : sources_(std::move(sources)),
      pack_(std::move(pack)),
      pack_versions_(versions_of(pack_)),
      cache_(std::move(cache)),
      compiler_(std::move(compiler)) {}

std::string KernelStore::key(const Variant& variant, NvrtcVersion version) const {
  const CompileRequest request = compile_request(variant);
  Sha256 hash;
  hash.update_field(request.source).update_field(request.expression);
  for (const std::string& option : request.options) hash.update_field(option);
  const std::optional<std::string_view> included = sources_.find(digest_entry(variant.include));
  hash.update_field(included.has_value() ? std::string(*included) : to_hex(sources_.digest()));
  hash.update_field(to_string(version));
  return to_hex(hash.finish());
}

std::string KernelStore::digest_entry(std::string_view header) { return fmt::format("digest of {}", header); }

Result<std::string> KernelStore::compile(const Variant& variant, const Nvrtc& nvrtc, std::string* log) const {
  const auto start = std::chrono::steady_clock::now();
  CompileOutput output;
  const Status status = nvrtc.compile(compile_request(variant), sources_, output);
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  if (log != nullptr) *log = output.log;
  if (!status.ok()) return status;
  return KernelImage::serialize(key(variant, nvrtc.version()), output, elapsed.count());
}

std::optional<KernelImage> KernelStore::find_in_pack(const Variant& variant, NvrtcVersion newest) const {
  for (const NvrtcVersion version : pack_versions_) {
    if (version > newest) continue;
    const std::string name = key(variant, version);
    const std::optional<std::string_view> bytes = pack_.find(name);
    if (!bytes.has_value()) continue;
    if (const Result<KernelImage> image = KernelImage::parse(name, *bytes); image.ok()) return *image;
  }
  return std::nullopt;
}

std::optional<KernelImage> KernelStore::find_on_disk(const std::string& key) const {
  std::optional<std::string> bytes = cache_.load(key);
  if (!bytes.has_value()) return std::nullopt;
  const Result<KernelImage> image = KernelImage::parse(key, std::move(*bytes));
  return image.ok() ? std::optional(*image) : std::nullopt;
}

Result<KernelImage> KernelStore::find(const Variant& variant, NvrtcVersion newest) const {
  if (sources_.entries().empty()) {
    return Status(StatusCode::unsupported, "this build of Strobe has no GPU kernels: it was configured without CUDA");
  }
  if (std::optional<KernelImage> image = find_in_pack(variant, newest)) return *image;
  const Result<const Nvrtc*> nvrtc = compiler_({.newest = newest, .architecture = variant.architecture});
  if (!nvrtc.ok()) return nvrtc.status();
  const std::string name = key(variant, (*nvrtc)->version());
  if (std::optional<KernelImage> image = find_on_disk(name)) return *image;
  const CompileProgress progress(variant.name);
  Result<std::string> compiled = compile(variant, **nvrtc);
  if (!compiled.ok()) return compiled.status();
  cache_.store(name, *compiled);  // the kernel is in hand: a cache that cannot be written changes nothing
  return KernelImage::parse(name, std::move(*compiled));
}

std::string KernelStore::make_pack(std::span<const NvrtcVersion> versions,
                                   std::vector<std::pair<std::string, std::string>> images) {
  std::vector<std::string> texts;
  for (const NvrtcVersion version : versions) texts.push_back(to_string(version));
  images.emplace_back(kPackVersionsEntry, fmt::format("{}", fmt::join(texts, " ")));
  return make_archive(std::move(images));
}

}  // namespace strobe::runtime
