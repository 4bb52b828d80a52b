// SPDX-License-Identifier: Apache-2.0
// strobe tune: of each call's few best plans the one that is the fastest on this machine's GPU.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/command/flags.h"
#include "bench/command/median.h"
#include "commands.h"
#include "compared_tables.h"
#include "gpu/call_candidates.h"
#include "gpu/compile_ahead.h"
#include "interrupt.h"
#include "io/progress.h"
#include "json_flag.h"
#include "model_calls.h"
#include "model_config.h"
#include "output.h"
#include "recorded_calls.h"
#include "runtime/tuned_table.h"
#include "tune_measure.h"
#include "tune_table.h"
#include "tune_tensors.h"

namespace strobe::program {
namespace {

constexpr const char* kTuneFooter = R"(Measures the few plans of a call that the model of the device ranks first, in
interleaved rounds, and writes a table that the library reads before its first
plan. Another plan than the rule's must be more than 2% faster. Lengths, batch
and windows count by the nearest power of two; row-invariant forwards keep
their plans.

Examples:
  strobe tune --recorded calls.jsonl              what STROBE_RECORD recorded
  strobe tune --config config.json --training     a model's calls
  strobe tune --pass backward --mask causal --heads 32 --heads-kv 8
              --seqlen 2048,8192 --batch 1,16 --deterministic
  strobe tune --compare first.txt second.txt      how much two tables agree

Without --output the table is where the library reads it: STROBE_TUNED, or the
folder tuned beside the kernel cache. Calls that it has beside these stay; a
file that is no table, or one of another device, is not written over.)";

struct TuneFlags {
  BenchFlags cells;
  bool deterministic = false;
  std::string recorded;
  std::string config;
  bool training = false;
  std::string output;
  std::vector<std::string> compared;
};

/// A call that stands for all of its name, and what may be chosen for it.
struct TuneCall {
  AttentionProblem problem;
  gpu::CallCandidates choices;
};

struct TuneCalls {
  std::vector<TuneCall> calls;         // each name once
  std::map<std::string, int> lacking;  // why calls have none, and how many
};

/// One line of the report.
struct TuneRow {
  std::string call, name, choice;
  double gain = 1.0;
  double milliseconds = 0.0;                                            // 0: there was nothing to choose
  nlohmann::ordered_json candidates = nlohmann::ordered_json::array();  // measured, the rule's first
};

AttentionProblem problem_of(const bench::Cell& cell, bool deterministic) {
  AttentionProblem problem;
  problem.pass = cell.pass == bench::BenchPass::forward ? Pass::forward : Pass::backward;
  problem.dtype = cell.dtype;
  problem.batch = cell.batch;
  problem.heads_q = cell.heads;
  problem.heads_kv = cell.heads_kv;
  problem.head_dim = cell.head_dim;
  problem.head_dim_v = cell.head_dim_v;
  problem.seqlen_q = cell.seqlen;
  problem.seqlen_k = cell.seqlen_k;
  problem.total_q = cell.batch * cell.seqlen;
  problem.total_k = cell.batch * cell.seqlen_k;
  problem.scale = 1.0F / std::sqrt(static_cast<float>(cell.head_dim));
  if (cell.causal) problem.causal = CausalMask::bottom_right;
  problem.wants_lse = problem.pass == Pass::forward;
  problem.deterministic = deterministic && problem.pass == Pass::backward;
  return problem;
}

/// Without what a server packs into one call, whose caches are long: measuring it would take tens of GB.
Result<std::vector<AttentionProblem>> problems_of_model(const TuneFlags& flags) {
  const Result<ModelConfig> model = read_model_config(flags.config);
  if (!model.ok()) return model.status();
  if (!model->not_read.empty()) print_error(model->not_read);
  return model_calls(*model, {.training = flags.training, .served_steps = false, .kv_cache_dtype = std::nullopt});
}

Result<std::vector<AttentionProblem>> problems_of(const TuneFlags& flags) {
  if (!flags.recorded.empty()) return recorded_calls(flags.recorded);
  if (!flags.config.empty()) return problems_of_model(flags);
  const Result<std::vector<bench::Cell>> cells = flags.cells.cells();
  if (!cells.ok()) return cells.status();
  std::vector<AttentionProblem> problems;
  for (const bench::Cell& cell : *cells) problems.push_back(problem_of(cell, flags.deterministic));
  return problems;
}

TuneCalls calls_of(const std::vector<AttentionProblem>& problems, const gpu::ThisDevice& device) {
  TuneCalls all;
  std::map<std::string, bool> known;
  for (const AttentionProblem& problem : problems) {
    if (const Status tuned = check_tuned(problem); !tuned.ok()) {
      ++all.lacking[tuned.message()];
      continue;
    }
    Result<gpu::CallCandidates> choices = gpu::candidates_of(problem, device.name, device.shape);
    if (!choices.ok()) {
      ++all.lacking[choices.status().message()];
    } else if (known.emplace(choices->name, true).second) {
      all.calls.push_back({problem, std::move(*choices)});
    }
  }
  return all;
}

/// The choice that an earlier table has.
std::optional<gpu::Choice> choice_before(const runtime::TunedTable& table, const std::string& name) {
  const auto found = table.entries.find(name);
  if (found == table.entries.end()) return std::nullopt;
  return gpu::parse_choice(found->second.choice);
}

/// Measures one call and enters it; without a row where Ctrl-C came before it was done.
Result<std::optional<TuneRow>> tune_call(const TuneCall& call, const runtime::CudaDevice& device,
                                         const gpu::Stream& stream, const std::function<void()>& step,
                                         runtime::TunedTable& table) {
  const std::vector<gpu::Candidate>& candidates = call.choices.candidates;
  TuneRow row{.call = describe(call.problem), .name = call.choices.name, .choice = "rule"};
  if (candidates.size() > 1) {
    const auto measured = measure_candidates(call.problem, candidates, device, stream, step);
    if (!measured.ok()) return measured.status();
    if (measured->empty()) return std::optional<TuneRow>();
    const TunedResult result = choose_measured(*measured, choice_before(table, row.name));
    row.choice = gpu::text_of((*measured)[result.index].candidate.choice);
    row.gain = result.gain;
    row.milliseconds = result.milliseconds;
    for (const MeasuredCandidate& one : *measured) {
      row.candidates.push_back({{"choice", gpu::text_of(one.candidate.choice)},
                                {"milliseconds", median(one.rounds)},
                                {"predicted_ms", 1e3 * one.candidate.seconds}});
    }
  }
  table.entries[row.name] = {row.choice, row.gain};
  return std::optional(row);
}

nlohmann::ordered_json json_of(const std::vector<TuneRow>& rows, const std::string& device, const std::string& path) {
  auto calls = nlohmann::ordered_json::array();
  for (const TuneRow& row : rows) {
    calls.push_back({{"call", row.call},
                     {"name", row.name},
                     {"choice", row.choice},
                     {"gain", row.gain},
                     {"milliseconds", row.milliseconds},
                     {"candidates", row.candidates}});
  }
  return {{"device", device}, {"table", path}, {"calls", calls}};
}

/// Two lines for each call.
void print_rows(const std::vector<TuneRow>& rows) {
  constexpr std::size_t kIndent = 4;
  for (const TuneRow& row : rows) {
    std::string result = "there is nothing to choose";
    if (row.milliseconds > 0.0) result = fmt::format("{}: {:.4g} ms", row.choice, row.milliseconds);
    if (row.choice != "rule") result += fmt::format(", {:.3f} times as fast as the rule's", row.gain);
    print_wrapped(row.call + '\n', kIndent);
    print_wrapped(fmt::format("    {}\n", result), kIndent);
  }
}

/// Measures all calls into `table`, as far as Ctrl-C lets it.
Result<std::vector<TuneRow>> tune_all(const std::vector<TuneCall>& calls, const runtime::CudaDevice& device,
                                      runtime::TunedTable& table) {
  const Result<gpu::Stream> stream = gpu::Stream::create(device);
  if (!stream.ok()) return stream.status();
  std::int64_t turns = 0;
  for (const TuneCall& call : calls) {
    const auto count = static_cast<std::int64_t>(call.choices.candidates.size());
    turns += count > 1 ? count * (kTuneRounds + 1) : 0;
  }
  io::Progress progress("tuning", turns, "turns");
  std::int64_t done = 0;
  std::vector<TuneRow> rows;
  for (const TuneCall& call : calls) {
    const auto row = tune_call(call, device, *stream, [&] { progress.update(++done); }, table);
    if (!row.ok()) {
      progress.finish();
      return row.status();
    }
    if (!row->has_value()) break;
    rows.push_back(**row);
  }
  progress.finish();
  return rows;
}

/// Measures the calls on the device and writes what is the fastest.
ExitCode tune_into(const std::string& path, TableToWrite& before, const TuneCalls& calls,
                   const runtime::CudaDevice& device, const JsonFlag& json) {
  runtime::TunedTable& table = before.table;
  const Interruptible interruptible;
  const Result<std::vector<TuneRow>> rows = tune_all(calls.calls, device, table);
  if (!rows.ok()) return report(rows.status());
  print_rows(*rows);
  for (const auto& [reason, count] : calls.lacking) {
    print_wrapped(fmt::format("not tuned ({} of the calls): {}\n", count, reason));
  }
  if (const std::string why = runtime::write_tuned(path, table); !why.empty()) {
    return report({StatusCode::device_error, fmt::format("'{}' cannot be written: {}", path, why)});
  }
  print_wrapped(before.note);
  print_wrapped(fmt::format("{} calls of {} are in {}\n", table.entries.size(), device.name, path));
  const ExitCode written = report(json.write(json_of(*rows, device.name, path)));
  return Interruptible::interrupted() ? report_interrupted() : written;
}

ExitCode tune(const TuneFlags& flags) {
  const JsonFlag& json = flags.cells.json;
  if (Status status = json.prepare(); !status.ok()) return report(status);
  if (!flags.compared.empty()) return compare_tables(flags.compared[0], flags.compared[1], json);
  const Result<std::vector<AttentionProblem>> problems = problems_of(flags);
  if (!problems.ok()) return report(problems.status());
  std::string path = flags.output;
  Result<runtime::TunedTable> before = path.empty() ? runtime::TunedTable() : table_before(path);
  if (!before.ok()) return report(before.status());
  const Result<gpu::ThisDevice> own = gpu::this_device();
  if (!own.ok()) return report(own.status());
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(0);
  if (!device.ok()) return report(device.status());
  if (path.empty()) {
    path = runtime::tuned_path(**device);
    before = table_before(path);
    if (!before.ok()) return report(before.status());
  }
  Result<TableToWrite> table = table_to_write(path, *before, runtime::tuned_device(**device), runtime::tuned_library());
  if (!table.ok()) return report(table.status());
  return tune_into(path, *table, calls_of(*problems, *own), **device, json);
}

}  // namespace

void add_tune_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App& command = *app.add_subcommand("tune", "Measure which plans are the fastest on this GPU");
  command.footer(kTuneFooter);
  const auto flags = std::make_shared<TuneFlags>();
  flags->cells.execution.device = "cuda";
  flags->cells.add_cells_to(command);
  command.add_flag("--deterministic", flags->deterministic, "backwards with the same bits every time")->group("Cells");
  CLI::Option* const recorded =
      command.add_option("--recorded", flags->recorded, "the calls of a run instead, as STROBE_RECORD wrote them")
          ->type_name("FILE");
  CLI::Option* const config =
      command.add_option("--config", flags->config, "the calls of a model instead, by its config.json")
          ->type_name("FILE")
          ->excludes(recorded);
  command.add_flag("--training", flags->training, "the model's forwards and backwards, in the place of its decodes")
      ->needs(config);
  command.add_option("--output", flags->output, "the table's file")->type_name("FILE");
  command.add_option("--compare", flags->compared, "two tables: which calls have the same choice in both")
      ->expected(2)
      ->type_name("FILE");
  flags->cells.json.add_to(command);
  command.callback([flags, &exit_code] { exit_code = tune(*flags); });
}

}  // namespace strobe::program
