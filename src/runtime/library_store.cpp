// SPDX-License-Identifier: Apache-2.0
// The kernel store over what the build put inside the library, and what lies beside it.
#include "runtime/embedded.h"
#include "runtime/kernel_store.h"

namespace strobe::runtime {
namespace {

Archive parse_embedded(std::string_view bytes) {
  const Result<Archive> archive = Archive::parse(bytes);
  return archive.ok() ? *archive : Archive();  // no bytes: a build without GPU kernels
}

std::vector<KernelPack> all_packs() {
  std::vector<KernelPack> packs = {embedded_kernels()};
  for (const InstalledPack& installed : installed_packs()) packs.push_back(installed.pack);
  return packs;
}

}  // namespace

// None of these is ever destroyed: a plan made by another static object may ask for kernels while the process ends.

const KernelPack& embedded_kernels() {
  static const KernelPack& pack = *new KernelPack(parse_embedded(embedded_pack()));
  return pack;
}

const std::vector<InstalledPack>& installed_packs() {
  static const std::vector<InstalledPack>& packs = *new std::vector<InstalledPack>(packs_in(packs_place()));
  return packs;
}

const KernelStore& kernel_store() {
  static const KernelStore& store = *new KernelStore(parse_embedded(embedded_sources()), all_packs(),
                                                     DiskCache::open(DiskCache::default_folder()), nvrtc);
  return store;
}

}  // namespace strobe::runtime
