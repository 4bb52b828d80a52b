// SPDX-License-Identifier: Apache-2.0
#include "input_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <utility>

#include "io/npy.h"
#include "io/printable.h"

namespace strobe::program {
namespace {

Result<io::HostTensor> checked(Result<io::HostTensor> tensor, const std::string& path, const char* name) {
  if (!tensor.ok() || tensor->shape.size() == 4) return tensor;
  return Status(StatusCode::invalid_argument,
                fmt::format("{} in '{}' has shape [{}]; [batch, seqlen, heads, head_dim] is accepted", name, path,
                            fmt::join(tensor->shape, ", ")));
}

}  // namespace

void InputFlags::add_to(CLI::App& command) {
  const auto add_file = [&](const char* name, std::string& value, const char* text) {
    return command.add_option(name, value, text)->type_name("FILE")->group("Files");
  };
  CLI::Option* const queries = add_file("--q", q, "queries (.npy)");
  CLI::Option* const keys = add_file("--k", k, "keys (.npy)");
  CLI::Option* const values = add_file("--v", v, "values (.npy)");
  CLI::Option* const container = add_file("--input", input, "a .safetensors file with tensors q, k and v");
  for (CLI::Option* const option : {queries, keys, values}) option->excludes(container);
  // Around in a circle: of several that one needs, CLI11 names the first by their addresses, which are never the same.
  queries->needs(keys);
  keys->needs(values);
  values->needs(queries);
}

std::string InputFlags::describe() const {
  if (!input.empty()) return io::printable(input);
  return fmt::format("{}, {} and {}", io::printable(q), io::printable(k), io::printable(v));
}

Result<InputTensors> InputFlags::read() const {
  InputTensors tensors;
  if (!input.empty()) {
    Result<io::SafetensorsFile> file = io::SafetensorsFile::open(input);
    if (!file.ok()) return file.status();
    tensors.container = std::move(*file);
  }
  const auto read_one = [&](const std::string& path, const char* name, io::HostTensor& to) -> Status {
    Result<io::HostTensor> tensor =
        tensors.container ? checked(tensors.container->read(name), input, name) : read_input(path, name);
    if (tensor.ok()) to = std::move(*tensor);
    return tensor.status();
  };
  if (Status status = read_one(q, "q", tensors.q); !status.ok()) return status;
  if (Status status = read_one(k, "k", tensors.k); !status.ok()) return status;
  if (Status status = read_one(v, "v", tensors.v); !status.ok()) return status;
  return tensors;
}

Result<io::HostTensor> read_input(const std::string& path, const char* name) {
  return checked(io::read_npy(path), path, name);
}

}  // namespace strobe::program
