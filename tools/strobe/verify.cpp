// SPDX-License-Identifier: Apache-2.0
// strobe verify: the error of every result against float64, and against the bound that the arithmetic implies.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention_tensors.h"
#include "bench/standard_attention.h"
#include "commands.h"
#include "device_run.h"
#include "flags.h"
#include "input_files.h"
#include "io/progress.h"
#include "json_flag.h"
#include "number_flag.h"
#include "output.h"
#include "reference/bound/arithmetic.h"
#include "reference/bound/reference.h"
#include "strobe/plan.h"
#include "table.h"
#include "verify_eight_bit.h"
#include "verify_eight_bit_files.h"

namespace strobe::program {
namespace {

constexpr const char* kVerifyFooter =
    R"(Two kinds of inputs: normal, N(0,1); and outliers,
N(0,1) + N(0,100) * Bernoulli(0.001), with which FlashAttention-3 (2024) shows
what low precision does to attention. dO is normal in both.

RMSE is the root mean square error against float64; "ratio" is standard
attention's over Strobe's. "worst/bound" is the worst element's error over the
error that float32 accumulation and one rounding of the result (on a GPU also
of P) may leave in it: above 1, Strobe fails and the exit code is 1. Standard
attention, which keeps S and P in the inputs' dtype, is shown beside it and
cannot fail.

Examples:
  strobe verify
  strobe verify --dtype bfloat16 --causal --seqlen 2048 --heads-kv 2
  strobe verify --inputs outliers --pass forward --seed 7
  strobe verify --device cuda --seqlen 1024 --causal
  strobe verify --eight-bit --seqlen 4096 --head-dim 128
  strobe verify --eight-bit --q q.npy --k k.npy --v v.npy --causal)";

struct VerifyFlags {
  ShapeFlags shape{.seqlen_q = 512, .heads_q = 4, .head_dim = 64};
  OptionFlags options;
  ModifierFlags modifiers;
  ExecutionFlags execution;
  std::vector<std::string> dtypes;
  std::vector<std::string> inputs{"normal", "outliers"};
  std::string pass = "both";
  std::uint64_t seed = 0;
  bool eight_bit = false;
  InputFlags files;
  std::optional<float> max_rmse;
  JsonFlag json;
};

/// What the device's engine computes, where the flags leave it open.
void fill_in(VerifyFlags& flags) {
  if (!flags.dtypes.empty()) return;
  flags.dtypes = flags.execution.on_gpu() ? std::vector<std::string>{"float16", "bfloat16"} : dtype_names();
}

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
  /// `title` says what is compared.
  Verification(const VerifyFlags& flags, const Modifiers& modifiers, std::string title)
      : flags_(flags),
        modifiers_(modifiers),
        title_(std::move(title)),
        options_(flags.options.options()),
        execution_(flags.execution.execution()),
        device_(flags.execution.tensor_device()),
        threads_(resolved_threads(execution_.threads)),
        progress_("verify", steps(flags), "steps") {
    progress_.update(0);
  }

  /// Adds one row for every result of one kind of inputs in one dtype. Standard attention is left out where it lacks an
  /// option.
  Status add_rows(const std::string& inputs, const std::string& dtype) {
    const Distribution distribution = inputs == "normal" ? Distribution::normal : Distribution::outliers;
    AttentionTensors ours = random_tensors(flags_.shape.shape(), dtype_of(dtype), distribution, flags_.seed);
    ours.modifiers = modifiers_;
    ours.random.seed = flags_.seed;
    ours.allocate_outputs(flags_.options.max_logits, options_.normalize);
    AttentionTensors standard = ours;
    const RowNames names{inputs, dtype};
    if (Status status = add_forward(names, ours, standard); !status.ok()) return status;
    return flags_.pass == "forward" ? Status() : add_backward(names, ours, standard);
  }

  /// Nothing is reported on the way any more.
  void finish() { progress_.finish(); }

  nlohmann::ordered_json json() const {
    return {{"title", title_}, {"passed", failures_.empty()}, {"failures", failures_}, {"rows", rows_}};
  }

  ExitCode print() const {
    print_wrapped(title_ + "\n\n");
    print_text("{}\n", table_.text(output_columns()));
    if (failures_.empty()) {
      print_text("pass: every element is within its bound\n");
      return ExitCode::ok;
    }
    for (const std::string& failure : failures_) print_wrapped(fmt::format("FAIL: {}\n", failure));
    return ExitCode::check_failed;
  }

 private:
  struct RowNames {
    std::string inputs, dtype;
  };

  /// Of a pass: Strobe's, standard attention's and the reference's.
  static constexpr std::int64_t kStepsOfPass = 3;

  static std::int64_t steps(const VerifyFlags& flags) {
    const std::int64_t passes = flags.pass == "forward" ? 1 : 2;  // a backward needs a forward's O and LSE
    return static_cast<std::int64_t>(flags.inputs.size() * flags.dtypes.size()) * passes * kStepsOfPass;
  }

  /// What goes before is done.
  void step() { progress_.update(++steps_done_); }

