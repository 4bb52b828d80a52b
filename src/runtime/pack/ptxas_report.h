// SPDX-License-Identifier: Apache-2.0
// What ptxas says of a kernel in the compiler's log.
#pragma once

#include <optional>
#include <string_view>

namespace strobe::runtime {

struct PtxasReport {
  int registers = 0;  // per thread
  int static_shared_bytes = 0;
  int stack_bytes = 0;            // local memory per thread: arrays that did not become registers
  int spill_bytes = 0;            // stored plus loaded, summed over the kernel and the functions it calls
  bool wgmma_serialized = false;  // a C75xx line but C7519: WGMMAs wait for each other, or setmaxnreg is ignored
};

/// Reads the log of a compilation with --ptxas-options=-v; nothing when it holds no such lines.
std::optional<PtxasReport> parse_ptxas_log(std::string_view log);

}  // namespace strobe::runtime
