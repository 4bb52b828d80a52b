// strobe bench: throughput, interleaved with standard attention, PyTorch and the machine's own ceiling.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench_io.h"
#include "bench_peers.h"
#include "bench_report.h"
#include "commands.h"
#include "flags.h"
#include "io/progress.h"
#include "machine.h"

namespace strobe::program {
namespace {

constexpr const char* kFooter =
    R"(Lists are separated by commas; every combination is one cell. In each cell the implementations
take turns, one run each per round, after one run to warm up; medians are shown, in GFLOP/s.

  strobe    this library
  standard  S and P whole in memory, products by OpenBLAS (bench/standard_attention.cpp)
  pytorch   scaled_dot_product_attention in a process of its own (`pip install torch==2.13.0`)
  probe     fused multiply-adds from registers: the most that this machine's vector units do

FLOPs: 2 b h s s (head_dim + head_dim_v) for the forward, halved when causal; the backward's are
2.5 times as many.

Examples:
  strobe bench
  strobe bench --seqlen 512,2048,8192 --head-dim 64,128 --mask causal --pass forward
  strobe bench --dtype bfloat16 --threads 1,2 --implementation strobe,probe
  strobe bench --python ~/venv/bin/python --json bench.json
  strobe bench --io --head-dim 64 --seqlen 1024,4096 --fast-memory 8192,65536)";

struct BenchFlags {
  std::vector<std::string> passes{"forward", "backward"};
  std::vector<std::string> dtypes{"float32", "bfloat16"};
  std::vector<std::int64_t> head_dims{128};
  std::int64_t head_dim_v = 0;  // 0: as head_dim
  std::vector<std::string> masks{"full", "causal"};
  std::vector<std::int64_t> seqlens{512, 1024, 2048};
  std::int64_t batch = 1;
  std::int64_t heads = 8;
  std::int64_t heads_kv = 0;  // 0: as heads
  std::vector<int> threads;
  int repeats = 5;
  std::vector<std::string> implementations;
  std::string python = "python3";
  std::string json;
  IoFlags io;
  ExecutionFlags execution;
};

std::vector<bench::Cell> cells_of(const BenchFlags& flags) {
  std::vector<bench::Cell> cells;
  const std::vector<int> threads = flags.threads.empty() ? std::vector{resolved_threads(0)} : flags.threads;
  for (const std::string& pass : flags.passes) {
    for (const std::string& dtype : flags.dtypes) {
      for (const std::int64_t head_dim : flags.head_dims) {
        for (const std::string& mask : flags.masks) {
          for (const std::int64_t seqlen : flags.seqlens) {
            for (const int workers : threads) {
              cells.push_back({.pass = pass == "forward" ? bench::BenchPass::forward : bench::BenchPass::backward,
                               .dtype = dtype_of(dtype),
                               .batch = flags.batch,
                               .seqlen = seqlen,
                               .heads = flags.heads,
                               .heads_kv = flags.heads_kv > 0 ? flags.heads_kv : flags.heads,
                               .head_dim = head_dim,
                               .head_dim_v = flags.head_dim_v > 0 ? flags.head_dim_v : head_dim,
                               .causal = mask == "causal",
                               .threads = workers});
            }
          }
        }
      }
    }
  }
  return cells;
}

/// The peers that were asked for, or all that can run here: PyTorch is left out with a word on standard error.
Result<std::vector<std::unique_ptr<Peer>>> make_peers(const BenchFlags& flags) {
  const auto wanted = [&](const std::string& name) {
    const std::vector<std::string>& names = flags.implementations;
    return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<std::unique_ptr<Peer>> peers;
  if (wanted("strobe")) peers.push_back(make_strobe_peer());
  if (wanted("standard")) peers.push_back(make_standard_peer());
  if (wanted("pytorch")) {
    Result<std::unique_ptr<Peer>> torch = make_torch_peer(flags.python);
    if (torch.ok()) {
      peers.push_back(std::move(*torch));
    } else if (!flags.implementations.empty()) {
      return torch.status();
    } else {
      fmt::print(stderr, "pytorch is left out: {}\n", torch.status().message());
    }
  }
  if (wanted("probe")) peers.push_back(make_probe_peer());
  return peers;
}

double median(std::vector<double> values) {
  const std::size_t middle = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

/// Runs one cell's rounds; `step` is called after each run.
template <class Step>
Result<std::vector<BenchRow>> run_cell(const bench::Cell& cell, const BenchFlags& flags,
                                       const std::vector<std::unique_ptr<Peer>>& peers, const Step& step) {
  const auto inputs = make_cell_inputs(cell, flags.execution.execution().engine);
  if (!inputs.ok()) return inputs.status();
  for (const auto& peer : peers) {
    if (Status status = peer->prepare(*inputs); !status.ok()) return status;
  }
  std::vector<std::vector<double>> times(peers.size());
  for (int round = -1; round < flags.repeats; ++round) {  // round -1 warms up
    for (std::size_t i = 0; i < peers.size(); ++i) {
      // Thread pools spin for some milliseconds after their work; let the last peer's fall asleep.
      if (cell.threads > 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const Result<double> time = peers[i]->run();
      if (!time.ok()) return time.status();
      if (round >= 0) times[i].push_back(*time);
      step();
    }
  }
  std::vector<BenchRow> rows;
  for (std::size_t i = 0; i < peers.size(); ++i) rows.push_back({cell, peers[i]->name(), median(times[i])});
  return rows;
}

ExitCode run_bench(const BenchFlags& flags) {
  if (flags.io.wanted) {
    return run_io_bench({flags.passes, flags.head_dims, flags.seqlens, flags.io.fast_memories}, flags.json);
  }
  const std::vector<bench::Cell> cells = cells_of(flags);
  const auto peers = make_peers(flags);
  if (!peers.ok()) return report(peers.status());
  const std::vector<std::string> sets = instruction_sets();
  const std::string device = fmt::format("{}, {}", processor_name(), sets.front());

  const std::int64_t runs_per_cell = static_cast<std::int64_t>(peers->size()) * (flags.repeats + 1);
  io::Progress progress("bench", runs_per_cell * static_cast<std::int64_t>(cells.size()), "runs");
  std::int64_t runs = 0;
  std::vector<BenchRow> rows;
  for (const bench::Cell& cell : cells) {
    const auto of_cell = run_cell(cell, flags, *peers, [&] { progress.update(++runs); });
    if (!of_cell.ok()) {
      progress.finish();
      return report(of_cell.status());
    }
    rows.insert(rows.end(), of_cell->begin(), of_cell->end());
    if (!flags.json.empty()) {  // after every cell, so that a run that is cut short leaves what it has measured
      if (Status status = write_bench_json(flags.json, rows, flags.execution.engine, device); !status.ok()) {
        return report(status);
      }
    }
  }
  progress.finish();

  std::vector<std::string> implementations;
  for (const auto& peer : *peers) implementations.push_back(peer->name());
  const bool grouped = flags.heads_kv > 0 && flags.heads_kv != flags.heads;
  const std::string heads =
      grouped ? fmt::format("{} and {}", flags.heads, flags.heads_kv) : fmt::format("{}", flags.heads);
  fmt::print("{}; batch {}, heads {}; GFLOP/s, medians of {} interleaved runs\n\n{}", device, flags.batch, heads,
             flags.repeats, bench_table(rows, implementations));
  return ExitCode::ok;
}

void add_cell_flags(CLI::App& command, BenchFlags& flags) {
  const auto add_list = [&](const char* name, auto& values, const char* text) {
    return command.add_option(name, values, text)->delimiter(',')->capture_default_str()->group("Cells");
  };
  const auto add_number = [&](const char* name, std::int64_t& value, const char* text) {
    return command.add_option(name, value, text)->type_name("N")->check(CLI::PositiveNumber)->group("Cells");
  };
  add_list("--pass", flags.passes, "forward, backward")
      ->check(CLI::IsMember({"forward", "backward"}))
      ->type_name("NAME,...");
  add_list("--dtype", flags.dtypes, "float32, float16, bfloat16")
      ->check(CLI::IsMember(dtype_names()))
      ->type_name("NAME,...");
  add_list("--head-dim", flags.head_dims, "of Q and K")->check(CLI::PositiveNumber)->type_name("N,...");
  add_number("--head-dim-v", flags.head_dim_v, "of V and O (default as --head-dim)");
  add_list("--mask", flags.masks, "full, causal")->check(CLI::IsMember({"full", "causal"}))->type_name("NAME,...");
  add_list("--seqlen", flags.seqlens, "queries, and as many keys")->check(CLI::PositiveNumber)->type_name("N,...");
  add_number("--batch", flags.batch, "sequences")->capture_default_str();
  add_number("--heads", flags.heads, "query heads")->capture_default_str();
  add_number("--heads-kv", flags.heads_kv, "key and value heads (default as --heads)");
  add_list("--threads", flags.threads, "workers (default one per hardware thread)")
      ->check(CLI::PositiveNumber)
      ->type_name("N,...");
}

}  // namespace

void add_bench_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App& command = *app.add_subcommand("bench", "Time it against standard attention, PyTorch and an FMA probe");
  command.footer(kFooter);
  const auto flags = std::make_shared<BenchFlags>();
  add_cell_flags(command, *flags);
  command.add_option("--implementation", flags->implementations, "strobe, standard, pytorch, probe (default all)")
      ->check(CLI::IsMember({"strobe", "standard", "pytorch", "probe"}))
      ->delimiter(',')
      ->type_name("NAME,...");
  command.add_option("--repeats", flags->repeats, "timed runs of each")
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->capture_default_str();
  command.add_option("--python", flags->python, "the interpreter that has torch")
      ->type_name("PATH")
      ->capture_default_str();
  command.add_option("--json", flags->json, "write the rows to this file too")->type_name("FILE");
  flags->execution.add_engine_to(command);
  flags->io.add_to(command);
  command.callback([flags, &exit_code] { exit_code = run_bench(*flags); });
}

}  // namespace strobe::program