  Status add_forward(const RowNames& names, AttentionTensors& ours, AttentionTensors& standard) {
    const Result<Plan> plan = plan_on(device_, ours.forward(), options_, execution_);
    if (!plan.ok()) return plan.status();
    if (Status status = run_on(device_, *plan, ours.forward()).status(); !status.ok()) return status;
    step();
    Status other = bench::standard_forward(standard.forward(), options_, threads_);
    if (!other.ok() && other.code() != StatusCode::unsupported) return other;
    step();
    if (flags_.pass == "backward") {
      step();
      return {};
    }
    const reference::ArithmeticModel model = reference::arithmetic_of(*plan);
    const reference::ForwardResult expected = reference::forward(ours.forward(), options_, model, threads_);
    step();
    add_row(names, "O", ours.o, other.ok() ? &standard.o : nullptr, expected.o);
    if (!ours.lse.shape.empty()) add_row(names, "LSE", ours.lse, other.ok() ? &standard.lse : nullptr, expected.lse);
    if (flags_.options.max_logits) add_row(names, "max", ours.max_logits, nullptr, expected.max_logits);
    return {};
  }

  Status add_backward(const RowNames& names, AttentionTensors& ours, AttentionTensors& standard) {
    const Result<Plan> plan = plan_on(device_, ours.backward(), options_, execution_);
    if (!plan.ok()) return plan.status();
    if (Status status = run_on(device_, *plan, ours.backward()).status(); !status.ok()) return status;
    step();
    Status other = bench::standard_backward(standard.backward(), options_, threads_);
    if (!other.ok() && other.code() != StatusCode::unsupported) return other;
    step();
    const reference::ArithmeticModel model = reference::arithmetic_of(*plan);
    const reference::BackwardResult expected = reference::backward(ours.backward(), options_, model, threads_);
    step();
    add_row(names, "dQ", ours.dq, other.ok() ? &standard.dq : nullptr, expected.dq);
    add_row(names, "dK", ours.dk, other.ok() ? &standard.dk : nullptr, expected.dk);
    add_row(names, "dV", ours.dv, other.ok() ? &standard.dv : nullptr, expected.dv);
    if (!ours.d_bias.shape.empty()) add_row(names, "dBias", ours.d_bias, nullptr, expected.d_bias);
    if (!ours.d_sink.shape.empty()) add_row(names, "dSink", ours.d_sink, nullptr, expected.d_sink);
    for (std::size_t i = 0; i < ours.d_captures.size(); ++i) {
      if (ours.d_captures[i].shape.empty()) continue;
      const std::string name = fmt::format("d_{}", modifiers_.expression->function.captures()[i].name);
      add_row(names, name, ours.d_captures[i], nullptr, expected.d_captures[i]);
    }
    return {};
  }

  /// `standard` is null where standard attention has no such result.
  void add_row(const RowNames& names, const std::string& tensor, const io::HostTensor& ours,
               const io::HostTensor* standard, const reference::BoundedTensor& expected) {
    const Accuracy own = accuracy(ours, expected);
    add_json(names, tensor, "strobe", own);
    std::vector<std::string> others(3, "-");  // RMSE, ratio, worst / bound
    if (standard != nullptr) {
      const Accuracy other = accuracy(*standard, expected);
      add_json(names, tensor, "standard", other);
      others = {fmt::format("{:.2e}", other.rmse), own.rmse > 0.0 ? fmt::format("{:.2f}x", other.rmse / own.rmse) : "",
                fmt::format("{:.3f}", other.worst.ratio)};
    }
    table_.add_row({names.inputs, names.dtype, tensor, fmt::format("{:.2e}", own.rmse), others[0], others[1],
                    fmt::format("{:.3f}", own.worst.ratio), others[2]});
    if (!(own.worst.ratio <= 1.0)) {
      failures_.push_back(
          fmt::format("{}, {}, {}: {}", names.inputs, names.dtype, tensor, reference::describe(own.worst, view(ours))));
    }
  }

  void add_json(const RowNames& names, const std::string& tensor, const char* implementation,
                const Accuracy& accuracy) {
    rows_.push_back({{"inputs", names.inputs},
                     {"dtype", names.dtype},
                     {"tensor", tensor},
                     {"implementation", implementation},
                     {"rmse", accuracy.rmse},
                     {"worst_of_bound", accuracy.worst.ratio}});
  }

  const VerifyFlags& flags_;
  const Modifiers& modifiers_;
  const std::string title_;
  const AttentionOptions options_;
  const Execution execution_;
  const Device device_;
  const int threads_;
  io::Progress progress_;
  std::int64_t steps_done_ = 0;
  Table table_{{{"inputs", Table::Align::left},
                {"dtype", Table::Align::left},
                {"tensor", Table::Align::left},
                {"RMSE\nstrobe"},
                {"\nstandard"},
                {"\nratio"},
                {"worst/bound\nstrobe"},
                {"\nstandard"}}};
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
  std::vector<std::string> failures_;
};

