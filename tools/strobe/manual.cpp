// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>

#include "description.h"
#include "strobe/strobe.h"

namespace strobe::program {
namespace {

/// Text as roff shows it: no escapes, hyphens as typed, no line that begins with a control character.
std::string escaped(std::string_view text) {
  std::string result;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) result += "\\&";
    line_begins = c == '\n';
    switch (c) {
      case '\\': result += "\\e"; break;
      case '-': result += "\\-"; break;
      case '\'': result += "\\(aq"; break;
      case '`': result += "\\(ga"; break;
      case '^': result += "\\(ha"; break;
      case '~': result += "\\(ti"; break;
      default: result += c;
    }
  }
  return result;
}

std::string flags_text(const CommandDescription& command) {
  std::string text;
  std::vector<std::string> groups;
  for (const FlagDescription& flag : command.flags) {
    if (std::ranges::find(groups, flag.group) == groups.end()) groups.push_back(flag.group);
  }
  for (const std::string& group : groups) {
    if (groups.size() > 1)
      text += fmt::format(".PP\n{}\n", group == "OPTIONS" || group == "Options" ? "General" : group);
    for (const FlagDescription& flag : command.flags) {
      if (flag.group != group) continue;
      const std::string other = flag.short_name.empty() ? "" : fmt::format("\\fB{}\\fR, ", escaped(flag.short_name));
      const std::string value = flag.value.empty() ? "" : fmt::format(" \\fI{}\\fR", escaped(flag.value));
      text += fmt::format(".TP\n{}\\fB{}\\fR{}\n{}\n", other, escaped(flag.name), value, escaped(flag.text));
    }
  }
  return text;
}

std::string as_it_is(const std::string& text) { return fmt::format(".PP\n.nf\n{}\n.fi\n", escaped(text)); }

}  // namespace

std::string manual(const CLI::App& app) {
  const CommandDescription program = described(app);
  std::string text = fmt::format(
      ".\\\" Made by the program itself: strobe manual\n"
      ".TH STROBE 1 \"\" \"Strobe {}\" \"User Commands\"\n"
      ".SH NAME\nstrobe \\- exact attention from the command line\n"
      ".SH SYNOPSIS\n\\fBstrobe\\fR \\fICOMMAND\\fR [\\fIFLAGS\\fR]\n"
      ".SH DESCRIPTION\n{}\n.SH OPTIONS\n{}",
      strobe_version(), escaped(program.text), flags_text(program));
  text += ".SH COMMANDS\n";
  for (const CommandDescription& command : described_subcommands(app)) {
    text += fmt::format(".SS strobe {}\n{}.\n{}", command.name, escaped(command.text), flags_text(command));
    if (!command.footer.empty()) text += as_it_is(command.footer);
  }
  return text + ".SH NOTES\n" + as_it_is(program.footer);
}

}  // namespace strobe::program
