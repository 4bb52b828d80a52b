// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel_store.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace strobe::runtime {
namespace {

std::string to_string(NvrtcVersion version) { return fmt::format("{}.{}", version.major, version.minor); }

std::optional<NvrtcVersion> pack_version(const Archive& pack) {
  const std::string_view text = pack.find(KernelStore::kPackVersionEntry).value_or("");
  NvrtcVersion version;
  const auto major = std::from_chars(text.begin(), text.end(), version.major);
  if (major.ec != std::errc() || major.ptr == text.end() || *major.ptr != '.') return std::nullopt;
  const auto minor = std::from_chars(major.ptr + 1, text.end(), version.minor);
  return minor.ec == std::errc() ? std::optional(version) : std::nullopt;
}

/// Whether someone waits who wants to know what for: STROBE_PROGRESS=1.
bool shows_progress() {
  const char* const value = std::getenv("STROBE_PROGRESS");
  return value != nullptr && std::string_view(value) == "1";
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
      pack_version_(pack_version(pack_)),
      cache_(std::move(cache)),
      compiler_(std::move(compiler)) {}

std::string KernelStore::key(const Variant& variant, NvrtcVersion version) const {
  const CompileRequest request = compile_request(variant);
  Sha256 hash;
  hash.update_field(request.source).update_field(request.expression);
  for (const std::string& option : request.options) hash.update_field(option);
  const Sha256::Digest& text = sources_.digest();
  hash.update_field({reinterpret_cast<const char*>(text.data()), text.size()}).update_field(to_string(version));
  return to_hex(hash.finish());
}

Result<std::string> KernelStore::compile(const Variant& variant, const Nvrtc& nvrtc, std::string* log) const {
  const auto start = std::chrono::steady_clock::now();
  CompileOutput output;
  const Status status = nvrtc.compile(compile_request(variant), sources_, output);
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  if (log != nullptr) *log = output.log;
  if (!status.ok()) return status;
  return KernelImage::serialize(key(variant, nvrtc.version()), output, elapsed.count());
}

std::optional<KernelImage> KernelStore::find_in_pack(const Variant& variant) const {
  if (!pack_version_.has_value()) return std::nullopt;
  const std::string name = key(variant, *pack_version_);
  const std::optional<std::string_view> bytes = pack_.find(name);
  if (!bytes.has_value()) return std::nullopt;
  const Result<KernelImage> image = KernelImage::parse(name, *bytes);
  return image.ok() ? std::optional(*image) : std::nullopt;
}

std::optional<KernelImage> KernelStore::find_on_disk(const std::string& key) const {
  std::optional<std::string> bytes = cache_.load(key);
  if (!bytes.has_value()) return std::nullopt;
  const Result<KernelImage> image = KernelImage::parse(key, std::move(*bytes));
  return image.ok() ? std::optional(*image) : std::nullopt;
}

Result<KernelImage> KernelStore::find(const Variant& variant) const {
  if (sources_.entries().empty()) {
    return Status(StatusCode::unsupported, "this build of Strobe has no GPU kernels: it was configured without CUDA");
  }
  if (std::optional<KernelImage> image = find_in_pack(variant)) return *image;
  const Result<const Nvrtc*> nvrtc = compiler_();
  if (!nvrtc.ok()) return nvrtc.status();
  const std::string name = key(variant, (*nvrtc)->version());
  if (std::optional<KernelImage> image = find_on_disk(name)) return *image;
  if (shows_progress()) fmt::print(stderr, "strobe: compiling the kernel {}\n", variant.name);
  Result<std::string> compiled = compile(variant, **nvrtc);
  if (!compiled.ok()) return compiled.status();
  cache_.store(name, *compiled);  // the kernel is in hand: a cache that cannot be written changes nothing
  return KernelImage::parse(name, std::move(*compiled));
}

std::string KernelStore::make_pack(NvrtcVersion version, std::vector<std::pair<std::string, std::string>> images) {
  images.emplace_back(kPackVersionEntry, to_string(version));
  return make_archive(std::move(images));
}

}  // namespace strobe::runtime
