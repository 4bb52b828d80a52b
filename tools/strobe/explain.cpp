// SPDX-License-Identifier: Apache-2.0
// strobe explain: which engine and tiles a call would get, and why, without running it.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "attention_tensors.h"
#include "commands.h"
#include "flags.h"
#include "json_flag.h"
#include "output.h"
#include "strobe/plan.h"

namespace strobe::program {
namespace {

constexpr const char* kExplainFooter = R"(Examples:
  strobe explain --seqlen 8192 --heads 16 --head-dim 128 --causal
  strobe explain --dtype bfloat16 --heads 32 --heads-kv 8 --backward --threads 4
  strobe explain --device cuda --dtype bfloat16 --seqlen 16384 --causal
  strobe explain --dtype bfloat16 --heads 16 --heads-kv 1 --head-dim 64 --head-dim-v 512 --qv)";

struct ExplainFlags {
  ShapeFlags shape;
  OptionFlags options;
  ModifierFlags modifiers;
  ExecutionFlags execution;
  std::string dtype = "float32";
  bool backward = false;
  bool qv = false;
  JsonFlag json;
};

std::string describe_options(const ExplainFlags& flags) {
  return flags.options.describe() + flags.modifiers.describe() + (flags.qv ? ", qv" : "");
}

Result<Plan> planned(const ExplainFlags& flags, const Modifiers& modifiers) {
  const Shape shape = flags.shape.shape();
  const DType dtype = dtype_of(flags.dtype);
  const AttentionOptions options = flags.options.options();
  const Execution execution = flags.execution.execution();
  const Device device = flags.execution.tensor_device();
  if (flags.backward) {
    BackwardArguments backward = planned_backward(shape, dtype, modifiers, options.normalize);
    if (flags.qv) {
      backward.qv = backward.o;
      backward.dqv = backward.dq;
      backward.dqv.shape = backward.o.shape;
      backward.dqv.strides = backward.o.strides;
    }
    return plan_on(device, backward, options, execution);
  }
  ForwardArguments forward = planned_forward(shape, dtype, modifiers, options.normalize);
  if (flags.qv) forward.qv = forward.o;
  if (flags.options.max_logits) forward.max_logits = tensor(static_cast<float*>(nullptr), {shape.batch, shape.heads_q});
  return plan_on(device, forward, options, execution);
}

nlohmann::ordered_json json_of(const ExplainFlags& flags, const Plan& plan) {
  const Shape shape = flags.shape.shape();
  std::vector<std::string> lines;
  for (std::istringstream text(plan.explain()); text && !text.eof();) std::getline(text, lines.emplace_back());
  std::erase(lines, "");
  return {{"pass", flags.backward ? "backward" : "forward"},
          {"dtype", flags.dtype},
          {"batch", shape.batch},
          {"seqlen_q", shape.seqlen_q},
          {"seqlen_k", shape.seqlen_k},
          {"heads_q", shape.heads_q},
          {"heads_kv", shape.heads_kv},
          {"head_dim", shape.head_dim},
          {"head_dim_v", shape.head_dim_v},
          {"options", describe_options(flags)},
          {"engine", name_of(plan.engine())},
          {"kernels", plan.kernels()},
          {"probability_dtype", name_of(plan.probability_dtype())},
          {"workspace_bytes", plan.workspace_size()},
          {"explanation", lines}};
}

ExitCode explain(const ExplainFlags& flags) {
  if (Status status = flags.json.prepare(); !status.ok()) return report(status);
  const Shape shape = flags.shape.shape();
  const Result<Modifiers> modifiers = flags.modifiers.read(shape.heads_q);
  if (!modifiers.ok()) return report(modifiers.status());
  const Result<Plan> plan = planned(flags, *modifiers);
  if (!plan.ok()) return report(plan.status());
  constexpr std::size_t kTextColumn = 14;  // of the lines of a plan
  print_wrapped(fmt::format("{}, {}, {}, {}\n\n", flags.backward ? "backward" : "forward", flags.dtype,
                            shape.describe(), describe_options(flags)));
  print_wrapped(plan->explain(), kTextColumn);
  return report(flags.json.write(json_of(flags, *plan)));
}

}  // namespace

void add_explain_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App& command = *app.add_subcommand("explain", "Say which engine and tiles a call gets, and why");
  command.footer(kExplainFooter);
  const auto flags = std::make_shared<ExplainFlags>();
  command.add_option("--dtype", flags->dtype, "of Q, K, V and O: float32, float16 or bfloat16")
      ->check(CLI::IsMember(dtype_names()))
      ->type_name("NAME")
      ->capture_default_str()
      ->group("Shape");
  command.add_flag("--backward", flags->backward, "the backward's plan instead of the forward's");
  flags->shape.add_to(command);
  flags->options.add_to(command);
  flags->modifiers.add_to(command);
  command.add_flag("--qv", flags->qv, "a second query, [batch, seqlen, heads, head_dim_v], which meets V")
      ->group("Attention");
  flags->execution.add_to(command);
  flags->json.add_to(command);
  command.callback([flags, &exit_code] { exit_code = explain(*flags); });
}

}  // namespace strobe::program
