// SPDX-License-Identifier: Apache-2.0
// q, k and v from files: --q, --k and --v, or --input.
#pragma once

#include <optional>
#include <string>

#include "cli_app.h"
#include "io/host_tensor.h"
#include "io/safetensors.h"
#include "strobe/status.h"

namespace strobe::program {

/// What stands for standard input in the place of a file's name.
inline constexpr const char* kStandardInput = "-";

/// The tensors of a call, [batch, seqlen, heads, head_dim] each, as their files hold them.
struct InputTensors {
  io::HostTensor q, k, v;
  std::optional<io::SafetensorsFile> container;  // of --input, which may hold more
};

/// Three .npy files, or one .safetensors file.
struct InputFlags {
  std::string q, k, v, input;

  void add_to(CLI::App& command);

  /// Whether a file is named.
  bool given() const { return !q.empty() || !input.empty(); }

  /// "q.npy, k.npy and v.npy", or the .safetensors file.
  std::string describe() const;

  Result<InputTensors> read() const;
};

/// `name` from a .npy file, of 4 dimensions.
Result<io::HostTensor> read_input(const std::string& path, const char* name);

}  // namespace strobe::program
