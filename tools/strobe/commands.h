// SPDX-License-Identifier: Apache-2.0
// The program's subcommands, one file each.
#pragma once

#include <string>

#include "cli_app.h"
#include "exit_code.h"

namespace strobe::program {

/// Each adds its subcommand to `app`, with flags and help; when it was chosen, parsing runs it and sets `exit_code`.
void add_info_command(CLI::App& app, ExitCode& exit_code);
void add_run_command(CLI::App& app, ExitCode& exit_code);
void add_explain_command(CLI::App& app, ExitCode& exit_code);
void add_verify_command(CLI::App& app, ExitCode& exit_code);
void add_bench_command(CLI::App& app, const std::string& python, ExitCode& exit_code);  // python: see program.h
void add_compile_command(CLI::App& app, ExitCode& exit_code);
void add_tune_command(CLI::App& app, ExitCode& exit_code);
void add_completion_command(CLI::App& app, ExitCode& exit_code);
void add_manual_command(CLI::App& app, ExitCode& exit_code);

}  // namespace strobe::program
