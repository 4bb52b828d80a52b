// SPDX-License-Identifier: Apache-2.0
#include "runtime/pack/build_pack.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <span>
#include <thread>

#include "runtime/shared_work.h"

namespace strobe::runtime {
namespace {

/// Compiles into the cache until all is taken; the exit code of the worker process.
int work(const KernelStore& store, const Nvrtc& nvrtc, std::span<const CommonVariant> variants,
         const SharedWork& shared) {
  bool all_well = true;
  for (std::size_t index = 0; shared.take(index);) {
    const Variant& variant = variants[index].variant;
    const std::string key = store.key(variant, nvrtc.version());
    if (store.cache().load(key).has_value()) continue;
    std::string log;
    const Result<std::string> image = store.compile(variant, nvrtc, &log);
    if (!image.ok()) {
      fmt::print(stderr, "{}\n{}\n", image.status().message(), log);
      all_well = false;
    } else if (!store.cache().store(key, *image)) {
      fmt::print(stderr, "{}: the compiled kernel cannot be written to the cache\n", variant.name);
      all_well = false;
    }
  }
  return all_well ? EXIT_SUCCESS : EXIT_FAILURE;
}

/// Processes, since the front end of NVRTC runs on one thread of a process at a time.
bool compile_all(const KernelStore& store, const Nvrtc& nvrtc, std::span<const CommonVariant> variants) {
  const SharedWork shared(variants.size());
  if (!shared.usable()) return false;
  std::vector<pid_t> workers;
  for (unsigned job = 0; job < std::max(1U, std::thread::hardware_concurrency()); ++job) {
    const pid_t worker = ::fork();
    if (worker == 0) {
      const int code = work(store, nvrtc, variants, shared);
      std::fflush(nullptr);
      ::_exit(code);
    }
    if (worker > 0) workers.push_back(worker);
  }
  bool all_well = !workers.empty();
  for (const pid_t worker : workers) {
    int state = 0;
    ::waitpid(worker, &state, 0);
    all_well &= WIFEXITED(state) && WEXITSTATUS(state) == EXIT_SUCCESS;
  }
  return all_well;
}

/// Why a kernel must not go into the pack; empty when it may.
std::string_view fault(const PtxasReport& report) {
  if (report.spill_bytes > 0) return "spills registers to local memory";
  if (report.stack_bytes > 0) return "keeps an array in local memory";
  if (report.wgmma_serialized) return "makes ptxas serialise WGMMA or ignore setmaxnreg (C75xx)";
  return {};
}

using Images = std::vector<std::pair<std::string, std::string>>;

/// Adds what may go into the pack of the kernels that this NVRTC compiles. `faulty`: the others, which it reports where
/// no other NVRTC is left to try.
Status add_kernels(const KernelStore& store, const Nvrtc& nvrtc, std::span<const CommonVariant> variants, bool is_last,
                   Pack& pack, Images& images, std::vector<CommonVariant>& faulty) {
  if (!compile_all(store, nvrtc, variants)) {
    return {StatusCode::device_error, "not every kernel of the pack was compiled; the reasons are above"};
  }
  for (const CommonVariant& kernel : variants) {
    const std::string key = store.key(kernel.variant, nvrtc.version());
    std::optional<std::string> bytes = store.cache().load(key);
    if (!bytes.has_value()) return {StatusCode::device_error, "a kernel left the cache while it was read back"};
    const Result<KernelImage> image = KernelImage::parse(key, std::string_view(*bytes));
    if (!image.ok()) return image.status();
    const std::optional<PtxasReport> report = parse_ptxas_log(image->log);
    const std::string_view why = report.has_value() ? fault(*report) : "has no line from ptxas in its log";
    if (!why.empty()) {
      fmt::print(stderr, "{} {} with NVRTC {}{}\n", kernel.variant.name, why, to_string(nvrtc.version()),
                 is_last ? "" : ": a newer one compiles it");
      if (is_last) fmt::print(stderr, "{}\n", image->log);
      faulty.push_back(kernel);
      continue;
    }
    PackedKernel& packed = pack.kernels.emplace_back(PackedKernel{
        .kernel = kernel, .nvrtc = nvrtc.version(), .report = *report, .cubin_bytes = image->cubin.size()});
    std::from_chars(image->compile_ms.begin(), image->compile_ms.end(), packed.compile_ms);
    images.emplace_back(key, std::move(*bytes));
  }
  return {};
}

}  // namespace

Result<Pack> build_pack(const KernelStore& store, std::span<const Nvrtc* const> nvrtcs,
                        std::vector<CommonVariant> variants) {
  if (!store.cache().usable()) {
    return Status(StatusCode::invalid_argument, fmt::format("the cache cannot be used: {}", store.cache().reason()));
  }
  Pack pack;
  Images images;
  std::vector<NvrtcVersion> versions;
  for (const Nvrtc* const nvrtc : nvrtcs) {
    std::vector<CommonVariant> faulty;
    if (Status status = add_kernels(store, *nvrtc, variants, nvrtc == nvrtcs.back(), pack, images, faulty);
        !status.ok()) {
      return status;
    }
    versions.push_back(nvrtc->version());
    variants = std::move(faulty);
    if (variants.empty()) break;
  }
  if (!variants.empty()) {
    return Status(StatusCode::device_error, "kernels that must not go into the pack; they are above");
  }
  pack.archive = KernelPack::make(versions, std::move(images));
  return pack;
}

}  // namespace strobe::runtime
