// SPDX-License-Identifier: Apache-2.0
#include "compared_tables.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "output.h"
#include "runtime/tuned_table.h"
#include "table.h"

namespace strobe::program {
namespace {

Result<runtime::TunedTable> read(const std::string& path) {
  runtime::TunedRead found = runtime::read_tuned(path);
  if (found.reason.empty()) return std::move(found.table);
  return Status(StatusCode::invalid_argument, fmt::format("'{}' cannot be compared: {}", path, found.reason));
}

}  // namespace

ExitCode compare_tables(const std::string& first, const std::string& second, const JsonFlag& json) {
  const Result<runtime::TunedTable> a = read(first);
  if (!a.ok()) return report(a.status());
  const Result<runtime::TunedTable> b = read(second);
  if (!b.ok()) return report(b.status());
  std::size_t both = 0;
  Table differences({{"call", Table::Align::left}, {"first", Table::Align::left}, {"second", Table::Align::left}});
  std::size_t differing = 0;
  for (const auto& [call, entry] : a->entries) {
    const auto found = b->entries.find(call);
    if (found == b->entries.end()) continue;
    ++both;
    if (found->second.choice == entry.choice) continue;
    ++differing;
    differences.add_row({call, fmt::format("{} ({:.3f})", entry.choice, entry.gain),
                         fmt::format("{} ({:.3f})", found->second.choice, found->second.gain)});
  }
  const std::size_t same = both - differing;
  const double share = both == 0 ? 1.0 : static_cast<double>(same) / static_cast<double>(both);
  print_wrapped(fmt::format(
      "{} of the {} calls that are in both tables have the same choice ({:.1f}%); the tables have {} and {} calls\n",
      same, both, 100.0 * share, a->entries.size(), b->entries.size()));
  if (differing > 0) write_output("\n" + differences.text(output_columns()));
  return report(json.write(
      {{"same", same}, {"both", both}, {"share", share}, {"first", a->entries.size()}, {"second", b->entries.size()}}));
}

}  // namespace strobe::program
