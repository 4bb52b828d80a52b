// SPDX-License-Identifier: Apache-2.0
// strobe info: what this build and this machine offer.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention_tensors.h"
#include "commands.h"
#include "flags.h"
#include "json_flag.h"
#include "machine.h"
#include "output.h"
#include "strobe/gpu_report.h"
#include "strobe/plan.h"
#include "strobe/strobe.h"

namespace strobe::program {
namespace {

using Json = nlohmann::ordered_json;

/// "available", or why a small call on tensors of that engine's device is rejected.
std::string availability(Engine engine, DeviceType device) {
  const ForwardArguments arguments =
      planned_forward({.seqlen_q = 128, .seqlen_k = 128, .head_dim = 64, .head_dim_v = 64}, DType::float16);
  const Result<Plan> plan = plan_on({device, 0}, arguments, {}, {.engine = engine});
  return plan.ok() ? "available" : "not available: " + plan.status().message();
}

/// What is shown: sections of labels with a text, or with a list of texts.
Json collect() {
  const GpuReport gpu = gpu_report();
  return {{"version", strobe_version()},
          {"engines",
           {{"cpu", availability(Engine::cpu, DeviceType::cpu)}, {"gpu", availability(Engine::gpu, DeviceType::cuda)}}},
          {"gpu",
           {{"driver", gpu.driver},
            {"devices", gpu.devices},
            {"compiled_ahead", gpu.pack},
            {"installed_kernels", gpu.installed_packs},
            {"compiler", gpu.compiler},
            {"kernel_cache", gpu.cache},
            {"tuned_choices", gpu.tuned}}},
          {"processor",
           {{"name", processor_name()},
            {"threads", resolved_threads(0)},
            {"caches", cache_sizes()},
            {"features", fmt::format("{}", fmt::join(processor_features(), " "))},
            {"instruction_sets", instruction_sets()}}}};
}

void print_line(std::string label, const std::string& text) {
  constexpr std::size_t kTextColumn = 19;
  std::ranges::replace(label, '_', ' ');
  print_wrapped(fmt::format("  {:<17}{}\n", label, text), kTextColumn);
}

void print_section(const std::string& title, const Json& section) {
  print_text("\n{}\n", title);
  for (const auto& [label, value] : section.items()) {
    if (label == "instruction_sets") {
      const auto sets = value.get<std::vector<std::string>>();
      print_line("instruction set", fmt::format("{}, chosen of {}", sets.front(), fmt::join(sets, ", ")));
      continue;
    }
    if (!value.is_array()) {
      print_line(label, value.is_string() ? value.get<std::string>() : value.dump());
      continue;
    }
    for (std::size_t i = 0; i < value.size(); ++i) print_line(i == 0 ? label : "", value[i].get<std::string>());
  }
}

ExitCode info(const JsonFlag& json) {
  if (Status status = json.prepare(); !status.ok()) return report(status);
  const Json document = collect();
  print_text("strobe {}\n", document["version"].get<std::string>());
  for (const char* const section : {"engines", "gpu", "processor"}) print_section(section, document[section]);
  return report(json.write(document));
}

}  // namespace

void add_info_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App& command = *app.add_subcommand("info", "Show the engines, the processor and the chosen instruction set");
  command.footer("Examples:\n  strobe info\n  strobe info --json -");
  const auto json = std::make_shared<JsonFlag>();
  json->add_to(command);
  command.callback([json, &exit_code] { exit_code = info(*json); });
}

}  // namespace strobe::program
