// SPDX-License-Identifier: Apache-2.0
// Kernels that were compiled ahead, as one archive of images by their keys: the one inside the library, and files of
// the same format beside it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/archive.h"
#include "runtime/kernel_image.h"
#include "runtime/nvrtc.h"

namespace strobe::runtime {

class KernelPack {
 public:
  /// Whether an image is compared with its digest before it is used.
  enum class Images : bool { trusted, checked };

  /// A pack without kernels.
  KernelPack() = default;

  /// The archive's bytes, as make() writes them, outlive the pack.
  explicit KernelPack(Archive archive, Images images = Images::trusted);

  /// The image stored under that key, if it is whole and that of this key.
  std::optional<KernelImage> find(const std::string& key) const;

  /// The NVRTCs that made it, the oldest first; none where it has no kernels.
  const std::vector<NvrtcVersion>& versions() const { return versions_; }

  /// How many kernels it holds.
  std::size_t size() const { return versions_.empty() ? 0 : archive_.entries().size() - 1; }

  /// The bytes of a pack: images by their keys, from NVRTCs of those versions.
  static std::string make(std::span<const NvrtcVersion> versions,
                          std::vector<std::pair<std::string, std::string>> images);

  /// The entry that is no image but says which NVRTCs made the pack.
  static constexpr std::string_view kVersionsEntry = "nvrtc_versions";

 private:
  Archive archive_;
  Images images_ = Images::trusted;
  std::vector<NvrtcVersion> versions_;
};

}  // namespace strobe::runtime
