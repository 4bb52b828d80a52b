// SPDX-License-Identifier: Apache-2.0
#include "gpu/compile_ahead.h"

#include <algorithm>
#include <utility>

#include "gpu/auxiliary/exact_captures.h"
#include "gpu/auxiliary/text_blocks.h"
#include "gpu/choose_family.h"
#include "gpu/engine.h"
#include "gpu/plan/text_blocks.h"
#include "gpu/tuned.h"
#include "gpu/variant/architecture.h"
#include "runtime/kernel_store.h"
#include "runtime/nvrtc_choice.h"

namespace strobe::gpu {
namespace {

/// What this machine's first GPU has tuned, if it is the device of that name.
Choice choice_here(std::string_view family, const AttentionProblem& problem, const std::string& name) {
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(0);
  if (!device.ok() || (*device)->name != name) return {};
  return tuned_choice(family, problem, **device).choice;
}

}  // namespace

Result<std::vector<runtime::Variant>> kernels_of(const AttentionProblem& problem, const std::string& name,
                                                 const DeviceShape& shape) {
  if (problem.pass == Pass::jvp) return engine().plan_jvp(problem, {}).status();  // it has none
  const AttentionProblem planned = planned_problem(problem);
  const runtime::CudaDevice device = described_device(name, shape);
  PackList list;
  const Status status = ask_families(planned, device, {}, [&](const Family& family, const std::string&) {
    return family.list_kernels(planned, shape, choice_here(family.name(), planned, name), list);
  });
  if (!status.ok()) return status;
  std::vector<runtime::Variant> kernels;
  if (takes_text_blocks(planned)) kernels.push_back(text_blocks_variant(planned, architecture_of(shape)));
  if (sums_captures_exactly(planned)) kernels.push_back(round_gradient_variant(architecture_of(shape)));
  for (runtime::CommonVariant& kernel : list.take()) kernels.push_back(std::move(kernel.variant));
  return kernels;
}

Result<bool> is_missing(const runtime::Variant& kernel, runtime::NvrtcVersion newest) {
  return runtime::kernel_store().lacks(kernel, newest);
}

bool is_built_in(const runtime::Variant& kernel, runtime::NvrtcVersion newest) {
  return runtime::kernel_store().find_in(runtime::embedded_kernels(), kernel, newest).has_value();
}

Status compile_into_cache(const runtime::Variant& kernel, runtime::NvrtcVersion newest) {
  const Result<runtime::CompiledKernel> compiled = runtime::kernel_store().compiled(kernel, newest);
  return compiled.ok() ? Status() : compiled.status();
}

Result<std::string> pack_of(std::span<const runtime::Variant> kernels, runtime::NvrtcVersion newest) {
  std::vector<runtime::NvrtcVersion> versions;
  std::vector<std::pair<std::string, std::string>> images;
  for (const runtime::Variant& kernel : kernels) {
    const Result<runtime::CompiledKernel> compiled = runtime::kernel_store().compiled(kernel, newest);
    if (!compiled.ok()) return compiled.status();
    if (std::ranges::find(versions, compiled->version) == versions.end()) versions.push_back(compiled->version);
    images.emplace_back(compiled->key, *compiled->image.storage);
  }
  std::ranges::sort(versions);
  return runtime::KernelPack::make(versions, std::move(images));
}

Result<std::string> cache_folder() {
  const runtime::DiskCache& cache = runtime::kernel_store().cache();
  if (cache.usable()) return runtime::DiskCache::default_folder();
  return Status(StatusCode::invalid_argument, cache.reason());
}

Result<ThisDevice> this_device() {
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(0);
  if (!device.ok()) return device.status();
  return ThisDevice{(*device)->name, shape_of(**device), runtime::newest_cubin(*(*device)->driver)};
}

}  // namespace strobe::gpu
