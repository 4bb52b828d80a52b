// SPDX-License-Identifier: Apache-2.0
// Many named byte strings in one: the format of what travels inside the library (kernel sources, compiled kernels) and
// of each file in the disk cache.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/sha256.h"
#include "strobe/status.h"

namespace strobe::runtime {

/// A read-only view of archive bytes, which must outlive it.
///
/// Layout, little-endian: "STROBE1\n", SHA-256 of everything that follows (32 bytes), entry count (u64), then per entry
/// name size (u64), content size (u64), name, 0, content, 0. Names are sorted and unique.
class Archive {
 public:
  struct Entry {
    std::string_view name;     // zero-terminated in the archive
    std::string_view content;  // zero-terminated in the archive, the zero not counted
  };

  /// An archive without entries.
  Archive() = default;

  /// Reads `bytes` of our own making, as embedded in the library: the structure is checked, the digest is not.
  static Result<Archive> parse(std::string_view bytes);

  /// Reads bytes of any origin: rejected unless the digest is that of the content.
  static Result<Archive> parse_untrusted(std::string_view bytes);

  std::optional<std::string_view> find(std::string_view name) const;
  std::span<const Entry> entries() const { return entries_; }

  /// The SHA-256 of the content, as stored.
  const Sha256::Digest& digest() const { return digest_; }

 private:
  std::vector<Entry> entries_;
  Sha256::Digest digest_{};
};

/// The bytes of an archive that holds these (name, content) pairs. Names must be unique.
std::string make_archive(std::vector<std::pair<std::string, std::string>> entries);

}  // namespace strobe::runtime
