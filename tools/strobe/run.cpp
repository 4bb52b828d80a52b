// SPDX-License-Identifier: Apache-2.0
// strobe run: attention on tensors from files.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention_tensors.h"
#include "commands.h"
#include "device_run.h"
#include "flags.h"
#include "input_files.h"
#include "io/atomic_file.h"
#include "io/npy.h"
#include "io/printable.h"
#include "json_flag.h"
#include "number_flag.h"
#include "output.h"
#include "strobe/plan.h"

namespace strobe::program {
namespace {

constexpr const char* kRunFooter =
    R"(Tensors are [batch, seqlen, heads, head_dim], float32, float16 or bfloat16 (in
.npy: '<V2', as ml_dtypes saves it). A .npy may also come through a pipe, or, as
-, from standard input.
Written to --out: o.npy and lse.npy [batch, heads, seqlen]; with --do also
dq.npy, dk.npy and dv.npy, and dbias.npy or dsink.npy for a --bias or --sink;
with --max-logits max_logits.npy [batch, heads]. There is no lse.npy with
--normalize none.
int8 and float8 (in .npy: '<V1') q, k and v come with --input, which then also
holds q_descale, k_descale and v_descale and may hold q_shift, as
strobe.quantize of the Python package gives them; O is float32, or --dtype.

Examples:
  strobe run --q q.npy --k k.npy --v v.npy --causal --out results
  strobe run --input qkv.safetensors --dtype bfloat16 --window 1024 0
  strobe run --q q.npy --k k.npy --v v.npy --do do.npy --threads 4
  strobe run --q q.npy --k k.npy --v v.npy --dropout 0.1 --seed 7 --alibi
  strobe run --input qkv.safetensors --dtype bfloat16 --device cuda
  zcat q.npy.gz | strobe run --q - --k k.npy --v v.npy --json -)";

struct RunFlags {
  InputFlags inputs;
  std::string d_o;
  std::string out = ".";
  std::string dtype;
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> v_rotation;
  OptionFlags options;
  ModifierFlags modifiers;
  ExecutionFlags execution;
  JsonFlag json;
};

/// invalid_argument where two tensors, or a file that is read in any order, would come from standard input.
Status check_standard_input(const RunFlags& flags) {
  if (flags.inputs.input == kStandardInput) {
    return {StatusCode::invalid_argument,
            "--input is -: a .safetensors file is read in any order, so it cannot come from standard input; save it"};
  }
  int readers = 0;
  for (const std::string* path : {&flags.inputs.q, &flags.inputs.k, &flags.inputs.v, &flags.d_o, &flags.modifiers.bias,
                                  &flags.modifiers.sink, &flags.modifiers.block_mask}) {
    if (*path == kStandardInput) ++readers;
  }
  for (const std::string& capture : flags.modifiers.texts.captures) {
    if (capture.ends_with(fmt::format("={}", kStandardInput))) ++readers;
  }
  if (readers < 2) return {};
  return {StatusCode::invalid_argument, fmt::format("{} tensors are -: standard input holds one", readers)};
}

/// What 8-bit q, k and v have beside them.
Status read_scales(const io::SafetensorsFile& container, AttentionTensors& tensors) {
  const std::vector<std::string> names = container.names();
  for (const auto& [name, to] : {std::pair{"q_descale", &tensors.q_descale}, std::pair{"k_descale", &tensors.k_descale},
                                 std::pair{"v_descale", &tensors.v_descale}, std::pair{"q_shift", &tensors.q_shift}}) {
    if (to == &tensors.q_shift && std::ranges::find(names, name) == names.end()) continue;
    Result<io::HostTensor> tensor = container.read(name);
    if (!tensor.ok()) return tensor.status();
    *to = std::move(*tensor);
  }
  return {};
}

