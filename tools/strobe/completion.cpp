// SPDX-License-Identifier: Apache-2.0
// strobe completion and strobe manual: what a package installs beside the program, made by the program itself.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <memory>

#include "commands.h"
#include "description.h"
#include "output.h"

namespace strobe::program {
namespace {

enum class Value { none, file, directory, choice, other };

Value value_of(const FlagDescription& flag) {
  if (flag.value.empty()) return Value::none;
  if (flag.value == "FILE" || flag.value == "PATH") return Value::file;
  if (flag.value == "DIR") return Value::directory;
  return flag.choices.empty() ? Value::other : Value::choice;
}

/// The flags, long and short, as words.
std::string flag_words(const CommandDescription& command) {
  std::vector<std::string> words;
  for (const FlagDescription& flag : command.flags) {
    words.push_back(flag.name);
    if (!flag.short_name.empty()) words.push_back(flag.short_name);
  }
  return fmt::format("{}", fmt::join(words, " "));
}

std::string command_words(const std::vector<CommandDescription>& commands) {
  std::vector<std::string> names;
  for (const CommandDescription& command : commands) names.push_back(command.name);
  return fmt::format("{}", fmt::join(names, " "));
}

/// `text` with every character of `special` behind `escape`.
std::string escaped(const std::string& text, std::string_view special, std::string_view escape) {
  std::string result;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) result += escape;
    result += c;
  }
  return result;
}

/// In single quotes of zsh and bash.
std::string in_quotes(const std::string& text) { return "'" + CLI::detail::find_and_replace(text, "'", "'\\''") + "'"; }

std::string bash_values(const CommandDescription& command) {
  std::string text;
  for (const FlagDescription& flag : command.flags) {
    const std::string at = fmt::format("    {}:{}) ", command.name, flag.name);
    switch (value_of(flag)) {
      case Value::none: break;
      case Value::file: text += at + "_strobe_paths -f; return ;;\n"; break;
      case Value::directory: text += at + "_strobe_paths -d; return ;;\n"; break;
      case Value::choice:
        text += fmt::format("{}words={} ;;\n", at, in_quotes(fmt::format("{}", fmt::join(flag.choices, " "))));
        break;
      case Value::other: text += at + "return ;;\n"; break;
    }
  }
  return text;
}

std::string zsh_flag(const FlagDescription& flag) {
  const std::string text = escaped(flag.text, "[]:\\", "\\");
  std::string spec = fmt::format("{}[{}]", flag.name, text);
  switch (value_of(flag)) {
    case Value::none: break;
    case Value::file: spec += fmt::format(":{}:_files", flag.value); break;
    case Value::directory: spec += fmt::format(":{}:_files -/", flag.value); break;
    case Value::choice:
      spec += fmt::format(":{}:", flag.value);
      spec += flag.is_list ? fmt::format("_values -s , {} {}", flag.name.substr(2), fmt::join(flag.choices, " "))
                           : fmt::format("({})", fmt::join(flag.choices, " "));
      break;
    case Value::other:
      for (const std::string& value : CLI::detail::split(flag.value, ' ')) spec += fmt::format(":{}: ", value);
  }
  return in_quotes(spec);
}

