// SPDX-License-Identifier: Apache-2.0
// How --help looks: an option with its default in words, one blank line between groups, lines that fit the terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace strobe::program {

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(28); }

  /// The type's name alone; what a value must be is said in the description.
  std::string make_option_opts(const CLI::Option* option) const override;

  /// "sequences (default 1)"
  std::string make_option_desc(const CLI::Option* option) const override;

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

}  // namespace strobe::program
