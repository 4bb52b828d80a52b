// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel_store.h"

#include <fmt/format.h>

#include <chrono>

#include "runtime/compile_progress.h"

namespace strobe::runtime {
namespace {

std::vector<std::string> compile_options(const Variant& variant) {
  std::vector<std::string> options = {"--gpu-architecture=" + variant.architecture, "--std=c++20", "-default-device",
                                      "--ptxas-options=-v"};  // -v: registers and spills, in the log
  options.insert(options.end(), variant.options.begin(), variant.options.end());
  return options;
}

CompileRequest compile_request(const Variant& variant) {
  return {.name = variant.name,
          .source = fmt::format("{}#include \"{}\"\n", variant.code, variant.include),
          .expression = variant.expression,
          .options = compile_options(variant)};
}

}  // namespace

KernelStore::KernelStore(Archive sources, std::vector<KernelPack> packs, DiskCache cache, Compiler compiler)
    : sources_(std::move(sources)),
      packs_(std::move(packs)),
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

std::optional<KernelImage> KernelStore::find_in(const KernelPack& pack, const Variant& variant,
                                                NvrtcVersion newest) const {
  for (const NvrtcVersion version : pack.versions()) {
    if (version > newest) continue;
    if (std::optional<KernelImage> image = pack.find(key(variant, version))) return image;
  }
  return std::nullopt;
}

std::optional<KernelImage> KernelStore::find_in_packs(const Variant& variant, NvrtcVersion newest) const {
  for (const KernelPack& pack : packs_) {
    if (std::optional<KernelImage> image = find_in(pack, variant, newest)) return image;
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
  if (Status status = check_sources(); !status.ok()) return status;
  if (std::optional<KernelImage> image = find_in_packs(variant, newest)) return *image;
  const Result<CompiledKernel> kernel = compiled(variant, newest);
  if (!kernel.ok()) return kernel.status();
  return kernel->image;
}

Result<CompiledKernel> KernelStore::compiled(const Variant& variant, NvrtcVersion newest) const {
  if (Status status = check_sources(); !status.ok()) return status;
  const Result<const Nvrtc*> nvrtc = compiler_({.newest = newest, .architecture = variant.architecture});
  if (!nvrtc.ok()) return nvrtc.status();
  CompiledKernel kernel{.key = key(variant, (*nvrtc)->version()), .version = (*nvrtc)->version(), .image = {}};
  const auto is_on_disk = [&] {
    const std::optional<KernelImage> image = find_on_disk(kernel.key);
    if (image.has_value()) kernel.image = *image;
    return image.has_value();
  };
  if (is_on_disk()) return kernel;
  const FileDescriptor claim = cache_.claim(kernel.key);
  if (is_on_disk()) return kernel;  // another process has compiled it
  const CompileProgress progress(variant.name);
  Result<std::string> bytes = compile(variant, **nvrtc);
  if (!bytes.ok()) return bytes.status();
  cache_.store(kernel.key, *bytes);  // the kernel is in hand: a cache that cannot be written changes nothing
  const Result<KernelImage> image = KernelImage::parse(kernel.key, std::move(*bytes));
  if (!image.ok()) return image.status();
  kernel.image = *image;
  return kernel;
}

Result<bool> KernelStore::lacks(const Variant& variant, NvrtcVersion newest) const {
  if (Status status = check_sources(); !status.ok()) return status;
  if (find_in_packs(variant, newest).has_value()) return false;
  const Result<const Nvrtc*> nvrtc = compiler_({.newest = newest, .architecture = variant.architecture});
  if (!nvrtc.ok()) return nvrtc.status();
  return !find_on_disk(key(variant, (*nvrtc)->version())).has_value();
}

Status KernelStore::check_sources() const {
  if (!sources_.entries().empty()) return {};
  return {StatusCode::unsupported, "this build of Strobe has no GPU kernels: it was configured without CUDA"};
}

}  // namespace strobe::runtime
