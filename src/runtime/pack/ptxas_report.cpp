// SPDX-License-Identifier: Apache-2.0
#include "runtime/pack/ptxas_report.h"

#include <algorithm>
#include <charconv>

namespace strobe::runtime {
namespace {

/// The number that stands before `unit`, as in "8 bytes smem"; 0 where the line has no such unit.
int number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos || end == 0) return 0;
  const std::size_t last = line.find_last_of("0123456789", end - 1);
  if (last == std::string_view::npos) return 0;
  const std::size_t before = line.find_last_not_of("0123456789", last);
  const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
  int number = 0;
  std::from_chars(line.data() + begin, line.data() + last + 1, number);
  return number;
}

}  // namespace

std::optional<PtxasReport> parse_ptxas_log(std::string_view log) {
  PtxasReport report;
  bool found = false;
  for (std::size_t begin = 0; begin < log.size();) {
    const std::size_t end = std::min(log.find('\n', begin), log.size());
    const std::string_view line = log.substr(begin, end - begin);
    begin = end + 1;
    if (line.find("registers") != std::string_view::npos && line.find("Used") != std::string_view::npos) {
      found = true;
      report.registers = std::max(report.registers, number_before(line, " registers"));
      report.static_shared_bytes = std::max(report.static_shared_bytes, number_before(line, " bytes smem"));
    }
    report.stack_bytes += number_before(line, " bytes stack frame");
    report.spill_bytes += number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
    // C7519 only says that a fence for a WGMMA's registers was added.
    report.wgmma_serialized |=
        line.find("(C75") != std::string_view::npos && line.find("(C7519)") == std::string_view::npos;
  }
  return found ? std::optional(report) : std::nullopt;
}

}  // namespace strobe::runtime
