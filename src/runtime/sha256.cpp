// SPDX-License-Identifier: Apache-2.0
#include "runtime/sha256.h"

#include <fmt/ranges.h>

namespace strobe::runtime {

Sha256& Sha256::update(std::string_view bytes) {
  SHA256Update(&state_, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  return *this;
}

Sha256& Sha256::update_field(std::string_view bytes) {
  const std::uint64_t length = bytes.size();
  std::array<char, 8> header;
  for (std::size_t i = 0; i < header.size(); ++i) header[i] = static_cast<char>(length >> (8 * i) & 0xFFU);
  return update({header.data(), header.size()}).update(bytes);
}

Sha256::Digest Sha256::finish() {
  Digest digest;
  SHA256Final(digest.data(), &state_);
  return digest;
}

std::string to_hex(const Sha256::Digest& digest) { return fmt::format("{:02x}", fmt::join(digest, "")); }

}  // namespace strobe::runtime
