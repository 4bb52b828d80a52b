// SPDX-License-Identifier: Apache-2.0
#include "bench/command/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/wrap.h"
#include "tools/strobe/output.h"

namespace strobe::program {
namespace {

/// Whether it is what the machine does and no implementation of attention.
bool is_ceiling(const std::string& peer) { return peer == "probe" || peer == "copy"; }

/// Rows of one cell, found by implementation.
class CellRows {
 public:
  CellRows(const BenchRow* begin, const BenchRow* end) : begin_(begin), end_(end) {}

  /// The implementation's row, or null where it did not run.
  const BenchRow* find(const std::string& implementation) const {
    const BenchRow* const row = std::find_if(
        begin_, end_, [&](const BenchRow& candidate) { return candidate.implementation == implementation; });
    return row == end_ ? nullptr : row;
  }

  std::string speed(const std::string& implementation, DeviceType device, bool decodes) const {
    const BenchRow* const row = find(implementation);
    if (row == nullptr) return "-";
    if (decodes) return fmt::format("{:.2f}", row->gbps());
    return fmt::format("{:.1f}", row->tflops() * (device == DeviceType::cpu ? 1e3 : 1.0));
  }

  /// Strobe's speed over a peer's: a share of the probe's or the copy's, a multiple of any other's.
  std::string speed_over(const std::string& peer) const {
    if (find(peer) == nullptr) return "-";
    const double ratio = find(peer)->median_ms / find("strobe")->median_ms;
    return is_ceiling(peer) ? fmt::format("{:.0f}%", 100.0 * ratio) : fmt::format("{:.2f}x", ratio);
  }

 private:
  const BenchRow* begin_;
  const BenchRow* end_;
};

std::string head_dims_text(const bench::Cell& cell) {
  return cell.head_dim == cell.head_dim_v ? fmt::format("{}", cell.head_dim)
                                          : fmt::format("{}/{}", cell.head_dim, cell.head_dim_v);
}

bool has_several_batches(const std::vector<BenchRow>& rows) {
  return std::ranges::any_of(rows, [&](const BenchRow& row) { return row.cell.batch != rows.front().cell.batch; });
}

}  // namespace

std::string bench_text(const std::vector<BenchRow>& rows, const std::vector<std::string>& implementations,
                       DeviceType device, bool decodes, const std::string& common) {
  std::vector<Table::Column> columns{{"pass", Table::Align::left},
                                     {"dtype", Table::Align::left},
                                     {"head_dim"},
                                     {"mask", Table::Align::left},
                                     {decodes ? "queries" : "seqlen"}};
  if (decodes) columns.push_back({"keys"});
  const bool gpu = device == DeviceType::cuda;
  const bool batches = gpu || has_several_batches(rows);
  if (batches) columns.push_back({"batch"});
  columns.push_back({gpu ? "heads" : "threads"});
  const std::size_t keys = columns.size();
  for (const std::string& implementation : implementations) columns.push_back({implementation});
  const bool ours = std::find(implementations.begin(), implementations.end(), "strobe") != implementations.end();
  if (ours) {
    bool first = true;
    for (const std::string& peer : implementations) {
      if (peer == "strobe") continue;
      columns.push_back(
          {is_ceiling(peer) ? "of " + peer : "/" + peer, Table::Align::right, std::exchange(first, false)});
    }
  }

  Table table(std::move(columns), keys);
  const BenchRow* const end = rows.data() + rows.size();
  for (const BenchRow *first = rows.data(), *next = first; first != end; first = next) {
    const bench::Cell& cell = first->cell;
    next = std::find_if(first, end, [&](const BenchRow& row) { return row.cell != cell; });
    const CellRows of_cell(first, next);
    std::vector<std::string> cells{bench::name_of(cell.pass), strobe::name_of(cell.dtype), head_dims_text(cell),
                                   cell.causal ? "causal" : "full", fmt::format("{}", cell.seqlen)};
    if (decodes) cells.push_back(fmt::format("{}", cell.seqlen_k));
    if (batches) cells.push_back(fmt::format("{}", cell.batch));
    cells.push_back(gpu ? fmt::format("{}", cell.heads) : fmt::format("{}", cell.threads));
    for (const std::string& name : implementations) cells.push_back(of_cell.speed(name, device, decodes));
    if (ours) {
      for (const std::string& peer : implementations) {
        if (peer != "strobe") cells.push_back(of_cell.speed_over(peer));
      }
    }
    table.add_row(std::move(cells));
  }
  return captioned(std::move(table), common);
}

std::string captioned(Table table, const std::string& common) {
  if (table.empty()) return {};
  const std::string keys = table.take_constant_keys();
  const std::string caption = keys.empty() ? common : fmt::format("{}\n{}", common, keys);
  return fmt::format("{}\n\n{}", io::wrapped(caption, output_columns()), table.text(output_columns()));
}

nlohmann::ordered_json json_rows(nlohmann::ordered_json rows) { return {{"rows", std::move(rows)}}; }

nlohmann::ordered_json bench_json(const std::vector<BenchRow>& rows, const std::string& device) {
  auto objects = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows) {
    const bench::Cell& cell = row.cell;
    objects.push_back({{"engine", row.engine},
                       {"device", device},
                       {"implementation", row.implementation},
                       {"pass", bench::name_of(cell.pass)},
                       {"dtype", strobe::name_of(cell.dtype)},
                       {"head_dim", cell.head_dim},
                       {"head_dim_v", cell.head_dim_v},
                       {"causal", cell.causal},
                       {"seqlen", cell.seqlen},
                       {"seqlen_k", cell.seqlen_k},
                       {"batch", cell.batch},
                       {"heads", cell.heads},
                       {"heads_kv", cell.heads_kv},
                       {"threads", cell.threads},
                       {"median_ms", row.median_ms},
                       {"tflops", row.tflops()},
                       {"gbps", row.gbps()}});
  }
  return json_rows(std::move(objects));
}

}  // namespace strobe::program
