// strobe verify: the error of every result against float64, and against the bound that the arithmetic implies.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "attention_tensors.h"
#include "bench/standard_attention.h"
#include "commands.h"
#include "cpu/reference/reference.h"
#include "flags.h"
#include "strobe/plan.h"
#include "table.h"

namespace strobe::program {
namespace {

constexpr const char* kFooter =
    R"(Two kinds of inputs: normal, N(0,1); and outliers, N(0,1) + N(0,100) * Bernoulli(0.001), with which
FlashAttention-3 (2024) shows what low precision does to attention. dO is normal in both.

RMSE is the root mean square error against float64; "ratio" is standard attention's over Strobe's.
"worst/bound" is the worst element's error over the error that float32 accumulation and one rounding
of the result may leave in it: above 1, Strobe fails and the exit code is 1. Standard attention, which
keeps S and P in the inputs' dtype, is shown beside it and cannot fail.

Examples:
  strobe verify
  strobe verify --dtype bfloat16 --causal --seqlen 2048 --heads 8 --heads-kv 2
  strobe verify --inputs outliers --pass forward --seed 7)";

struct VerifyFlags {
  ShapeFlags shape{.seqlen_q = 512, .heads_q = 4, .head_dim = 64};
  OptionFlags options;
  ExecutionFlags execution;
  std::vector<std::string> dtypes = dtype_names();
  std::vector<std::string> inputs{"normal", "outliers"};
  std::string pass = "both";
  std::uint64_t seed = 0;
};

/// One result tensor's error.
struct Accuracy {
  double rmse = 0.0;
  reference::WorstElement worst;
};

Accuracy accuracy(const io::HostTensor& actual, const reference::BoundedTensor& expected) {
  return {reference::root_mean_square_error(view(actual), expected), reference::worst_element(view(actual), expected)};
}

class Verification {
 public:
  explicit Verification(const VerifyFlags& flags) : flags_(flags) {}

  /// Adds one row for every result of one kind of inputs in one dtype.
  Status add_rows(const std::string& inputs, const std::string& dtype) {
    const Distribution distribution = inputs == "normal" ? Distribution::normal : Distribution::outliers;
    AttentionTensors ours = random_tensors(flags_.shape.shape(), dtype_of(dtype), distribution, flags_.seed);
    AttentionTensors standard = ours;
    const AttentionOptions options = flags_.options.options();
    const Execution execution = flags_.execution.execution();
    const int threads = resolved_threads(execution.threads);

    if (Status status = forward(ours.forward(), options, execution); !status.ok()) return status;
    if (Status status = bench::standard_forward(standard.forward(), options, threads); !status.ok()) return status;
    if (flags_.pass != "backward") {
      const reference::ForwardResult expected = reference::forward(ours.forward(), options, {}, threads);
      add_row(inputs, dtype, "O", ours.o, standard.o, expected.o);
      add_row(inputs, dtype, "LSE", ours.lse, standard.lse, expected.lse);
    }
    if (flags_.pass == "forward") return {};

    if (Status status = backward(ours.backward(), options, execution); !status.ok()) return status;
    if (Status status = bench::standard_backward(standard.backward(), options, threads); !status.ok()) return status;
    const reference::BackwardResult expected = reference::backward(ours.backward(), options, {}, threads);
    add_row(inputs, dtype, "dQ", ours.dq, standard.dq, expected.dq);
    add_row(inputs, dtype, "dK", ours.dk, standard.dk, expected.dk);
    add_row(inputs, dtype, "dV", ours.dv, standard.dv, expected.dv);
    return {};
  }

  ExitCode print() const {
    fmt::print("{}\n", table_.text());
    if (failures_.empty()) {
      fmt::print("pass: every element is within its bound\n");
      return ExitCode::ok;
    }
    for (const std::string& failure : failures_) fmt::print("FAIL: {}\n", failure);
    return ExitCode::check_failed;
  }

 private:
  void add_row(const std::string& inputs, const std::string& dtype, const char* name, const io::HostTensor& ours,
               const io::HostTensor& standard, const reference::BoundedTensor& expected) {
    const Accuracy own = accuracy(ours, expected);
    const Accuracy other = accuracy(standard, expected);
    const std::string ratio = own.rmse > 0.0 ? fmt::format("{:.2f}x", other.rmse / own.rmse) : "";
    table_.add_row({inputs, dtype, name, fmt::format("{:.2e}", own.rmse), fmt::format("{:.2e}", other.rmse), ratio,
                    fmt::format("{:.3f}", own.worst.ratio), fmt::format("{:.3f}", other.worst.ratio)});
    if (!(own.worst.ratio <= 1.0)) {
      failures_.push_back(
          fmt::format("{}, {}, {}: {}", inputs, dtype, name, reference::describe(own.worst, view(ours))));
    }
  }

  const VerifyFlags& flags_;
  Table table_{{{"inputs", Table::Align::left},
                {"dtype", Table::Align::left},
                {"tensor", Table::Align::left},
                {"RMSE strobe"},
                {"standard"},
                {"ratio"},
                {"worst/bound strobe"},
                {"standard"}}};
  std::vector<std::string> failures_;
};

ExitCode verify(const VerifyFlags& flags) {
  const Shape shape = flags.shape.shape();
  for (const std::string& dtype : flags.dtypes) {  // what the library refuses, it refuses before anything is allocated
    const Result<Plan> plan =
        make_plan(planned_backward(shape, dtype_of(dtype)), flags.options.options(), flags.execution.execution());
    if (!plan.ok()) return report(plan.status());
  }
  fmt::print("against float64: {}, {}, seed {}, engine {}\n\n", shape.describe(), flags.options.describe(), flags.seed,
             flags.execution.engine);
  Verification verification(flags);
  for (const std::string& inputs : flags.inputs) {
    for (const std::string& dtype : flags.dtypes) {
      if (Status status = verification.add_rows(inputs, dtype); !status.ok()) return report(status);
    }
  }
  return verification.print();
}

}  // namespace

void add_verify_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App& command = *app.add_subcommand("verify", "Compare with float64, beside standard attention");
  command.footer(kFooter);
  const auto flags = std::make_shared<VerifyFlags>();
  command.add_option("--dtype", flags->dtypes, "float32, float16, bfloat16 (default all)")
      ->check(CLI::IsMember(dtype_names()))
      ->delimiter(',')
      ->type_name("NAME,...");
  command.add_option("--inputs", flags->inputs, "normal, outliers (default both)")
      ->check(CLI::IsMember({"normal", "outliers"}))
      ->delimiter(',')
      ->type_name("NAME,...");
  command.add_option("--pass", flags->pass, "forward, backward or both")
      ->check(CLI::IsMember({"forward", "backward", "both"}))
      ->type_name("NAME")
      ->capture_default_str();
  command.add_option("--seed", flags->seed, "of the pseudo-random inputs")->type_name("N")->capture_default_str();
  flags->shape.add_to(command);
  flags->options.add_to(command);
  flags->execution.add_to(command);
  command.callback([flags, &exit_code] { exit_code = verify(*flags); });
}

}  // namespace strobe::program
