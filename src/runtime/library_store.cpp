// SPDX-License-Identifier: Apache-2.0
// The kernel store over what the build put inside the library.
#include "runtime/embedded.h"
#include "runtime/kernel_store.h"

namespace strobe::runtime {
namespace {

Archive parse_embedded(std::string_view bytes) {
  const Result<Archive> archive = Archive::parse(bytes);
  return archive.ok() ? *archive : Archive();  // no bytes: a build without GPU kernels
}

}  // namespace

const KernelStore& kernel_store() {
  // Never destroyed: a plan made by another static object may still ask for kernels while the process ends.
  static const KernelStore& store =
      *new KernelStore(parse_embedded(embedded_sources()), parse_embedded(embedded_pack()),
                       DiskCache::open(DiskCache::default_folder()), nvrtc);
  return store;
}

}  // namespace strobe::runtime
