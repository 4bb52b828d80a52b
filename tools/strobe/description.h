// SPDX-License-Identifier: Apache-2.0
// The program's commands and flags, as CLI11 has them, for what is generated from them.
#pragma once

#include <string>
#include <vector>

#include "cli_app.h"

namespace strobe::program {

struct FlagDescription {
  std::string name;                  // "--dtype"
  std::string short_name;            // "-h" or ""
  std::string text;                  // with the default
  std::string value;                 // "NAME", "FILE", "L R"; "" of a flag that takes none
  std::vector<std::string> choices;  // where the value is one of a few
  bool is_list = false;              // of choices, separated by commas
  std::string group;                 // "Shape"
};

struct CommandDescription {
  std::string name;  // "strobe" or "run"
  std::string text;
  std::string footer;
  std::vector<FlagDescription> flags;
};

/// The command's own flags, without those of its subcommands.
CommandDescription described(const CLI::App& command);

/// Its subcommands, in order.
std::vector<CommandDescription> described_subcommands(const CLI::App& app);

/// The man page of the program, in roff: `man -l` shows it.
std::string manual(const CLI::App& app);

/// What completes the program's commands, flags and values in a shell: bash, zsh or fish.
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string fish_completion(const CLI::App& app);

}  // namespace strobe::program
