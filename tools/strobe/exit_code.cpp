// SPDX-License-Identifier: Apache-2.0
#include "exit_code.h"

#include "output.h"

namespace strobe::program {

ExitCode report(const Status& status) {
  if (status.ok()) return ExitCode::ok;
  print_error(status.message());
  switch (status.code()) {
    case StatusCode::ok: return ExitCode::ok;
    case StatusCode::invalid_argument: return ExitCode::usage;
    case StatusCode::unsupported: return ExitCode::unsupported;
    case StatusCode::out_of_memory:
    case StatusCode::device_error: return ExitCode::failure;
  }
  return ExitCode::failure;
}

ExitCode report_interrupted() {
  print_error("interrupted: what was done by then is what is shown");
  return ExitCode::interrupted;
}

}  // namespace strobe::program