std::string fish_flag(const FlagDescription& flag, const std::string& condition) {
  std::string line = fmt::format("complete -c strobe -n {} -l {}", in_quotes(condition), flag.name.substr(2));
  if (!flag.short_name.empty()) line += fmt::format(" -s {}", flag.short_name.substr(1));
  switch (value_of(flag)) {
    case Value::none: break;
    case Value::file: line += " -r -F"; break;
    case Value::directory: line += " -x -a '(__fish_complete_directories)'"; break;
    case Value::choice: line += fmt::format(" -x -a '{}'", fmt::join(flag.choices, " ")); break;
    case Value::other: line += " -x"; break;
  }
  return fmt::format("{} -d '{}'\n", line, escaped(flag.text, "\\'", "\\"));
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  const std::vector<CommandDescription> commands = described_subcommands(app);
  std::string flags;
  std::string values;
  for (const CommandDescription& command : commands) {
    flags += fmt::format("    {}) words={} ;;\n", command.name, in_quotes(flag_words(command)));
    values += bash_values(command);
  }
  return fmt::format(R"(# bash completion for strobe; made by the program itself: strobe completion bash
_strobe_paths() {{
  compopt -o filenames
  mapfile -t COMPREPLY < <(compgen "$1" -- "${{COMP_WORDS[COMP_CWORD]}}")
}}

_strobe() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} command='' words word before=''
  COMPREPLY=()
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD - 1}}"; do
    case $word in {}) command=$word; break ;; esac
  done
  case $command in
    '') words={} ;;
{}  esac
  case $command:$previous in
{}  esac
  case $current in *,*) before=${{current%,*}}, ;; esac
  mapfile -t COMPREPLY < <(compgen -P "$before" -W "$words" -- "${{current##*,}}")
}}
complete -F _strobe strobe
)",
                     CLI::detail::find_and_replace(command_words(commands), " ", "|"),
                     in_quotes(command_words(commands) + " " + flag_words(described(app))), flags, values);
}

std::string zsh_completion(const CLI::App& app) {
  std::string names;
  std::string cases;
  const auto flags_of = [](const CommandDescription& command, const char* indent) {
    std::string text;
    for (const FlagDescription& flag : command.flags) text += fmt::format(" \\\n{}{}", indent, zsh_flag(flag));
    return text;
  };
  for (const CommandDescription& command : described_subcommands(app)) {
    names += fmt::format("    {}\n", in_quotes(command.name + ":" + escaped(command.text, ":\\", "\\")));
    cases += fmt::format("        {}) _arguments -s{} ;;\n", command.name, flags_of(command, "          "));
  }
  return fmt::format(R"(#compdef strobe
# Made by the program itself: strobe completion zsh
_strobe() {{
  local context state state_descr line
  local -a commands
  typeset -A opt_args
  commands=(
{}  )
  _arguments -C{} \
    '1:command:->command' \
    '*::argument:->argument'
  case $state in
    command) _describe command commands ;;
    argument)
      case $line[1] in
{}      esac
      ;;
  esac
}}
if [[ $funcstack[1] == _strobe ]]; then _strobe "$@"; else compdef _strobe strobe; fi
)",
                     names, flags_of(described(app), "    "), cases);
}

std::string fish_completion(const CLI::App& app) {
  const std::vector<CommandDescription> commands = described_subcommands(app);
  const std::string all = command_words(commands);
  const std::string none = fmt::format("not __fish_seen_subcommand_from {}", all);
  std::string text =
      "# fish completion for strobe; made by the program itself: strobe completion fish\ncomplete -c strobe -f\n";
  for (const FlagDescription& flag : described(app).flags) text += fish_flag(flag, none);
  for (const CommandDescription& command : commands) {
    text += fmt::format("complete -c strobe -n {} -a {} -d '{}'\n", in_quotes(none), command.name,
                        escaped(command.text, "\\'", "\\"));
    for (const FlagDescription& flag : command.flags) {
      text += fish_flag(flag, "__fish_seen_subcommand_from " + command.name);
    }
  }
  return text;
}

void add_completion_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App& command = *app.add_subcommand("completion", "Print what completes commands and flags in a shell");
  command.footer(R"(Examples:
  source <(strobe completion bash)
  strobe completion fish > ~/.config/fish/completions/strobe.fish)");
  const auto shell = std::make_shared<std::string>();
  command.add_option("shell", *shell, "bash, zsh or fish")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("SHELL")
      ->required();
  command.callback([shell, &app, &exit_code] {
    write_document(*shell == "bash"  ? bash_completion(app)
                   : *shell == "zsh" ? zsh_completion(app)
                                     : fish_completion(app));
    exit_code = ExitCode::ok;
  });
}

void add_manual_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App& command = *app.add_subcommand("manual", "Print the man page");
  command.footer("Example:\n  strobe manual | man -l -");
  command.callback([&app, &exit_code] {
    write_document(manual(app));
    exit_code = ExitCode::ok;
  });
}

}  // namespace strobe::program
