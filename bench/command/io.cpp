// SPDX-License-Identifier: Apache-2.0
#include "bench/command/io.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/command/report.h"
#include "bench/io_walk.h"
#include "strobe/block_mask.h"
#include "tools/strobe/interrupt.h"
#include "tools/strobe/number_flag.h"
#include "tools/strobe/output.h"
#include "tools/strobe/table.h"

namespace strobe::program {
namespace {

constexpr std::int64_t kLongest = 1 << 20;  // squared and times the widest, its traffic still fits 63 bits
constexpr std::int64_t kWidest = 1 << 16;
constexpr std::int64_t kMaskBlock = 128;  // the default of ScoreModifiers::block_size

/// One way to walk through attention; `pattern` fills a square of blocks.
struct Subject {
  const char* name;
  const char* title;  // of its column
  bench::Order order;
  Status (*pattern)(const TensorView& mask);
};

Status own_block_and_neighbours(const TensorView& mask) { return local_block_mask(mask, 1, 1); }

constexpr std::array kSubjects{
    Subject{"standard", "standard", bench::Order::standard, nullptr},
    Subject{"flash_attention", "flash_\nattention", bench::Order::flash_attention, nullptr},
    Subject{"flash_attention_2", "flash_\nattention_2", bench::Order::flash_attention_2, nullptr},
    Subject{"butterfly", "butterfly", bench::Order::flash_attention_2, butterfly_block_mask},
    Subject{"local", "local", bench::Order::flash_attention_2, own_block_and_neighbours},
};

struct IoCell {
  std::string pass;
  std::int64_t head_dim = 1;
  std::int64_t seqlen = 1;
  std::int64_t fast_memory = 1;
};

struct IoRow {
  IoCell cell;
  const Subject* subject = nullptr;
  double density = 1.0;
  bench::Walk walk;
};

Result<IoRow> walk_cell(const IoCell& cell, const Subject& subject) {
  if (cell.seqlen > kLongest || cell.head_dim > kWidest) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("--io counts up to --seqlen {} and --head-dim {}", kLongest, kWidest));
  }
  bench::IoProblem problem{.seqlen = cell.seqlen, .head_dim = cell.head_dim, .fast_memory = cell.fast_memory};
  if (subject.pattern != nullptr) {
    bench::BlockMask& mask = problem.mask;
    mask.block_size = kMaskBlock;
    mask.blocks = (cell.seqlen + kMaskBlock - 1) / kMaskBlock;
    mask.visible.resize(static_cast<std::size_t>(mask.blocks * mask.blocks));
    if (Status status = subject.pattern(tensor(mask.visible.data(), {mask.blocks, mask.blocks})); !status.ok()) {
      return status;
    }
  }
  bench::SlowMemory memory = make_slow_memory(problem, false);
  const Result<bench::Walk> walk = cell.pass == "forward" ? walk_forward(subject.order, problem, memory)
                                                          : walk_backward(subject.order, problem, memory);
  if (!walk.ok()) return walk.status();
  return IoRow{cell, &subject, problem.mask.density(), *walk};
}

std::vector<IoCell> list_cells(const IoCells& cells) {
  std::vector<IoCell> list;
  for (const std::string& pass : cells.passes) {
    for (const std::int64_t head_dim : cells.head_dims) {
      for (const std::int64_t seqlen : cells.seqlens) {
        for (const std::int64_t fast_memory : cells.fast_memories)
          list.push_back({pass, head_dim, seqlen, fast_memory});
      }
    }
  }
  return list;
}

/// One line for each cell; `rows` holds all subjects of a cell one after another.
Table io_table(const std::vector<IoRow>& rows) {
  std::vector<Table::Column> columns{{"pass", Table::Align::left}, {"head_dim"}, {"seqlen"}, {"M"}};
  for (const Subject& subject : kSubjects) columns.push_back({subject.title});
  columns.push_back({"gain"});
  Table table(std::move(columns), 4);
  for (std::size_t first = 0; first < rows.size(); first += kSubjects.size()) {
    const IoCell& cell = rows[first].cell;
    std::vector<std::string> texts{cell.pass, fmt::format("{}", cell.head_dim), fmt::format("{}", cell.seqlen),
                                   fmt::format("{}", cell.fast_memory)};
    const auto millions = [&](std::size_t subject) {
      return static_cast<double>(rows[first + subject].walk.traffic.elements()) * 1e-6;
    };
    for (std::size_t subject = 0; subject < kSubjects.size(); ++subject) {
      texts.push_back(fmt::format("{:.2f}", millions(subject)));
    }
    texts.push_back(fmt::format("{:.1f}x", millions(0) / millions(2)));
    table.add_row(std::move(texts));
  }
  return table;
}

nlohmann::ordered_json json_row(const IoRow& row) {
  return {{"order", row.subject->name},
          {"pass", row.cell.pass},
          {"head_dim", row.cell.head_dim},
          {"seqlen", row.cell.seqlen},
          {"fast_memory", row.cell.fast_memory},
          {"density", row.density},
          {"outer", row.walk.outer},
          {"inner", row.walk.inner},
          {"loads", row.walk.traffic.loads},
          {"stores", row.walk.traffic.stores}};
}

}  // namespace

void IoFlags::add_to(CLI::App& command) {
  const char* const group = "Memory traffic";
  command
      .add_flag("--io", wanted, "count elements moved instead of timing; --pass, --head-dim, --seqlen, --json apply")
      ->group(group);
  add_number(command, "--fast-memory", fast_memories, "elements that the fast memory holds", 1)
      ->delimiter(',')
      ->type_name("N,...")
      ->capture_default_str()
      ->group(group);
}

ExitCode run_io_bench(const IoCells& cells, const JsonFlag& json) {
  std::vector<IoRow> rows;
  const Interruptible interruptible;
  for (const IoCell& cell : list_cells(cells)) {
    std::vector<IoRow> of_cell;
    for (const Subject& subject : kSubjects) {
      if (Interruptible::interrupted()) break;
      Result<IoRow> row = walk_cell(cell, subject);
      if (!row.ok()) return report(row.status());
      of_cell.push_back(std::move(*row));
    }
    if (Interruptible::interrupted()) break;
    std::ranges::move(of_cell, std::back_inserter(rows));
  }
  auto objects = nlohmann::ordered_json::array();
  for (const IoRow& row : rows) objects.push_back(json_row(row));
  write_output(captioned(
      io_table(rows),
      fmt::format(
          "Millions of elements moved between slow memory and a fast one of M elements, counted: one head, tiles "
          "walked in the order of each algorithm; butterfly and local: block-sparse FlashAttention-2, blocks of "
          "{}, local with one neighbour on each side; gain: standard over flash_attention_2",
          kMaskBlock)));
  const ExitCode written = report(json.write(json_rows(std::move(objects))));
  return Interruptible::interrupted() ? report_interrupted() : written;
}

}  // namespace strobe::program
