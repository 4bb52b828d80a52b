// SPDX-License-Identifier: Apache-2.0
// SHA-256: kernels are named, and checked after every read, by the hash of what made them.
#pragma once

#include <sha2.h>  // libmd

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace strobe::runtime {

/// libmd's SHA-256 of a message given in parts.
class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, SHA256_DIGEST_LENGTH>;

  Sha256() { SHA256Init(&state_); }

  /// Appends raw bytes to the message.
  Sha256& update(std::string_view bytes);

  /// Appends a length and the bytes, so that ("ab", "c") and ("a", "bc") hash differently.
  Sha256& update_field(std::string_view bytes);

  /// The digest of everything appended; the object is spent.
  Digest finish();

 private:
  SHA2_CTX state_{};
};

/// The digest as 64 lower-case hexadecimal digits.
std::string to_hex(const Sha256::Digest& digest);

}  // namespace strobe::runtime
