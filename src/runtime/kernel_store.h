// SPDX-License-Identifier: Apache-2.0
// Where compiled kernels come from: the packs, of which one is inside the library, then the disk cache, then NVRTC.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/archive.h"
#include "runtime/disk_cache.h"
#include "runtime/installed_packs.h"
#include "runtime/kernel_image.h"
#include "runtime/kernel_pack.h"
#include "runtime/nvrtc.h"
#include "runtime/variant.h"
#include "strobe/status.h"

namespace strobe::runtime {

/// A kernel that this machine compiled, now or before.
struct CompiledKernel {
  std::string key;
  NvrtcVersion version;
  KernelImage image;  // which owns its bytes
};

/// Immutable after construction; threads and processes may look up at once.
class KernelStore {
 public:
  using Compiler = std::function<Result<const Nvrtc*>(const CubinTarget&)>;

  /// `sources`: every header that kernels include, ours and CUDA's; its bytes outlive the store. `packs`: in the order
  /// in which they are asked. `compiler` is asked for only when no pack has a kernel.
  KernelStore(Archive sources, std::vector<KernelPack> packs, DiskCache cache, Compiler compiler);

  /// The variant's image, made by an NVRTC up to that version. Never another variant's, whatever the disk holds;
  /// unsupported when it has to be compiled and there is no NVRTC, device_error when it does not compile.
  Result<KernelImage> find(const Variant& variant, NvrtcVersion newest = CubinTarget().newest) const;

  /// The same without a look into the packs: from the disk cache, or compiled into it.
  Result<CompiledKernel> compiled(const Variant& variant, NvrtcVersion newest = CubinTarget().newest) const;

  /// The variant's image in that pack, made by an NVRTC up to that version.
  std::optional<KernelImage> find_in(const KernelPack& pack, const Variant& variant, NvrtcVersion newest) const;

  /// Whether find() would have to compile it.
  Result<bool> lacks(const Variant& variant, NvrtcVersion newest = CubinTarget().newest) const;

  /// What names a kernel: the hash of the variant, the sources it is compiled from, the compiler's flags and its
  /// version. An edit to a header renames only the kernels that include it.
  std::string key(const Variant& variant, NvrtcVersion version) const;

  /// Compiles without looking anywhere first. On failure the Status holds the first error, and `log` all of them.
  Result<std::string> compile(const Variant& variant, const Nvrtc& nvrtc, std::string* log = nullptr) const;

  const DiskCache& cache() const { return cache_; }

  /// The entry of a source archive that holds the digest of everything `header` includes. Where an archive has none,
  /// all of its sources count.
  static std::string digest_entry(std::string_view header);

 private:
  std::optional<KernelImage> find_in_packs(const Variant& variant, NvrtcVersion newest) const;
  std::optional<KernelImage> find_on_disk(const std::string& key) const;
  Status check_sources() const;

  Archive sources_;
  std::vector<KernelPack> packs_;
  DiskCache cache_;
  Compiler compiler_;
};

/// The pack inside the library.
const KernelPack& embedded_kernels();

/// The packs installed beside the library, as they were when they were first asked for.
const std::vector<InstalledPack>& installed_packs();

/// The store of this process: the library's own sources and pack, packs installed beside it, the user's cache folder,
/// nvrtc().
const KernelStore& kernel_store();

}  // namespace strobe::runtime
