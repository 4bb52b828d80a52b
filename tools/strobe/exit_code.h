// SPDX-License-Identifier: Apache-2.0
// What the program's exit codes mean; `strobe --help` says the same.
#pragma once

#include "strobe/status.h"

namespace strobe::program {

enum class ExitCode : int {
  ok = 0,
  check_failed = 1,   // verify: an element is outside its bound
  usage = 2,          // a wrong flag, file or shape
  unsupported = 3,    // a valid call that this build or machine cannot serve
  failure = 4,        // out of memory, a device's error, or output that cannot be written
  interrupted = 130,  // bench: by Ctrl-C, as shells number it
};

/// Prints a failed Status as one line on standard error.
ExitCode report(const Status& status);

/// Says on standard error that Ctrl-C cut the work short.
ExitCode report_interrupted();

}  // namespace strobe::program
