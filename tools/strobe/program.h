// SPDX-License-Identifier: Apache-2.0
// The program strobe as a function: its own main() calls it, and so does the Python module.
#pragma once

#include <string>

namespace strobe::program {

/// Runs the program with the arguments of a main(), the first of which is not read; the exit code, as `strobe --help`
/// lists them. Writes to standard output and standard error and throws nothing. One run at a time: they share the
/// standard streams and the handler of SIGINT. `python` is the interpreter that `strobe bench` looks for PyTorch in,
/// unless --python names one.
int run_program(int argc, char** argv, const std::string& python = "python3");

}  // namespace strobe::program
