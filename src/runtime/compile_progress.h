// SPDX-License-Identifier: Apache-2.0
// A line on standard error while kernels are being compiled, for who waits.
#pragma once

#include <string>

namespace strobe::runtime {

/// While it lives, the kernel of that name is being compiled. Where STROBE_PROGRESS is 1, standard error says so: on a
/// terminal in one line for all kernels of the process, which is erased in the end; elsewhere in a line for each.
class CompileProgress {
 public:
  explicit CompileProgress(const std::string& name);
  ~CompileProgress();
  CompileProgress(const CompileProgress&) = delete;
  CompileProgress& operator=(const CompileProgress&) = delete;

 private:
  bool shown_;
};

/// The terminal's line for that many kernels, of which `name` came last; at most `columns` - 1 long.
std::string progress_line(int count, const std::string& name, int columns);

}  // namespace strobe::runtime