/// The plan of the wanted passes' last.
Result<Plan> planned(const VerifyFlags& flags, DType dtype, const Modifiers& modifiers) {
  const Shape shape = flags.shape.shape();
  const AttentionOptions options = flags.options.options();
  const Execution execution = flags.execution.execution();
  const Device device = flags.execution.tensor_device();
  if (flags.pass == "forward")
    return plan_on(device, planned_forward(shape, dtype, modifiers, options.normalize), options, execution);
  return plan_on(device, planned_backward(shape, dtype, modifiers, options.normalize), options, execution);
}

ExitCode verify_floats(const VerifyFlags& flags) {
  const Shape shape = flags.shape.shape();
  const Result<Modifiers> modifiers = flags.modifiers.read(shape.heads_q);
  if (!modifiers.ok()) return report(modifiers.status());
  std::string engine;
  for (const std::string& dtype : flags.dtypes) {  // what the library rejects, it rejects before anything is allocated
    const Result<Plan> plan = planned(flags, dtype_of(dtype), *modifiers);
    if (!plan.ok()) return report(plan.status());
    engine = engine_text(*plan);
  }
  Verification verification(flags, *modifiers,
                            fmt::format("against float64: {}, {}{}, seed {}, engine {}", shape.describe(),
                                        flags.options.describe(), flags.modifiers.describe(), flags.seed, engine));
  Status status;
  for (const std::string& inputs : flags.inputs) {
    for (const std::string& dtype : flags.dtypes) {
      if (status.ok()) status = verification.add_rows(inputs, dtype);
    }
  }
  verification.finish();
  if (!status.ok()) return report(status);
  const ExitCode checked = verification.print();
  const ExitCode written = report(flags.json.write(verification.json()));
  return checked == ExitCode::ok ? written : checked;
}

ExitCode verify(const VerifyFlags& flags) {
  if (flags.eight_bit && flags.execution.on_gpu()) {
    return report({StatusCode::unsupported, "--eight-bit runs on the cpu: leave --device out"});
  }
  if (flags.eight_bit && !flags.modifiers.describe().empty()) {
    return report({StatusCode::unsupported, "--eight-bit does not take what joins the scores: leave out" +
                                                flags.modifiers.describe().substr(1)});
  }
  if (Status status = flags.json.prepare(); !status.ok()) return report(status);
  if (!flags.eight_bit) return verify_floats(flags);
  const AttentionOptions options = flags.options.options();
  const Execution execution = flags.execution.execution();
  if (!flags.files.given()) return verify_eight_bit(flags.shape, options, execution, flags.seed, flags.json);
  return verify_eight_bit_files(flags.files, flags.max_rmse, options, execution, flags.json);
}

/// Says which flags go with --eight-bit and which without.
void add_eight_bit(CLI::App& command, VerifyFlags& flags) {
  CLI::Option* const eight_bit =
      command.add_flag("--eight-bit", flags.eight_bit,
                       "print what each ingredient of 8-bit attention does to the error, on six kinds of inputs or on "
                       "your own, and what these need");
  for (const char* const name : {"--dtype", "--inputs", "--pass", "--batch", "--heads-kv", "--head-dim-v"}) {
    eight_bit->excludes(command.get_option(name));
  }
  flags.files.add_to(command);
  CLI::Option* const max_rmse =
      add_number(command, "--max-rmse", flags.max_rmse, "fail where no 8-bit element keeps O's RMSE to this", 0.0F)
          ->type_name("X")
          ->group("Files");
  for (const char* const name : {"--q", "--input"}) {
    CLI::Option* const file = command.get_option(name);
    file->needs(eight_bit);
    for (const char* const shape : {"--seqlen", "--seqlen-k", "--heads", "--head-dim", "--seed"}) {
      file->excludes(command.get_option(shape));
    }
  }
  max_rmse->needs(eight_bit);
}

}  // namespace

void add_verify_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App& command = *app.add_subcommand("verify", "Compare with float64, beside standard attention");
  command.footer(kVerifyFooter);
  const auto flags = std::make_shared<VerifyFlags>();
  command.add_option("--dtype", flags->dtypes, "float32, float16, bfloat16 (default all that the device's engine has)")
      ->check(CLI::IsMember(dtype_names()))
      ->delimiter(',')
      ->type_name("NAME,...");
  command.add_option("--inputs", flags->inputs, "normal, outliers (default both)")
      ->check(CLI::IsMember({"normal", "outliers"}))
      ->delimiter(',')
      ->type_name("NAME,...");
  command.add_option("--pass", flags->pass, "forward, backward or both")
      ->check(CLI::IsMember({"forward", "backward", "both"}))
      ->capture_default_str()
      ->type_name("NAME");
  add_number(command, "--seed", flags->seed, "of the pseudo-random inputs and of dropout")
      ->type_name("N")
      ->capture_default_str();
  flags->shape.add_to(command);
  add_eight_bit(command, *flags);
  flags->options.add_to(command);
  flags->modifiers.add_to(command);
  flags->execution.add_to(command);
  flags->json.add_to(command);
  command.callback([flags, &exit_code] {
    fill_in(*flags);
    exit_code = verify(*flags);
  });
}

}  // namespace strobe::program
