// SPDX-License-Identifier: Apache-2.0
#include "json_flag.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <span>

#include "io/atomic_file.h"
#include "output.h"

namespace strobe::program {
namespace {

constexpr const char* kStandardOutput = "-";

}  // namespace

void JsonFlag::add_to(CLI::App& command) {
  command.add_option("--json", path_, "write the results as JSON to this file; -: to standard output, instead of text")
      ->type_name("FILE");
}

Status JsonFlag::prepare() const {
  if (path_ == kStandardOutput) leave_text_out();
  return path_.empty() || path_ == kStandardOutput ? Status() : io::check_writable(path_);
}

Status JsonFlag::write(const nlohmann::ordered_json& document) const {
  if (path_ != kStandardOutput) return write_so_far(document);
  write_document(document.dump(1) + '\n');
  return {};
}

Status JsonFlag::write_so_far(const nlohmann::ordered_json& document) const {
  if (path_.empty() || path_ == kStandardOutput) return {};
  const std::string text = document.dump(1) + '\n';
  return io::write_file(path_, {std::as_bytes(std::span(text))});
}

}  // namespace strobe::program
