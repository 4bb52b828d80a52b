// SPDX-License-Identifier: Apache-2.0
#include "runtime/archive.h"

#include <algorithm>
#include <cstring>

namespace strobe::runtime {
namespace {

constexpr std::string_view kMagic = "STROBE1\n";
constexpr std::size_t kHeaderBytes = kMagic.size() + sizeof(Sha256::Digest);
constexpr std::size_t kSmallestEntryBytes = 2 * sizeof(std::uint64_t) + 2;

void append_u64(std::string& bytes, std::uint64_t value) {
  for (unsigned shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(value >> shift & 0xFFU);
}

/// Takes from the front of `bytes`; every read says whether there was enough.
struct Reader {
  std::string_view bytes;

  bool read(std::uint64_t& value) {
    if (bytes.size() < sizeof(value)) return false;
    value = 0;
    for (unsigned i = 0; i < 8; ++i) value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    bytes.remove_prefix(sizeof(value));
    return true;
  }

  bool read_terminated(std::uint64_t size, std::string_view& value) {
    if (size >= bytes.size() || bytes[size] != '\0') return false;
    value = bytes.substr(0, size);
    bytes.remove_prefix(size + 1);
    return true;
  }
};

Status malformed() { return {StatusCode::invalid_argument, "the kernel archive is damaged"}; }

}  // namespace

Result<Archive> Archive::parse(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes || !bytes.starts_with(kMagic)) return malformed();
  Archive archive;
  std::memcpy(archive.digest_.data(), bytes.data() + kMagic.size(), archive.digest_.size());
  Reader reader{bytes.substr(kHeaderBytes)};
  std::uint64_t count = 0;
  if (!reader.read(count) || count > reader.bytes.size() / kSmallestEntryBytes) return malformed();
  archive.entries_.resize(count);
  for (Entry& entry : archive.entries_) {
    std::uint64_t name_bytes = 0;
    std::uint64_t content_bytes = 0;
    if (!reader.read(name_bytes) || !reader.read(content_bytes) || !reader.read_terminated(name_bytes, entry.name) ||
        !reader.read_terminated(content_bytes, entry.content)) {
      return malformed();
    }
  }
  if (!reader.bytes.empty()) return malformed();
  return archive;
}

Result<Archive> Archive::parse_untrusted(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes || !bytes.starts_with(kMagic)) return malformed();
  const Sha256::Digest actual = Sha256().update(bytes.substr(kHeaderBytes)).finish();
  if (std::memcmp(actual.data(), bytes.data() + kMagic.size(), actual.size()) != 0) return malformed();
  return parse(bytes);
}

std::optional<std::string_view> Archive::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(entries_, name, {}, &Entry::name);
  if (at == entries_.end() || at->name != name) return std::nullopt;
  return at->content;
}

std::string make_archive(std::vector<std::pair<std::string, std::string>> entries) {
  std::ranges::sort(entries);
  std::string body;
  append_u64(body, entries.size());
  for (const auto& [name, content] : entries) {
    append_u64(body, name.size());
    append_u64(body, content.size());
    body.append(name).append(1, '\0').append(content).append(1, '\0');
  }
  const Sha256::Digest digest = Sha256().update(body).finish();
  std::string bytes(kMagic);
  bytes.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  return bytes + body;
}

}  // namespace strobe::runtime
