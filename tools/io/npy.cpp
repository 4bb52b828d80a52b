// SPDX-License-Identifier: Apache-2.0
#include "io/npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/input_file.h"
#include "io/out_of_memory.h"

namespace strobe::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kAlignment = 64;  // NEP 1: the data starts at a multiple of 64 bytes

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

/// Reads the header's Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
/// Every parse_... and accept... either consumes what it names and says true, or says false.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : rest_(text) {}

  std::optional<Header> parse() {
    Header header;
    bool has_descr = false;
    bool has_order = false;
    bool has_shape = false;
    if (!accept("{")) return std::nullopt;
    while (!accept("}")) {
      std::string key;
      if (!parse_string(key) || !accept(":")) return std::nullopt;
      if (key == "descr" && !has_descr) {
        has_descr = parse_string(header.descr);
        if (!has_descr) return std::nullopt;
      } else if (key == "fortran_order" && !has_order) {
        has_order = parse_bool(header.fortran_order);
        if (!has_order) return std::nullopt;
      } else if (key == "shape" && !has_shape) {
        has_shape = parse_tuple(header.shape);
        if (!has_shape) return std::nullopt;
      } else {
        return std::nullopt;
      }
      if (!accept(",") && !rest_.starts_with('}')) return std::nullopt;
    }
    skip_space();
    if (!rest_.empty() || !has_descr || !has_order || !has_shape) return std::nullopt;
    return header;
  }

 private:
  void skip_space() {
    const std::size_t first = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(first == std::string_view::npos ? rest_.size() : first);
  }

  bool accept(std::string_view token) {
    skip_space();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    skip_space();
    return true;
  }

  bool parse_string(std::string& value) {
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return false;
    const std::size_t end = rest_.find(rest_[0], 1);
    if (end == std::string_view::npos) return false;
    value = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    skip_space();
    return true;
  }

  bool parse_bool(bool& value) {
    value = rest_.starts_with("True");
    return accept(value ? "True" : "False");
  }

  bool parse_tuple(std::vector<std::int64_t>& values) {
    if (!accept("(")) return false;
    while (!accept(")")) {
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
      if (error != std::errc{} || value < 0) return false;
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      accept("L");  // Python 2 wrote its long integers as 3L
      values.push_back(value);
      if (!accept(",") && !rest_.starts_with(')')) return false;
    }
    return true;
  }

  std::string_view rest_;
};

std::optional<DType> dtype_of_descr(std::string_view descr) {
  if (descr == "<f4") return DType::float32;
  if (descr == "<f2") return DType::float16;
  if (descr == "<i4") return DType::int32;
  if (descr == "<i8") return DType::int64;
  if (descr == "|u1" || descr == "|b1") return DType::uint8;
  if (descr == "|i1") return DType::int8;
  if (descr == "<V1" || descr == "|V1" || descr == "float8_e4m3fn") return DType::float8_e4m3;
  if (descr == "<V2" || descr == "|V2" || descr == "bfloat16") return DType::bfloat16;
  return std::nullopt;
}

std::string_view descr_of_dtype(DType dtype) {
  switch (dtype) {
    case DType::float32: return "<f4";
    case DType::float16: return "<f2";
    case DType::int32: return "<i4";
    case DType::int64: return "<i8";
    case DType::bfloat16: return "<V2";
    case DType::uint8: return "|u1";
    case DType::int8: return "|i1";
    case DType::float8_e4m3: return "<V1";
  }
  return {};
}

/// The message for a dtype that is not read; float64, NumPy's default, gets told what to do.
std::string rejected_dtype(std::string_view descr) {
  std::string message = fmt::format(
      "holds dtype '{}'; accepted are '<f4' (float32), '<f2' (float16), '<V2' (bfloat16), '<V1' (float8_e4m3), '<i4' "
      "(int32), '<i8' (int64), '|i1' (int8) and '|u1' (uint8)",
      descr);
  if (descr == "<f8") message += ": save array.astype(numpy.float32)";
  return message;
}

/// Reads a file's parts one after another.
class Reader {
 public:
  explicit Reader(const InputFile& file) : file_(file) {}

  std::uint64_t rest() const { return file_.size() - offset_; }
  bool at_end() const { return file_.ends_at(offset_); }

  /// Fills `to`; a failure with the words `if_short` where the file has less.
  Status read(std::span<std::byte> to, const char* if_short) {
    if (to.size() > rest()) return file_.failure(if_short);
    Status status = file_.read(offset_, to);
    offset_ += to.size();
    return status;
  }

 private:
  const InputFile& file_;
  std::uint64_t offset_ = 0;
};

