// What the program's exit codes mean; `strobe --help` says the same.
#pragma once

#include "strobe/status.h"

namespace strobe::program {

enum ExitCode : int {
  kOk = 0,
  kCheckFailed = 1,  // verify: an element is outside its bound
  kUsage = 2,        // a wrong flag, file or shape
  kUnsupported = 3,  // a valid call that this build or machine cannot serve
  kFailure = 4,      // out of memory, or a device's error
};

/// Prints a failed Status as one line on standard error.
ExitCode report(const Status& status);

}  // namespace strobe::program