/// q, k, v and what else was given, as the files hold them.
Result<AttentionTensors> read_files(const RunFlags& flags) {
  Result<InputTensors> inputs = flags.inputs.read();
  if (!inputs.ok()) return inputs.status();
  AttentionTensors tensors;
  tensors.q = std::move(inputs->q);
  tensors.k = std::move(inputs->k);
  tensors.v = std::move(inputs->v);
  if (inputs->container && size_of(tensors.q.dtype) == 1) {
    if (Status status = read_scales(*inputs->container, tensors); !status.ok()) return status;
  }
  if (flags.v_rotation) tensors.v_rotation = {.given = true, .seed = *flags.v_rotation};
  Result<Modifiers> modifiers = flags.modifiers.read(tensors.q.shape[2]);
  if (!modifiers.ok()) return modifiers.status();
  tensors.modifiers = std::move(*modifiers);
  tensors.random.seed = flags.seed;
  if (flags.d_o.empty()) return tensors;
  Result<io::HostTensor> d_o = read_input(flags.d_o, "do");
  if (!d_o.ok()) return d_o.status();
  tensors.d_o = std::move(*d_o);
  return tensors;
}

void convert_all(AttentionTensors& tensors, DType dtype) {
  if (size_of(tensors.q.dtype) == 1) {
    tensors.output = dtype;
    return;
  }
  for (io::HostTensor* tensor : {&tensors.q, &tensors.k, &tensors.v, &tensors.d_o}) *tensor = converted(*tensor, dtype);
}

void print_tensor(const std::string& name, const io::HostTensor& tensor) {
  print_text("  {:<4} [{}] {}\n", name, fmt::join(tensor.shape, ", "), name_of(tensor.dtype));
}

nlohmann::ordered_json json_of(const std::string& name, const io::HostTensor& tensor) {
  return {{"name", name}, {"shape", tensor.shape}, {"dtype", name_of(tensor.dtype)}};
}

/// Says how long a pass took, and adds it to `all`; its Status.
Status add_time(const char* pass, const Result<double>& milliseconds, std::vector<double>& all) {
  if (!milliseconds.ok()) return milliseconds.status();
  print_text("{:<9} {:.{}f} ms\n", pass, *milliseconds, *milliseconds < 1.0 ? 3 : 1);
  all.push_back(*milliseconds);
  return {};
}

Status make_directory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!error) return {};
  return {StatusCode::invalid_argument,
          fmt::format("cannot make the directory '{}': {}", directory.string(), error.message())};
}

/// Every result that there is, by the name of its file.
std::vector<std::pair<std::string, const io::HostTensor*>> results(const AttentionTensors& tensors, bool backward) {
  std::vector<std::pair<std::string, const io::HostTensor*>> all{
      {"o", &tensors.o}, {"lse", &tensors.lse}, {"max_logits", &tensors.max_logits}};
  if (backward) {
    all.insert(all.end(), {{"dq", &tensors.dq},
                           {"dk", &tensors.dk},
                           {"dv", &tensors.dv},
                           {"dbias", &tensors.d_bias},
                           {"dsink", &tensors.d_sink}});
    for (std::size_t i = 0; i < tensors.d_captures.size(); ++i) {
      const CaptureType& capture = tensors.modifiers.expression->function.captures()[i];
      all.emplace_back(fmt::format("d_{}", capture.name), &tensors.d_captures[i]);
    }
  }
  std::erase_if(all, [](const auto& result) { return result.second->shape.empty(); });
  return all;
}

std::filesystem::path file_of(const std::filesystem::path& directory, const std::string& result) {
  return directory / fmt::format("{}.npy", result);
}

/// Before anything is computed: whether the results could be written.
Status check_directory(const std::filesystem::path& directory, const AttentionTensors& tensors, bool backward) {
  if (Status status = make_directory(directory); !status.ok()) return status;
  for (const auto& [name, tensor] : results(tensors, backward)) {
    if (Status status = io::check_writable(file_of(directory, name)); !status.ok()) return status;
  }
  return {};
}

/// Writes all results before the first gets its name: when one cannot be written, the directory is as it was.
Status write_results(const std::filesystem::path& directory, const AttentionTensors& tensors, bool backward) {
  const auto all = results(tensors, backward);
  std::vector<io::AtomicFile> files;
  for (const auto& [name, tensor] : all) {
    Result<io::AtomicFile> file = io::AtomicFile::create(file_of(directory, name));
    if (!file.ok()) return file.status();
    if (Status status = io::write_npy(*file, *tensor); !status.ok()) return status;
    files.push_back(std::move(*file));
  }
  for (io::AtomicFile& file : files) {
    if (Status status = file.commit(); !status.ok()) return status;
  }
  print_text("wrote to {}\n", io::printable(directory.string()));
  for (const auto& [name, tensor] : all) print_tensor(name, *tensor);
  return {};
}

