// SPDX-License-Identifier: Apache-2.0
#include "description.h"

#include <CLI/CLI.hpp>

#include "help_formatter.h"

namespace strobe::program {
namespace {

/// The words of "NAME:{float32,float16}", which is how CLI11 describes a type with CLI::IsMember.
std::vector<std::string> choices_of(const std::string& type) {
  const std::size_t begin = type.find(":{");
  const std::size_t end = type.find('}', begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 2, end - begin - 2), ',');
}

FlagDescription described(const CLI::Option& option) {
  FlagDescription flag;
  if (!option.get_lnames().empty()) flag.name = "--" + option.get_lnames().front();
  if (!option.get_snames().empty()) flag.short_name = "-" + option.get_snames().front();
  flag.text = HelpFormatter().make_option_desc(&option);
  flag.group = option.get_group();
  if (option.get_type_size() == 0) return flag;
  const std::string type = option.get_type_name();
  flag.value = type.substr(0, type.find(':'));
  flag.choices = choices_of(type);
  flag.is_list = flag.value.ends_with(",...");
  return flag;
}

}  // namespace

CommandDescription described(const CLI::App& command) {
  CommandDescription result{command.get_name(), command.get_description(), command.get_footer(), {}};
  for (const CLI::Option* const option : command.get_options()) {
    if (!option->get_lnames().empty()) result.flags.push_back(described(*option));
  }
  return result;
}

std::vector<CommandDescription> described_subcommands(const CLI::App& app) {
  std::vector<CommandDescription> commands;
  for (const CLI::App* const command : app.get_subcommands({})) commands.push_back(described(*command));
  return commands;
}

}  // namespace strobe::program
