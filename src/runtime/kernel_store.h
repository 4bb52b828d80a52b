// SPDX-License-Identifier: Apache-2.0
// Where compiled kernels come from: the pack inside the library, then the disk cache, then NVRTC.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

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
  using Compiler = std::function<Result<const Nvrtc*>(const CubinTarget&)>;

  /// `sources`: every header that kernels include, ours and CUDA's. `pack`: images by key, as make_pack writes it.
  /// `compiler` is asked for only when the pack does not have a kernel. The archives' bytes outlive the store.
  KernelStore(Archive sources, Archive pack, DiskCache cache, Compiler compiler);

  /// The variant's image, made by an NVRTC up to that version. Never another variant's, whatever the disk holds;
  /// unsupported when it has to be compiled and there is no NVRTC, device_error when it does not compile.
  Result<KernelImage> find(const Variant& variant, NvrtcVersion newest = CubinTarget().newest) const;

  /// The NVRTCs that made the pack, the oldest first; none where there is no pack.
  const std::vector<NvrtcVersion>& pack_versions() const { return pack_versions_; }

  /// How many kernels the pack holds.
  std::size_t pack_size() const { return pack_versions_.empty() ? 0 : pack_.entries().size() - 1; }

  /// What names a kernel: the hash of the variant, the sources it is compiled from, the compiler's flags and its
  /// version. An edit to a header renames only the kernels that include it.
  std::string key(const Variant& variant, NvrtcVersion version) const;

  /// Compiles without looking anywhere first. On failure the Status holds the first error, and `log` all of them.
  Result<std::string> compile(const Variant& variant, const Nvrtc& nvrtc, std::string* log = nullptr) const;

  const DiskCache& cache() const { return cache_; }

  /// The entry of a source archive that holds the digest of everything `header` includes. Where an archive has none,
  /// all of its sources count.
  static std::string digest_entry(std::string_view header);

  /// A pack's entry that is no image but says which NVRTCs made it.
  static constexpr std::string_view kPackVersionsEntry = "nvrtc_versions";

  /// The bytes of a pack: images by their keys, from NVRTCs of those versions.
  static std::string make_pack(std::span<const NvrtcVersion> versions,
                               std::vector<std::pair<std::string, std::string>> images);

 private:
  std::optional<KernelImage> find_in_pack(const Variant& variant, NvrtcVersion newest) const;
  std::optional<KernelImage> find_on_disk(const std::string& key) const;

  Archive sources_;
  Archive pack_;
  std::vector<NvrtcVersion> pack_versions_;
  DiskCache cache_;
  Compiler compiler_;
};

/// The store of this process: the library's own sources and pack, the user's cache folder, nvrtc().
const KernelStore& kernel_store();

}  // namespace strobe::runtime
