// SPDX-License-Identifier: Apache-2.0
// --json: a command's results for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli_app.h"
#include "strobe/status.h"

namespace strobe::program {

class JsonFlag {
 public:
  void add_to(CLI::App& command);

  bool given() const { return !path_.empty(); }

  /// To be called before work begins: invalid_argument where the file could not be written. With "-" standard output
  /// has the JSON alone from here on, and write_output() says nothing.
  Status prepare() const;

  /// Writes the document, whole or not at all; nothing where the flag is not given.
  Status write(const nlohmann::ordered_json& document) const;

  /// The same, for what a later write() replaces: only to a file.
  Status write_so_far(const nlohmann::ordered_json& document) const;

 private:
  std::string path_;
};

}  // namespace strobe::program