/// What was computed, from what, and where it lies.
nlohmann::ordered_json json_of(const RunFlags& flags, const Plan& plan, const AttentionTensors& tensors,
                               const std::vector<double>& milliseconds) {
  const bool backward = milliseconds.size() > 1;
  nlohmann::ordered_json document{
      {"engine", name_of(plan.engine())},
      {"kernels", plan.kernels()},
      {"options", flags.options.describe() + flags.modifiers.describe()},
      {"inputs", {json_of("q", tensors.q), json_of("k", tensors.k), json_of("v", tensors.v)}},
      {"forward_ms", milliseconds[0]}};
  if (backward) document["backward_ms"] = milliseconds[1];
  for (const auto& [name, tensor] : results(tensors, backward)) {
    document["outputs"].push_back(json_of(name, *tensor));
    document["outputs"].back()["file"] = file_of(flags.out, name).string();
  }
  return document;
}

ExitCode run(const RunFlags& flags) {
  if (!flags.inputs.given()) {
    return report({StatusCode::invalid_argument, "run needs --q, --k and --v, or --input (see strobe run --help)"});
  }
  if (Status status = check_standard_input(flags); !status.ok()) return report(status);
  if (Status status = flags.json.prepare(); !status.ok()) return report(status);
  Result<AttentionTensors> read = read_files(flags);
  if (!read.ok()) return report(read.status());
  AttentionTensors& tensors = *read;
  if (!flags.dtype.empty()) convert_all(tensors, dtype_of(flags.dtype));
  const AttentionOptions options = flags.options.options();
  tensors.allocate_outputs(flags.options.max_logits, options.normalize);
  const bool backward_too = !flags.d_o.empty();
  const Execution execution = flags.execution.execution();
  const Device device = flags.execution.tensor_device();
  const Result<Plan> forward = plan_on(device, tensors.forward(), options, execution);
  if (!forward.ok()) return report(forward.status());
  const Result<Plan> backward = backward_too ? plan_on(device, tensors.backward(), options, execution) : forward;
  if (!backward.ok()) return report(backward.status());
  if (Status status = check_directory(flags.out, tensors, backward_too); !status.ok()) return report(status);

  print_wrapped(fmt::format("{}, {}{}\n", engine_text(*forward), flags.options.describe(), flags.modifiers.describe()));
  print_tensor("q", tensors.q);
  print_tensor("k", tensors.k);
  print_tensor("v", tensors.v);
  std::vector<double> milliseconds;
  if (Status status = add_time("forward", run_on(device, *forward, tensors.forward()), milliseconds); !status.ok()) {
    return report(status);
  }
  if (backward_too) {
    Status status = add_time("backward", run_on(device, *backward, tensors.backward()), milliseconds);
    if (!status.ok()) return report(status);
  }
  if (Status status = write_results(flags.out, tensors, backward_too); !status.ok()) return report(status);
  return report(flags.json.write(json_of(flags, *forward, tensors, milliseconds)));
}

}  // namespace

void add_run_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App& command = *app.add_subcommand("run", "Compute attention on tensors from files");
  command.footer(kRunFooter);
  const auto flags = std::make_shared<RunFlags>();
  flags->inputs.add_to(command);
  command.add_option("--do", flags->d_o, "gradient of O (.npy); runs the backward too")
      ->check(check_not_empty)
      ->type_name("FILE")
      ->group("Files");
  command.add_option("--out", flags->out, "where the results go; made if it is not there")
      ->type_name("DIR")
      ->capture_default_str()
      ->group("Files");
  command
      .add_option("--dtype", flags->dtype,
                  "convert the inputs first (8-bit inputs: of O): float32, float16 or bfloat16")
      ->check(CLI::IsMember(dtype_names()))
      ->type_name("NAME")
      ->group("Files");
  flags->options.add_to(command);
  flags->modifiers.add_to(command);
  add_number(command, "--seed", flags->seed, "of dropout")->type_name("N")->capture_default_str()->group("Attention");
  add_number(command, "--v-rotation", flags->v_rotation,
             "8-bit inputs: the seed of the rotation of V, if it is rotated")
      ->type_name("SEED")
      ->group("Attention");
  flags->execution.add_to(command);
  flags->json.add_to(command);
  command.callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace strobe::program
