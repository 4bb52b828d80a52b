// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "io/out_of_memory.h"
#include "io/safetensors_header.h"

namespace strobe::io {
namespace {

constexpr std::size_t kLengthBytes = 8;                // the header's length, little-endian
constexpr std::uint64_t kLongestHeader = 100'000'000;  // the format's own limit
constexpr std::size_t kNamesInSentence = 8;

/// Bits of one element of every dtype that the format names.
std::optional<std::size_t> bits_of(std::string_view dtype) {
  static const std::map<std::string_view, std::size_t> kBits = {
      {"F64", 64}, {"I64", 64},  {"U64", 64}, {"C64", 64},    {"F32", 32},    {"I32", 32},    {"U32", 32},
      {"F16", 16}, {"BF16", 16}, {"I16", 16}, {"U16", 16},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8},
      {"I8", 8},   {"U8", 8},    {"BOOL", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
  };
  const auto found = kBits.find(dtype);
  return found == kBits.end() ? std::nullopt : std::optional(found->second);
}

std::optional<DType> tensor_dtype(std::string_view dtype) {
  if (dtype == "F32") return DType::float32;
  if (dtype == "F16") return DType::float16;
  if (dtype == "BF16") return DType::bfloat16;
  if (dtype == "I32") return DType::int32;
  if (dtype == "F8_E4M3") return DType::float8_e4m3;
  if (dtype == "I8") return DType::int8;
  return std::nullopt;
}

}  // namespace

/// Turns a file's header into entries, or into the message that says what is wrong.
class SafetensorsFile::Parser {
 public:
  explicit Parser(const InputFile& file) : file_(file) {}

  Result<Entries> parse() {
    if (Status status = read_header_length(); !status.ok()) return status;
    const Result<SafetensorsHeader> header = read_header();
    if (!header.ok()) return header.status();
    Entries entries;
    for (const auto& [name, given] : header->entries) {
      if (name == "__metadata__") continue;
      Result<Entry> entry = read_entry(name, given);
      if (!entry.ok()) return entry.status();
      entries.emplace(name, std::move(*entry));
    }
    if (Status status = check_coverage(entries); !status.ok()) return status;
    return entries;
  }

 private:
  Status failure(const std::string& reason) const { return file_.failure(reason); }

  std::size_t data_begin() const { return kLengthBytes + header_bytes_; }

  Status read_header_length() {
    if (file_.size() < kLengthBytes) {
      return failure(
          fmt::format("is not a safetensors file: it has {} bytes, less than the header's length takes", file_.size()));
    }
    std::array<std::byte, kLengthBytes> bytes{};
    if (Status status = file_.read(0, bytes); !status.ok()) return status;
    std::uint64_t length = 0;
    for (std::size_t i = kLengthBytes; i-- > 0;) length = (length << 8U) | std::to_integer<std::uint64_t>(bytes[i]);
    if (length > kLongestHeader) {
      return failure(fmt::format("claims a header of {} bytes; the format allows {}", length, kLongestHeader));
    }
    if (length > file_.size() - kLengthBytes) {
      return failure(fmt::format("is truncated: its header has {} bytes, of which {} are there", length,
                                 file_.size() - kLengthBytes));
    }
    header_bytes_ = static_cast<std::size_t>(length);
    return {};
  }

  Result<SafetensorsHeader> read_header() const {
    std::string text(header_bytes_, '\0');
    if (Status status = file_.read(kLengthBytes, std::as_writable_bytes(std::span(text))); !status.ok()) return status;
    if (!text.starts_with('{')) return failure("is not a safetensors file: its header does not start with '{'");
    std::optional<SafetensorsHeader> header = parse_safetensors_header(text);
    if (!header) return failure("has a header that is not a JSON object");
    // JSON readers keep the last of two equal keys without a word; two readers could then disagree about the file.
    if (header->duplicate) return failure(fmt::format("names tensor '{}' twice", *header->duplicate));
    return std::move(*header);
  }