/// Reads magic, version, header length and header; leaves `reader` at the first byte of data.
Result<std::string> read_header_text(const InputFile& file, Reader& reader) {
  constexpr const char* kNoMagic = "is not a .npy file: it does not start with \\x93NUMPY";
  constexpr const char* kShort = "ends inside its header";
  std::array<char, 8> preamble{};
  if (Status status = reader.read(std::as_writable_bytes(std::span(preamble)), kNoMagic); !status.ok()) return status;
  if (!std::string_view(preamble.data(), 6).starts_with(kMagic)) return file.failure(kNoMagic);
  const int version = static_cast<unsigned char>(preamble[6]);
  if (version < 1 || version > 3) {
    return file.failure(fmt::format("is .npy format version {}; versions 1, 2 and 3 are accepted", version));
  }
  std::array<unsigned char, 4> raw{};
  const auto own_bytes = std::span(raw).first(version == 1 ? 2 : 4);
  if (Status status = reader.read(std::as_writable_bytes(own_bytes), kShort); !status.ok()) return status;
  std::size_t length = 0;
  for (std::size_t i = own_bytes.size(); i-- > 0;) length = (length << 8U) | raw[i];

  constexpr std::size_t kLongestHeader = 65536;  // a header of rank 4 needs about 100 bytes
  if (length > kLongestHeader) return file.failure(fmt::format("claims a header of {} bytes", length));
  std::string text(length, '\0');
  if (Status status = reader.read(std::as_writable_bytes(std::span(text)), kShort); !status.ok()) return status;
  return text;
}

Result<HostTensor> read_whole(const std::filesystem::path& path) {
  const Result<InputFile> file = InputFile::open_in_order(path);
  if (!file.ok()) return file.status();
  Reader reader(*file);
  const Result<std::string> text = read_header_text(*file, reader);
  if (!text.ok()) return text.status();
  std::optional<Header> header = HeaderParser(*text).parse();
  if (!header) return file->failure("has a header that is not a dictionary of descr, fortran_order and shape");

  const std::optional<DType> dtype = dtype_of_descr(header->descr);
  if (!dtype) return file->failure(rejected_dtype(header->descr));
  if (header->shape.empty()) header->shape = {1};
  const std::size_t rank = header->shape.size();
  if (rank > static_cast<std::size_t>(kMaxRank)) {
    return file->failure(fmt::format("has rank {}; {} is the most", rank, kMaxRank));
  }
  if (header->fortran_order && rank > 1) {
    return file->failure("is in Fortran order; C order is accepted: save numpy.ascontiguousarray(array)");
  }
  const std::optional<std::size_t> bytes = byte_count(header->shape, 8 * size_of(*dtype));
  if (!bytes) {
    return file->failure(fmt::format("has shape ({}), whose extents multiply to more than 63 bits hold",
                                     fmt::join(header->shape, ", ")));
  }
  if (!file->is_pipe() && *bytes != reader.rest()) {
    return file->failure(fmt::format("holds {} bytes of data, which is not what {} of shape ({}) takes", reader.rest(),
                                     name_of(*dtype), fmt::join(header->shape, ", ")));
  }

  HostTensor tensor{*dtype, std::move(header->shape), HostBytes(*bytes)};
  if (Status status = reader.read(tensor.bytes, "ends inside its data"); !status.ok()) return status;
  if (file->is_pipe() && !reader.at_end()) {
    return file->failure(fmt::format("goes on after the {} bytes of its {} of shape ({})", *bytes,
                                     name_of(tensor.dtype), fmt::join(tensor.shape, ", ")));
  }
  return tensor;
}

std::string header_of(const HostTensor& tensor) {
  const char* const trailing_comma = tensor.shape.size() == 1 ? "," : "";  // Python: (3,) is a tuple, (3) is not
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}",
                                 descr_of_dtype(tensor.dtype), fmt::join(tensor.shape, ", "), trailing_comma);

  const std::size_t preamble = kMagic.size() + 4;  // version and header length, two bytes each
  const std::size_t unpadded = preamble + text.size() + 1;
  text.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  text += '\n';

  std::string head(kMagic);
  head += {'\x01', '\x00', static_cast<char>(text.size() & 0xFFU), static_cast<char>(text.size() >> 8U)};
  return head + text;
}

}  // namespace

Result<HostTensor> read_npy(const std::filesystem::path& path) {
  return or_out_of_memory(path, [&] { return read_whole(path); });
}

Status write_npy(AtomicFile& file, const HostTensor& tensor) {
  const std::string header = header_of(tensor);
  for (const std::span<const std::byte> part :
       {std::as_bytes(std::span(header)), std::as_bytes(std::span(tensor.bytes))}) {
    if (Status status = file.write(part); !status.ok()) return status;
  }
  return file.close();
}

Status write_npy(const std::filesystem::path& path, const HostTensor& tensor) {
  return or_out_of_memory(path, [&]() -> Status {
    Result<AtomicFile> file = AtomicFile::create(path);
    if (!file.ok()) return file.status();
    if (Status status = write_npy(*file, tensor); !status.ok()) return status;
    return file->commit();
  });
}

}  // namespace strobe::io
