// SPDX-License-Identifier: Apache-2.0
#include "strobe/gpu_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/device.h"
#include "runtime/kernel_store.h"
#include "runtime/nvrtc_choice.h"
#include "runtime/tuned_table.h"

namespace strobe {
namespace {

using namespace runtime;  // it reports on that whole folder

std::string describe(const CudaDevice& device) {
  return fmt::format("{}, compute capability {}.{}, {} multiprocessors, {:.0f} GiB", device.name, device.compute_major,
                     device.compute_minor, device.multiprocessors,
                     static_cast<double>(device.memory_bytes) / (1 << 30));
}

std::string describe(const Driver& driver) {
  return fmt::format("for CUDA {}.{}; loads kernels compiled by NVRTC {} to {}.{}, and as a rule of later {}.x",
                     driver.major(), driver.minor(), to_string(kOldestNvrtc), driver.major(), driver.minor(),
                     driver.major());
}

std::string describe(const KernelPack& pack, const NvrtcVersion& newest) {
  std::vector<std::string> versions;
  std::vector<std::string> too_new;
  for (const NvrtcVersion version : pack.versions()) {
    versions.push_back(to_string(version));
    if (version > newest) too_new.push_back(to_string(version));
  }
  std::string text = fmt::format("{} kernels, by NVRTC {}", pack.size(), fmt::join(versions, " and "));
  if (!too_new.empty()) text += fmt::format("; the driver does not load those by {}", fmt::join(too_new, " and "));
  return text;
}

}  // namespace

GpuReport gpu_report() {
  GpuReport report;
  CubinTarget target;
  const Result<const Driver*> opened = driver();
  if (!opened.ok()) {
    report.driver = opened.status().message();
  } else {
    report.driver = describe(**opened);
    target.newest = newest_cubin(**opened);
    const Result<int> count = cuda_device_count();
    if (!count.ok()) report.devices.push_back(count.status().message());
    for (int index = 0; count.ok() && index < *count; ++index) {
      const Result<const CudaDevice*> device = cuda_device(index);
      report.devices.push_back(device.ok() ? describe(**device) : device.status().message());
      if (device.ok()) report.tuned.push_back(tuned_choices(**device).note);
      if (device.ok() && target.architecture.empty()) {
        target.architecture = fmt::format("sm_{}0", (*device)->compute_major);
      }
    }
  }
  const KernelStore& store = kernel_store();
  const KernelPack& own = embedded_kernels();
  report.pack = own.versions().empty() ? "none: this build has no GPU kernels" : describe(own, target.newest);
  for (const InstalledPack& installed : installed_packs()) {
    const std::string what = installed.reason.empty() ? describe(installed.pack, target.newest)
                                                      : fmt::format("not used: {}", installed.reason);
    report.installed_packs.push_back(fmt::format("{}: {}", installed.path, what));
  }
  report.compiler = describe_nvrtc(target);
  report.cache = store.cache().usable() ? DiskCache::default_folder() : store.cache().reason();
  return report;
}

}  // namespace strobe