  Result<Entry> read_entry(const std::string& name, const HeaderEntry& given) const {
    const auto reject_tensor = [&](const std::string& reason) {
      return failure(fmt::format("has a tensor '{}' {}", name, reason));
    };
    if (!given.dtype.given || !given.shape.given || !given.data_offsets.given) {
      return reject_tensor("without dtype, shape and data_offsets");
    }
    Entry entry;
    if (!given.dtype.text) return reject_tensor("whose dtype is not a string");
    entry.dtype = *given.dtype.text;
    const std::optional<std::size_t> element_bits = bits_of(entry.dtype);
    if (!element_bits) return reject_tensor(fmt::format("of dtype '{}', which the format does not know", entry.dtype));

    if (!given.shape.sizes) return reject_tensor("whose shape is not a list of sizes from 0 to 2^63 - 1");
    entry.shape = *given.shape.sizes;

    const std::optional<std::vector<std::int64_t>>& offsets = given.data_offsets.sizes;
    if (!offsets || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1]) {
      return reject_tensor("whose data_offsets are not [begin, end] with begin <= end");
    }
    const auto begin = static_cast<std::size_t>((*offsets)[0]);
    const auto end = static_cast<std::size_t>((*offsets)[1]);
    const std::size_t available = file_.size() - data_begin();
    if (end > available) {
      return reject_tensor(
          fmt::format("that ends at byte {} of {} bytes of data: the file is truncated or damaged", end, available));
    }
    entry.offset = data_begin() + begin;
    entry.bytes = end - begin;
    if (const auto bytes = byte_count(entry.shape, *element_bits); bytes != entry.bytes) {
      return reject_tensor(fmt::format("with {} bytes of data, which is not what {} of shape [{}] takes", entry.bytes,
                                       entry.dtype, fmt::join(entry.shape, ", ")));
    }
    return entry;
  }

  /// Laid end to end, the tensors must give the data exactly.
  Status check_coverage(const Entries& entries) const {
    std::vector<std::pair<std::size_t, std::size_t>> extents;  // offset in the data, bytes
    for (const auto& [name, entry] : entries) extents.emplace_back(entry.offset - data_begin(), entry.bytes);
    std::sort(extents.begin(), extents.end());
    std::size_t covered = 0;
    for (const auto& [offset, bytes] : extents) {
      if (offset < covered) return failure(fmt::format("has tensors that overlap at byte {} of the data", offset));
      if (offset > covered)
        return failure(fmt::format("has a hole between its tensors at byte {} of the data", covered));
      covered = offset + bytes;
    }
    if (const std::size_t rest = file_.size() - data_begin() - covered; rest != 0) {
      return failure(fmt::format("has {} bytes that belong to no tensor at its end", rest));
    }
    return {};
  }

  const InputFile& file_;
  std::size_t header_bytes_ = 0;
};

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  return or_out_of_memory(path, [&]() -> Result<SafetensorsFile> {
    Result<InputFile> file = InputFile::open(path);
    if (!file.ok()) return file.status();
    Result<Entries> entries = Parser(*file).parse();
    if (!entries.ok()) return entries.status();
    return SafetensorsFile(std::move(*file), std::move(*entries));
  });
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

Result<const SafetensorsFile::Entry*> SafetensorsFile::entry(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    std::vector<std::string> some = names();
    if (some.size() > kNamesInSentence) {
      some.resize(kNamesInSentence);
      some.emplace_back("...");
    }
    return Status(StatusCode::invalid_argument,
                  fmt::format("'{}' has no tensor '{}'; it has {}", file_.path().string(), name,
                              some.empty() ? "none" : fmt::format("{}", fmt::join(some, ", "))));
  }
  const Entry& entry = found->second;
  if (!tensor_dtype(entry.dtype)) {
    return Status(StatusCode::unsupported,
                  fmt::format("tensor '{}' of '{}' is {}; F32, F16, BF16, I32, F8_E4M3 and I8 are accepted", name,
                              file_.path().string(), entry.dtype));
  }
  if (entry.shape.empty() || entry.shape.size() > static_cast<std::size_t>(kMaxRank)) {
    return Status(StatusCode::unsupported, fmt::format("tensor '{}' of '{}' has rank {}; 1 to {} is accepted", name,
                                                       file_.path().string(), entry.shape.size(), kMaxRank));
  }
  return &entry;
}

Result<HostTensor> SafetensorsFile::read(std::string_view name) const {
  return or_out_of_memory(file_.path(), [&]() -> Result<HostTensor> {
    const Result<const Entry*> found = entry(name);
    if (!found.ok()) return found.status();
    const Entry& entry = **found;
    HostTensor tensor{*tensor_dtype(entry.dtype), entry.shape, HostBytes(entry.bytes)};
    if (Status status = file_.read(entry.offset, tensor.bytes); !status.ok()) return status;
    return tensor;
  });
}

}  // namespace strobe::io
