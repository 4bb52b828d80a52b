// SPDX-License-Identifier: Apache-2.0
// Safetensors: named tensors in one file, behind a JSON header that says where each one lies.
// Source: "Safetensors", format description of the huggingface/safetensors project.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/host_tensor.h"
#include "io/mapped_file.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe::io {

/// A file that is mapped into memory and was checked whole when it was opened: header length, JSON, every dtype, shape
/// and offset; tensors that fill the data without holes or overlap. It must not be truncated while it is open.
class SafetensorsFile {
 public:
  /// invalid_argument, with a message that names the file and what is wrong with it; out_of_memory when its header
  /// does not fit.
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  /// The tensors' names in alphabetical order.
  std::vector<std::string> names() const;

  /// A view into the mapped file; valid while this object lives and through moves.
  /// Accepts F32, F16, BF16, I32, F8_E4M3 and I8 tensors of rank 1 to kMaxRank whose data is aligned to its element
  /// size. invalid_argument when the file has no such tensor, unsupported when it has one that a view cannot describe.
  Result<ConstTensorView> find(std::string_view name) const;

  /// A copy that outlives the file; like find(), except that alignment does not matter; out_of_memory when it does not
  /// fit.
  Result<HostTensor> read(std::string_view name) const;

 private:
  struct Entry {
    std::string dtype;  // as the file spells it
    std::vector<std::int64_t> shape;
    std::size_t offset = 0;  // from the start of the file
    std::size_t bytes = 0;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;
  class Parser;

  SafetensorsFile(std::filesystem::path path, MappedFile file, Entries entries)
      : path_(std::move(path)), file_(std::move(file)), entries_(std::move(entries)) {}

  Result<const Entry*> entry(std::string_view name) const;

  std::filesystem::path path_;
  MappedFile file_;
  Entries entries_;
};

}  // namespace strobe::io
