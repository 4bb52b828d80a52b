// SPDX-License-Identifier: Apache-2.0
#include "help_formatter.h"

#include "io/wrap.h"
#include "output.h"

namespace strobe::program {

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  if (option->get_type_size() == 0) return {};
  const std::string name = option->get_type_name();
  return " " + name.substr(0, name.find(':'));  // a validator's text follows the colon
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  std::string value = option->get_default_str();
  if (value.starts_with('[')) value = value.substr(1, value.size() - 2);  // a list
  if (value.empty()) return option->get_description();
  return option->get_description() + " (default " + value + ")";
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  std::string help = CLI::Formatter::make_help(app, std::move(name), mode);
  help = CLI::detail::find_and_replace(std::move(help), "\n\n\n", "\n\n");
  return io::wrapped(help, output_columns());
}

}  // namespace strobe::program
#include <CLI/CLI.hpp>
