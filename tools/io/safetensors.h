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
#include "io/input_file.h"
#include "strobe/status.h"

namespace strobe::io {

/// An open file whose header was checked whole: length, JSON, every dtype, shape and offset; tensors that fill the data
/// without holes or overlap. Tensors are read when they are asked for.
class SafetensorsFile {
 public:
  /// invalid_argument, with a message that names the file and what is wrong with it; out_of_memory when its header
  /// does not fit.
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  /// The tensors' names in alphabetical order.
  std::vector<std::string> names() const;

  /// Accepts F32, F16, BF16, I32, F8_E4M3 and I8 tensors of rank 1 to kMaxRank. invalid_argument when the file has no
  /// such tensor or was cut short after it was opened, unsupported when it has one that a view cannot describe,
  /// out_of_memory when it does not fit.
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

  SafetensorsFile(InputFile file, Entries entries) : file_(std::move(file)), entries_(std::move(entries)) {}

  Result<const Entry*> entry(std::string_view name) const;

  InputFile file_;
  Entries entries_;
};

}  // namespace strobe::io
