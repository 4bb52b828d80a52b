// SPDX-License-Identifier: Apache-2.0
// strobe info: what this build and this machine offer.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "attention_tensors.h"
#include "commands.h"
#include "flags.h"
#include "machine.h"
#include "strobe/gpu_report.h"
#include "strobe/plan.h"

namespace strobe::program {
namespace {

/// "available", or why a small call on tensors of that engine's device is rejected.
std::string availability(Engine engine, DeviceType device) {
  const ForwardArguments arguments =
      planned_forward({.seqlen_q = 128, .seqlen_k = 128, .head_dim = 64, .head_dim_v = 64}, DType::float16);
  const Result<Plan> plan = make_plan(placed(arguments, {device, 0}), {}, {.engine = engine});
  return plan.ok() ? "available" : "not available: " + plan.status().message();
}

void print_gpu(const GpuReport& report) {
  fmt::print("GPU\n");
  fmt::print("  driver           {}\n", report.driver);
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    fmt::print("  device {:<10}{}\n", i, report.devices[i]);
  }
  fmt::print("  compiled ahead   {}\n", report.pack);
  for (std::size_t i = 0; i < report.compiler.size(); ++i) {
    fmt::print("  {:<17}{}\n", i == 0 ? "compiler" : "", report.compiler[i]);
  }
  fmt::print("  kernel cache     {}\n\n", report.cache);
}

ExitCode info() {
  const std::vector<std::string> sets = instruction_sets();
  fmt::print("strobe {}\n\n", STROBE_VERSION);
  fmt::print("engines\n");
  fmt::print("  cpu              {}\n", availability(Engine::cpu, DeviceType::cpu));
  fmt::print("  ampere           {}\n", availability(Engine::ampere, DeviceType::cuda));
  fmt::print("  hopper           {}\n\n", availability(Engine::hopper, DeviceType::cuda));
  print_gpu(gpu_report());
  fmt::print("processor\n");
  fmt::print("  name             {}\n", processor_name());
  fmt::print("  threads          {}\n", resolved_threads(0));
  fmt::print("  caches           {}\n", cache_sizes());
  fmt::print("  features         {}\n", fmt::join(processor_features(), " "));
  fmt::print("  instruction set  {}, chosen of {}\n", sets.front(), fmt::join(sets, ", "));
  return ExitCode::ok;
}

}  // namespace

void add_info_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App& command = *app.add_subcommand("info", "Show the engines, the processor and the chosen instruction set");
  command.footer("Example:\n  strobe info");
  command.callback([&exit_code] { exit_code = info(); });
}

}  // namespace strobe::program
