// SPDX-License-Identifier: Apache-2.0
// strobe bench: throughput, interleaved with standard attention, PyTorch and the machine's own ceiling.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/command/flags.h"
#include "bench/command/gpu_parts.h"
#include "bench/command/median.h"
#include "bench/command/options.h"
#include "bench/command/peers.h"
#include "bench/command/report.h"
#include "io/progress.h"
#include "tools/strobe/commands.h"
#include "tools/strobe/interrupt.h"
#include "tools/strobe/machine.h"
#include "tools/strobe/number_flag.h"
#include "tools/strobe/output.h"

namespace strobe::program {
namespace {

constexpr const char* kBenchFooter =
    R"(Lists are separated by commas; every combination is one cell. In each cell the
implementations take turns, one each per round, after one round to warm up;
medians are shown. One that cannot run a cell is left out of it, with a word on
standard error. Ctrl-C ends the run with the cells that are done.

On the CPU a turn is the median of the calls that 50 ms hold, and speeds are in
GFLOP/s:
  strobe         this library
  row-invariant  the same with row_invariant, which forwards read; only where
                 --implementation names it
  standard       S and P whole in memory, products by OpenBLAS
                 (bench/standard_attention.cpp); not in the Python package
  pytorch        scaled_dot_product_attention in a process of its own
                 (`pip install torch==2.13.0`)
  probe          what multiplies the dtype, from registers alone: the best that
                 was seen of AMX tiles or AVX512-BF16 dot products for bfloat16
                 where there are any, otherwise of float32 multiply-adds
With --seqlen-k, which is for decoding, they are in GB/s of the bytes of Q, K, V
and O, and instead of the probe
  copy           copies 32 MiB on every thread, bytes read and bytes written
                 counted both, the best that was seen

With --device cuda a turn is the median of 2 to 10 calls between CUDA events,
and speeds are in TFLOP/s. L2 is not flushed between calls. PyTorch runs the
peers in a process of its own:
  strobe, row-invariant  as above
  cudnn, flash_attention_2  backends of scaled_dot_product_attention
  standard  S and P whole in memory, as separate operations

FLOPs: 2 b h s s (head_dim + head_dim_v) for the forward, halved when causal;
the backward's are 2.5 times as many.

Examples:
  strobe bench
  strobe bench --seqlen 512,2048,8192 --head-dim 64,128 --mask causal
  strobe bench --dtype bfloat16 --threads 1,2 --implementation strobe,probe
  strobe bench --pass forward --mask full --seqlen 1 --seqlen-k 4096,32768
  strobe bench --python ~/venv/bin/python --json bench.json
  strobe bench --device cuda --tokens 16384 --hidden 2048 --seqlen 512,16384
  strobe bench --device cuda --ablation
  strobe bench --device cuda --host-time
  strobe bench --device cuda --options --tokens 16384 --seqlen 4096
  strobe bench --io --head-dim 64 --seqlen 1024,4096 --fast-memory 8192)";

using Peers = std::vector<std::unique_ptr<Peer>>;

/// invalid_argument for a name that the device does not have.
Status check_implementations(const BenchFlags& flags) {
  const std::vector<std::string> known =
      flags.execution.on_gpu()
          ? std::vector<std::string>{"strobe", kRowInvariantPeer, "cudnn", "flash_attention_2", "standard"}
          : std::vector<std::string>{"strobe", kRowInvariantPeer, "standard", "pytorch", "probe", "copy"};
  for (const std::string& name : flags.implementations) {
    if (std::ranges::find(known, name) != known.end()) continue;
    return {StatusCode::invalid_argument, fmt::format("--implementation {} is not for --device {}: there are {}", name,
                                                      flags.execution.device, fmt::join(known, ", "))};
  }
  return {};
}

/// A peer that is not there is left out with a word, unless implementations were named.
Status leave_out(const BenchFlags& flags, const char* name, const Status& status) {
  if (status.ok() || !flags.implementations.empty()) return status;
  print_note(fmt::format("{} is left out: {}", name, status.message()));
  return {};
}

/// Standard attention on the CPU, if it was asked for and its products are fast enough to be measured.
Status add_standard_peer(const BenchFlags& flags, Peers& peers) {
  if (!flags.wants("standard")) return {};
  Result<std::unique_ptr<Peer>> made = make_standard_peer();
  if (made.ok()) peers.push_back(std::move(*made));
  return leave_out(flags, "standard", made.status());
}

/// PyTorch's peers, if any were asked for.
Status add_torch_peers(const BenchFlags& flags, Peers& peers) {
  Peers from_torch;
  Status status;
  if (flags.execution.on_gpu()) {
    std::vector<std::string> names;
    for (const char* const name : {"cudnn", "flash_attention_2", "standard"}) {
      if (flags.wants(name)) names.emplace_back(name);
    }
    if (names.empty()) return {};
    Result<Peers> started = make_torch_gpu_peers(flags.python, names);
    if (started.ok()) from_torch = std::move(*started);
    status = started.status();
  } else if (flags.wants("pytorch")) {
    Result<std::unique_ptr<Peer>> started = make_torch_peer(flags.python);
    if (started.ok()) from_torch.push_back(std::move(*started));
    status = started.status();
  }
  std::ranges::move(from_torch, std::back_inserter(peers));
  return leave_out(flags, "pytorch", status);
}

/// The peers that were asked for, or all that can run here.
Result<Peers> make_peers(const BenchFlags& flags) {
  if (Status status = check_implementations(flags); !status.ok()) return status;
  const bool gpu = flags.execution.on_gpu();
  Peers peers;
  if (flags.wants("strobe")) peers.push_back(gpu ? make_strobe_gpu_peer() : make_strobe_peer());
  if (!flags.implementations.empty() && flags.wants(kRowInvariantPeer)) {
    peers.push_back(gpu ? make_strobe_gpu_peer(true) : make_strobe_peer(true));
  }
  if (Status status = gpu ? Status() : add_standard_peer(flags, peers); !status.ok()) return status;
  if (Status status = add_torch_peers(flags, peers); !status.ok()) return status;
  if (!gpu && flags.wants("probe") && !flags.decodes()) peers.push_back(make_probe_peer());
  if (!gpu && flags.wants("copy") && flags.decodes()) peers.push_back(make_copy_peer());
  return peers;
}

/// One peer's times in one cell.
struct Turns {
  Peer* peer;
  std::vector<double> times;
  Status status;  // failed: left out from there on
};

/// Strobe's failure is the cell's; any other implementation is left out.
Status settle(Turns& turns, const Status& status) {
  turns.status = status;
  if (status.ok()) return {};
  if (turns.peer->name() == "strobe") return status;
  print_note(fmt::format("{} is left out of a cell: {}", turns.peer->name(), status.message()));
  return {};
}

std::string engine_of(const Turns& turns, const CellInputs& inputs) {
  const bool foreign = inputs.device.type == DeviceType::cuda && turns.peer->name() != "strobe";
  return foreign ? "pytorch" : inputs.engine;
}

/// Runs one cell's rounds; `step` is called before each turn. No rows where Ctrl-C came before they were done.
template <class Step>
Result<std::vector<BenchRow>> run_cell(const bench::Cell& cell, const BenchFlags& flags, const Peers& peers,
                                       const Step& step) {
  const auto inputs = make_cell_inputs(cell, flags.execution.tensor_device(), flags.execution.execution());
  if (!inputs.ok()) return inputs.status();
  std::vector<Turns> all;
  for (const auto& peer : peers) {
    all.push_back({.peer = peer.get(), .times = {}, .status = {}});
    if (Status status = settle(all.back(), peer->prepare(*inputs)); !status.ok()) return status;
  }
  for (int round = -1; round < flags.repeats; ++round) {  // round -1 warms up
    for (Turns& turns : all) {
      step();
      if (Interruptible::interrupted()) return std::vector<BenchRow>();
      if (!turns.status.ok()) continue;
      // Thread pools spin for some milliseconds after their work; let the last peer's fall asleep.
      if (cell.threads > 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const Result<double> time = turns.peer->run();
      if (Status status = settle(turns, time.status()); !status.ok()) return status;
      if (time.ok() && round >= 0) turns.times.push_back(*time);
    }
  }
  std::vector<BenchRow> rows;
  for (const Turns& turns : all) {
    if (!turns.status.ok()) continue;
    rows.push_back({cell, engine_of(turns, **inputs), turns.peer->name(), median(turns.times)});
  }
  return rows;
}

/// Whether all cells are there or not: what was measured, and the exit code that says which.
ExitCode report_cells(const BenchFlags& flags, const Peers& peers, const std::vector<BenchRow>& rows,
                      const std::string& device) {
  std::vector<std::string> implementations;
  for (const auto& peer : peers) implementations.push_back(peer->name());
  const char* const unit = flags.decodes() ? "GB/s" : flags.execution.on_gpu() ? "TFLOP/s" : "GFLOP/s";
  const std::string common =
      fmt::format("{}; {}; {}, medians of {} interleaved turns", device, flags.batch_and_heads(), unit, flags.repeats);
  if (!rows.empty()) {
    write_output(bench_text(rows, implementations, flags.execution.tensor_device().type, flags.decodes(), common));
  }
  const ExitCode written = report(flags.json.write(bench_json(rows, device)));
  return Interruptible::interrupted() ? report_interrupted() : written;
}

ExitCode run_cells(const BenchFlags& flags) {
  const Result<std::vector<bench::Cell>> cells = flags.cells();
  if (!cells.ok()) return report(cells.status());
  const Result<std::string> device = device_name(flags.execution.tensor_device());
  if (!device.ok()) return report(device.status());
  const Result<Peers> peers = make_peers(flags);
  if (!peers.ok()) return report(peers.status());

  const std::int64_t turns_per_cell = static_cast<std::int64_t>(peers->size()) * (flags.repeats + 1);
  io::Progress progress("bench", turns_per_cell * static_cast<std::int64_t>(cells->size()), "turns");
  std::int64_t turns = 0;
  std::vector<BenchRow> rows;
  const Interruptible interruptible;
  for (const bench::Cell& cell : *cells) {
    const auto of_cell = run_cell(cell, flags, *peers, [&] { progress.update(++turns); });
    if (!of_cell.ok()) {
      progress.finish();
      return report(of_cell.status());
    }
    if (Interruptible::interrupted()) break;
    rows.insert(rows.end(), of_cell->begin(), of_cell->end());
    // After every cell, so that a run that is killed leaves what it has measured.
    if (Status status = flags.json.write_so_far(bench_json(rows, *device)); !status.ok()) return report(status);
  }
  progress.finish();
  return report_cells(flags, *peers, rows, *device);
}

ExitCode run_bench(const BenchFlags& flags) {
  if (Status status = flags.json.prepare(); !status.ok()) return report(status);
  if (flags.io.wanted) {
    return run_io_bench({flags.pass_names(), flags.head_dims, flags.seqlens, flags.io.fast_memories}, flags.json);
  }
  if (flags.ablation) return run_ablation(flags);
  if (flags.host_time) return run_host_time(flags);
  if (flags.options) return run_option_costs(flags);
  return run_cells(flags);
}

}  // namespace

void add_bench_command(CLI::App& app, const std::string& python, ExitCode& exit_code) {
  CLI::App& command = *app.add_subcommand("bench", "Time it against standard attention, PyTorch and a probe");
  command.footer(kBenchFooter);
  const auto flags = std::make_shared<BenchFlags>();
  flags->python = python;
  flags->add_cells_to(command);
  flags->add_threads_to(command);
  command.add_option("--implementation", flags->implementations, "which of them (default all of the device's)")
      ->check(CLI::IsMember(
          {"strobe", kRowInvariantPeer, "standard", "pytorch", "probe", "copy", "cudnn", "flash_attention_2"}))
      ->delimiter(',')
      ->type_name("NAME,...");
  add_number(command, "--repeats", flags->repeats, "timed turns of each", 1, 1'000'000)
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--python", flags->python,
                  "the interpreter that has torch (default python3; of the Python package the one that runs it)")
      ->type_name("PATH");
  flags->json.add_to(command);
  command.add_flag("--ablation", flags->ablation, "a GPU kernel's ingredients left out in turn, instead of cells");
  command.add_flag("--host-time", flags->host_time, "what a call costs the host, instead of cells; needs a GPU");
  command.add_flag("--options", flags->options, "the cells plain and with each option in turn");
  for (const char* const other : {"--ablation", "--host-time", "--options"}) {
    command.get_option("--seqlen-k")->excludes(other);
  }
  flags->execution.add_device_to(command);
  flags->io.add_to(command);
  command.callback([flags, &exit_code] { exit_code = run_bench(*flags); });
}

}  // namespace strobe::program
