#include "exit_code.h"

#include <fmt/format.h>

#include <cstdio>

namespace strobe::program {

ExitCode report(const Status& status) {
  if (status.ok()) return kOk;
  fmt::print(stderr, "strobe: {}\n", status.message());
  switch (status.code()) {
    case StatusCode::ok: return kOk;
    case StatusCode::invalid_argument: return kUsage;
    case StatusCode::unsupported: return kUnsupported;
    case StatusCode::out_of_memory:
    case StatusCode::device_error: return kFailure;
  }
  return kFailure;
}

}  // namespace strobe::program
