// SPDX-License-Identifier: Apache-2.0
// Where compiled kernels come from: the pack inside the library, then the disk cache, then NVRTC.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "runtime/archive.h"
#include "runtime/disk_cache.h"
#include "runtime/kernel_image.h"
#include "runtime/nvrtc.h"
#include "runtime/variant.h"
#include "strobe/status.h"

namespace strobe::runtime {

/// Immutable after construction; threads and processes may look up at once.
class KernelStore {
 public:
  using Compiler = std::function<Result<const Nvrtc*>()>;

  /// `sources`: every header that kernels include, ours and CUDA's. `pack`: images by key, as make_pack writes it.
  /// `compiler` is asked for only when the pack does not have a kernel. The archives' bytes outlive the store.
  KernelStore(Archive sources, Archive pack, DiskCache cache, Compiler compiler);

  /// The variant's image. Never another variant's, whatever the disk holds; unsupported when it has to be compiled and
  /// there is no NVRTC, device_error when it does not compile.
  Result<KernelImage> find(const Variant& variant) const;

  /// What names a kernel: the hash of the variant, the text of all sources, the compiler's flags and its version.
  std::string key(const Variant& variant, NvrtcVersion version) const;

  /// Compiles without looking anywhere first. On failure the Status holds the first error, and `log` all of them.
  Result<std::string> compile(const Variant& variant, const Nvrtc& nvrtc, std::string* log = nullptr) const;

  const DiskCache& cache() const { return cache_; }

  /// A pack's entry that is no image but says which NVRTC made it.
  static constexpr std::string_view kPackVersionEntry = "nvrtc_version";

  /// The bytes of a pack: images by their keys, all from the NVRTC of that version.
  static std::string make_pack(NvrtcVersion version, std::vector<std::pair<std::string, std::string>> images);

 private:
  std::optional<KernelImage> find_in_pack(const Variant& variant) const;
  std::optional<KernelImage> find_on_disk(const std::string& key) const;

  Archive sources_;
  Archive pack_;
  std::optional<NvrtcVersion> pack_version_;
  DiskCache cache_;
  Compiler compiler_;
};

/// The store of this process: the library's own sources and pack, the user's cache folder, nvrtc().
const KernelStore& kernel_store();

}  // namespace strobe::runtime
