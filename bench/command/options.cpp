// SPDX-License-Identifier: Apache-2.0
#include "bench/command/options.h"

#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/command/gpu_call.h"
#include "bench/command/median.h"
#include "bench/command/option_calls.h"
#include "bench/command/peers.h"
#include "bench/command/report.h"
#include "io/progress.h"
#include "tools/strobe/interrupt.h"
#include "tools/strobe/output.h"
#include "tools/strobe/table.h"

namespace strobe::program {
namespace {

/// Milliseconds of a call, one turn each time; or why there are none.
using Turn = std::function<Result<double>()>;

Result<Turn> turn_on_the_cpu(OptionCalls& calls, const OptionCall& call, const CellInputs& inputs) {
  return Turn([&]() -> Result<double> {
    const auto start = std::chrono::steady_clock::now();
    const Status status = inputs.cell.pass == bench::BenchPass::forward
                              ? forward(calls.forward(call), call.options, inputs.execution)
                              : backward(calls.backward(call), call.options, inputs.execution);
    if (!status.ok()) return status;
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  });
}

Result<Turn> turn_on_a_gpu(OptionCalls& calls, const OptionCall& call, const CellInputs& inputs,
                           const runtime::CudaDevice& device, const gpu::Stream& stream) {
  const auto enqueue = inputs.cell.pass == bench::BenchPass::forward
                           ? gpu_call(calls.forward(call), call.options, inputs.execution, device, stream)
                           : gpu_call(calls.backward(call), call.options, inputs.execution, device, stream);
  if (!enqueue.ok()) return enqueue.status();
  return Turn([&stream, enqueue = *enqueue, launches = gpu_launches(inputs.cell)]() -> Result<double> {
    if (Status status = enqueue(); !status.ok()) return status;
    const Result<std::vector<double>> times = stream.time(launches, enqueue);
    if (!times.ok()) return times.status();
    return median(*times);
  });
}

/// One option's results in a cell.
struct OptionRow {
  std::string option;
  double visible = 1.0;
  std::vector<double> times;  // none: the engine lacks it
};

/// The GPU that cells run on, and their stream.
struct GpuPlace {
  const runtime::CudaDevice& device;
  gpu::Stream stream;
};

/// One cell's rounds; `step` is called after each. No rows where Ctrl-C came before they were done.
template <class Step>
Result<std::vector<OptionRow>> run_cell(const bench::Cell& cell, const BenchFlags& flags, const GpuPlace* gpu,
                                        const Step& step) {
  const auto inputs = make_cell_inputs(cell, flags.execution.tensor_device(), flags.execution.execution());
  if (!inputs.ok()) return inputs.status();
  OptionCalls calls(**inputs);
  std::vector<OptionRow> rows;
  std::vector<std::optional<Turn>> turns;
  for (const OptionCall& call : calls.all()) {
    rows.push_back({.option = call.name, .visible = call.visible, .times = {}});
    Result<Turn> turn = gpu == nullptr ? turn_on_the_cpu(calls, call, **inputs)
                                       : turn_on_a_gpu(calls, call, **inputs, gpu->device, gpu->stream);
    if (!turn.ok() && turn.status().code() != StatusCode::unsupported) return turn.status();
    turns.push_back(turn.ok() ? std::optional(std::move(*turn)) : std::nullopt);
  }
  for (int round = -1; round < flags.repeats; ++round) {  // round -1 warms up
    for (std::size_t index = 0; index < rows.size(); ++index) {
      if (Interruptible::interrupted()) return std::vector<OptionRow>();
      if (!turns[index].has_value()) continue;
      const Result<double> time = (*turns[index])();
      if (!time.ok()) return time.status();
      if (round >= 0) rows[index].times.push_back(*time);
    }
    step();
  }
  return rows;
}

/// What the call takes of the plain one's time: the median over rounds, as a clock that changes meets both of a round.
double ratio_of(const OptionRow& row, const OptionRow& plain) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < row.times.size(); ++round) {
    ratios.push_back(row.times[round] / plain.times[round]);
  }
  return median(ratios);
}

nlohmann::ordered_json json_row(const std::string& device, const bench::Cell& cell, const OptionRow& row,
                                const OptionRow& plain) {
  nlohmann::ordered_json json = {{"device", device},
                                 {"pass", bench::name_of(cell.pass)},
                                 {"dtype", strobe::name_of(cell.dtype)},
                                 {"head_dim", cell.head_dim},
                                 {"causal", cell.causal},
                                 {"seqlen", cell.seqlen},
                                 {"batch", cell.batch},
                                 {"heads", cell.heads},
                                 {"threads", cell.threads},
                                 {"option", row.option},
                                 {"visible", row.visible}};
  if (row.times.empty()) {
    json["supported"] = false;
  } else {
    json["median_ms"] = median(row.times);
    json["ratio"] = ratio_of(row, plain);
  }
  return json;
}

Table empty_table() {
  return Table({{"pass", Table::Align::left},
                {"dtype", Table::Align::left},
                {"head_dim"},
                {"causal", Table::Align::left},
                {"seqlen"},
                {"option", Table::Align::left},
                {"visible"},
                {"ms"},
                {"x plain"}},
               /*keys=*/5);
}

void add_to(Table& table, const bench::Cell& cell, const OptionRow& row, const OptionRow& plain) {
  const bool supported = !row.times.empty();
  table.add_row({bench::name_of(cell.pass), strobe::name_of(cell.dtype), fmt::format("{}", cell.head_dim),
                 cell.causal ? "yes" : "no", fmt::format("{}", cell.seqlen), row.option,
                 fmt::format("{:.0f}%", 100.0 * row.visible),
                 supported ? fmt::format("{:.2f}", median(row.times)) : "unsupported",
                 supported ? fmt::format("{:.3f}", ratio_of(row, plain)) : ""});
}

}  // namespace

ExitCode run_option_costs(const BenchFlags& flags) {
  const Result<std::vector<bench::Cell>> cells = flags.cells();
  if (!cells.ok()) return report(cells.status());
  const Result<std::string> device = device_name(flags.execution.tensor_device());
  if (!device.ok()) return report(device.status());
  std::optional<GpuPlace> gpu;
  if (flags.execution.on_gpu()) {
    const runtime::CudaDevice& opened = **runtime::cuda_device(flags.execution.tensor_device().index);
    Result<gpu::Stream> stream = gpu::Stream::create(opened);
    if (!stream.ok()) return report(stream.status());
    gpu.emplace(GpuPlace{opened, std::move(*stream)});
  }
  io::Progress progress("bench", static_cast<std::int64_t>(cells->size()) * (flags.repeats + 1), "rounds");
  std::int64_t rounds = 0;
  Table table = empty_table();
  auto json = nlohmann::ordered_json::array();
  const Interruptible interruptible;
  for (const bench::Cell& cell : *cells) {
    const auto rows = run_cell(cell, flags, gpu ? &*gpu : nullptr, [&] { progress.update(++rounds); });
    if (!rows.ok()) {
      progress.finish();
      return report(rows.status());
    }
    if (Interruptible::interrupted()) break;
    for (const OptionRow& row : *rows) {
      add_to(table, cell, row, rows->front());
      json.push_back(json_row(*device, cell, row, rows->front()));
    }
  }
  progress.finish();
  write_output(captioned(std::move(table), fmt::format("{}; {}, medians of {} interleaved turns", *device,
                                                       flags.batch_and_heads(), flags.repeats)));
  const ExitCode written = report(flags.json.write(json_rows(std::move(json))));
  return Interruptible::interrupted() ? report_interrupted() : written;
}

}  // namespace strobe::program
