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
#include "output.h"
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
  print_text("GPU\n");
  print_text("  driver           {}\n", report.driver);
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    print_text("  device {:<10}{}\n", i, report.devices[i]);
  }
  print_text("  compiled ahead   {}\n", report.pack);
  for (std::size_t i = 0; i < report.compiler.size(); ++i) {
    print_text("  {:<17}{}\n", i == 0 ? "compiler" : "", report.compiler[i]);
  }
  print_text("  kernel cache     {}\n\n", report.cache);
}

ExitCode info() {
  const std::vector<std::string> sets = instruction_sets();
  print_text("strobe {}\n\n", STROBE_VERSION);
  print_text("engines\n");
  print_text("  cpu              {}\n", availability(Engine::cpu, DeviceType::cpu));
  print_text("  gpu              {}\n\n", availability(Engine::gpu, DeviceType::cuda));
  print_gpu(gpu_report());
  print_text("processor\n");
  print_text("  name             {}\n", processor_name());
  print_text("  threads          {}\n", resolved_threads(0));
  print_text("  caches           {}\n", cache_sizes());
  print_text("  features         {}\n", fmt::join(processor_features(), " "));
  print_text("  instruction set  {}, chosen of {}\n", sets.front(), fmt::join(sets, ", "));
  return ExitCode::ok;
}

}  // namespace

void add_info_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App& command = *app.add_subcommand("info", "Show the engines, the processor and the chosen instruction set");
  command.footer("Example:\n  strobe info");
  command.callback([&exit_code] { exit_code = info(); });
}

}  // namespace strobe::program
