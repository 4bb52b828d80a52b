// SPDX-License-Identifier: Apache-2.0
// The program strobe, for the console script and `python -m strobe`.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace strobe::python {

/// Runs the program with `arguments`, a list of bytes whose first is the program's name, without the interpreter's
/// lock; its exit code. SIGINT and SIGPIPE end the process meanwhile, as they end a program; afterwards their handlers
/// are as before. What Python has buffered for standard output must have been written. See tools/strobe/program.h for
/// `python`.
int run_program(const nanobind::list& arguments, const std::string& python);

}  // namespace strobe::python
