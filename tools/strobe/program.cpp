// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "commands.h"
#include "help_formatter.h"
#include "io/terminal.h"
#include "output.h"
#include "strobe/strobe.h"
#include "suggestion.h"

namespace strobe::program {
namespace {

constexpr const char* kDescription = "Exact attention, forward and backward, without the N x N matrix.";

constexpr const char* kFooter = R"(Examples:
  strobe info                                  what this machine offers
  strobe run --q q.npy --k k.npy --v v.npy     attention on files
  strobe explain --seqlen 8192 --head-dim 128  which engine and tiles, and why
  strobe verify --dtype bfloat16               compare with float64
  strobe bench --json bench.json               time it beside other attention
  strobe compile --config config.json          a model's GPU kernels, ahead
  strobe tune --config config.json             its fastest plans on this GPU

`strobe COMMAND --help` shows a command's flags and more examples.

Exit codes:
  0  done
  1  verify: an element is outside its error bound
  2  a wrong flag, file or shape
  3  a valid call that this build or machine cannot serve
  4  out of memory, a device's error, or output that cannot be written
  130  bench: interrupted, after what was measured has been shown
Errors are one message on standard error.)";

/// " (did you mean ...?)", or "" where nothing is near.
std::string suggestion(std::string given, const CLI::App& app) {
  std::vector<std::string> known;
  given.erase(std::min(given.find('='), given.size()));
  if (!given.starts_with("--")) {
    for (const CLI::App* const command : app.get_subcommands({})) known.push_back(command->get_name());
    const std::string nearest = nearest_word(given, known);
    return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
  }
  for (const CLI::Option* const option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back(name);
  }
  const bool is_text = given == "--mask" && std::ranges::find(known, "mask-text") != known.end();
  const std::string nearest = is_text ? "mask-text" : nearest_word(given.substr(2), known);
  return nearest.empty() ? "" : fmt::format("; did you mean --{}?", nearest);
}

/// CLI11's message, but for unknown words, of which the first is named, with what it may have been meant to be.
std::string failure_message(const CLI::App* app, const CLI::Error& error) {
  const std::vector<CLI::App*> commands = app->get_subcommands();
  const CLI::App& command = commands.empty() ? *app : *commands.front();
  const std::string name = commands.empty() ? "strobe" : "strobe " + command.get_name();
  const std::vector<std::string> unknown = app->remaining(/*recurse=*/true);
  const bool no_command = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError) && !unknown.empty();
  std::string message = error.what();
  if (no_command || error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    const bool is_flag = unknown.front().starts_with('-');
    message = fmt::format("there is no {} '{}'{}",
                          is_flag            ? "flag"
                          : commands.empty() ? "command"
                                             : "argument",
                          unknown.front(), suggestion(unknown.front(), command));
  }
  return fmt::format("{} (see {} --help)", message, name);
}

/// Prints the help or version that was asked for, or what is wrong with the arguments.
ExitCode settle(const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream output;
  std::ostringstream message;
  const bool asked_for = app.exit(error, output, message) == 0;
  write_output(output.str());
  if (!asked_for) print_error(message.str());
  return asked_for ? ExitCode::ok : ExitCode::usage;
}

/// Gives the standard streams that are closed to nobody: a file that is opened later must not take their place.
void reserve_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) == -1)
      ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // EBADF stays
  }
}

ExitCode run(int argc, char** argv, const std::string& python) {
  ExitCode exit_code = ExitCode::ok;
  CLI::App app(kDescription, "strobe");
  app.set_help_flag("-h,--help", "show this help");
  app.set_version_flag("--version", fmt::format("strobe {}", strobe_version()), "show the version");
  app.footer(kFooter);
  app.failure_message(failure_message);
  app.require_subcommand(1);
  // Who waits at a terminal learns that kernels are being compiled, but where the variable is set already.
  if (io::is_terminal(stderr)) ::setenv("STROBE_PROGRESS", "1", 0);
  app.formatter(std::make_shared<HelpFormatter>());
  add_info_command(app, exit_code);
  add_run_command(app, exit_code);
  add_explain_command(app, exit_code);
  add_verify_command(app, exit_code);
  add_bench_command(app, python, exit_code);
  add_compile_command(app, exit_code);
  add_tune_command(app, exit_code);
  add_completion_command(app, exit_code);
  add_manual_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = settle(app, error);
  }
  const ExitCode written = report(finish_output());
  return exit_code == ExitCode::ok ? written : exit_code;
}

}  // namespace

int run_program(int argc, char** argv, const std::string& python) {
  start_output();
  reserve_standard_streams();
  try {
    return static_cast<int>(run(argc, argv, python));
  } catch (const std::bad_alloc&) {
    std::fputs("strobe: out of memory\n", stderr);  // without any
  } catch (const std::length_error&) {
    std::fputs("strobe: out of memory: a tensor is larger than any memory\n", stderr);
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return static_cast<int>(ExitCode::failure);
}

}  // namespace strobe::program
