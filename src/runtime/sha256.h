// SHA-256: kernels are named, and checked after every read, by the hash of what made them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace strobe::runtime {

/// Source: FIPS 180-4, section 6.2.
class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, 32>;

  /// Appends raw bytes to the message.
  Sha256& update(std::string_view bytes);

  /// Appends a length and the bytes, so that ("ab", "c") and ("a", "bc") hash differently.
  Sha256& update_field(std::string_view bytes);

  /// The digest of everything appended; the object is spent.
  Digest finish();

 private:
  void compress(const std::uint8_t* block);

  std::array<std::uint32_t, 8> state_ = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                         0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
  std::array<std::uint8_t, 64> block_{};
  std::size_t block_bytes_ = 0;
  std::uint64_t message_bytes_ = 0;
};

/// The digest as 64 lower-case hexadecimal digits.
std::string to_hex(const Sha256::Digest& digest);

}  // namespace strobe::runtime
