// SPDX-License-Identifier: Apache-2.0
// strobe compile: the GPU kernels that a model or a recorded run needs, before its first call.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "commands.h"
#include "gpu/compile_ahead.h"
#include "gpu/plan/known_devices.h"
#include "io/atomic_file.h"
#include "json_flag.h"
#include "model_calls.h"
#include "model_config.h"
#include "modifiers.h"
#include "option_calls.h"
#include "output.h"
#include "parallel_compile.h"
#include "recorded_calls.h"

namespace strobe::program {
namespace {

constexpr const char* kCompileFooter = R"(Examples:
  STROBE_RECORD=calls.jsonl python serve.py         record what a run calls,
  strobe compile --recorded calls.jsonl             and compile it for this machine's GPU
  strobe compile --config model/config.json         what a model needs to serve
  strobe compile --config model/config.json --kv-cache-dtype e4m3
                                                    with caches in 8 bits
  strobe compile --config config.json --training --device h100 --driver 12.8
                                                    where no GPU is: an image, say
  strobe compile --config config.json --device h100 --pack model.archive
                                                    a file for STROBE_KERNELS
  strobe compile --config config.json --mask-text "document[k] == document[q]" \
    --capture document=document.npy                 the model's calls with a text

--config reads a model's heads and their sizes, also those of global layers and
of latent attention (kv_lora_rank), its windows, chunks, softcap and sinks. It
lists prefills, steps of one query a sequence over contiguous and paged caches,
and what vLLM packs into one call over pages of 16: prompts, chunks of prompts
beside single queries, single queries of few and of many sequences. A line on
standard error names fields of attention that are not read: record a run then.

What is compiled goes to the cache that the library reads (STROBE_CACHE_DIR).
A GPU's kernels depend on it and on the CUDA version of its driver.)";

struct CompileFlags {
  std::string recorded;
  std::string config;
  bool combinations = false;
  std::string pack;
  bool training = false;
  std::string kv_cache_dtype;
  TextFlags texts;
  std::string device;
  std::string driver;
  unsigned jobs = std::max(1U, std::thread::hardware_concurrency());
  JsonFlag json;
};

/// What kernels are compiled for.
struct Target {
  std::string name;
  gpu::DeviceShape shape;
  runtime::NvrtcVersion newest = runtime::CubinTarget().newest;
};

/// "h100-pcie" of "H100 PCIe".
std::string flag_name(std::string_view device) {
  std::string name;
  for (const char c : device) name += c == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const gpu::NamedDevice& device : gpu::kKnownDevices) names.push_back(flag_name(device.name));
  return names;
}

/// Of "12.8" the 12 counts: as a rule a driver loads the code of every minor version of its major one.
std::string check_driver(const std::string& text) {
  int major = 0;
  int minor = 0;
  char rest = 0;
  const int fields = std::sscanf(text.c_str(), "%d.%d%c", &major, &minor, &rest);  // NOLINT(cert-err34-c)
  return fields == 2 && major >= 12 && minor >= 0 ? "" : "a CUDA version such as 12.8 or 13.0 is expected";
}

Result<Target> target_of(const CompileFlags& flags) {
  Target target;
  if (flags.device.empty()) {
    const Result<gpu::ThisDevice> own = gpu::this_device();
    if (!own.ok()) {
      return Status(own.status().code(),
                    fmt::format("{}: --device names the GPU to compile for", own.status().message()));
    }
    target = {own->name, own->shape, own->newest};
  } else {
    const auto named = std::ranges::find(gpu::kKnownDevices, flags.device,
                                         [](const gpu::NamedDevice& device) { return flag_name(device.name); });
    target = {.name = std::string(named->name), .shape = named->shape};
  }
  if (!flags.driver.empty()) target.newest = {std::atoi(flags.driver.c_str()), runtime::NvrtcVersion::kAnyMinor};
  return target;
}

/// With a gradient of every capture that may have one, and captures that fit each call.
AttentionProblem with_texts(AttentionProblem call, const Expression* expression) {
  if (expression == nullptr) return call;
  call.expression.formula = expression->function.formula();
  call.expression.bias_fits = call.expression.slopes_fit = true;
  for (int i = 0; call.pass == Pass::backward && i < static_cast<int>(expression->captures.size()); ++i) {
    if (expression->function.has_gradient(i)) call.expression.gradients |= 1U << static_cast<unsigned>(i);
  }
  return call;
}

std::optional<DType> cache_dtype(const std::string& name) {
  if (name.empty()) return std::nullopt;
  return name == "int8" ? DType::int8 : DType::float8_e4m3;
}

Result<std::vector<AttentionProblem>> calls_of_model(const CompileFlags& flags) {
  const Result<ModelConfig> model = read_model_config(flags.config);
  if (!model.ok()) return model.status();
  if (!model->not_read.empty()) print_error(model->not_read);
  const Result<std::shared_ptr<const Expression>> expression = flags.texts.read();
  if (!expression.ok()) return expression.status();
  const ModelUse use{.training = flags.training, .kv_cache_dtype = cache_dtype(flags.kv_cache_dtype)};
  std::vector<AttentionProblem> calls = model_calls(*model, use);
  for (AttentionProblem& call : calls) call = with_texts(call, expression->get());
  return calls;
}

Result<std::vector<AttentionProblem>> calls_of(const CompileFlags& flags) {
  std::vector<AttentionProblem> calls;
  if (flags.combinations) calls = option_calls();
  if (!flags.recorded.empty()) {
    const Result<std::vector<AttentionProblem>> recorded = recorded_calls(flags.recorded);
    if (!recorded.ok()) return recorded.status();
    calls.insert(calls.end(), recorded->begin(), recorded->end());
  }
  if (flags.config.empty()) return calls;
  const Result<std::vector<AttentionProblem>> model = calls_of_model(flags);
  if (!model.ok()) return model.status();
  calls.insert(calls.end(), model->begin(), model->end());
  return calls;
}

struct Wanted {
  std::vector<runtime::Variant> kernels;  // each once
  std::map<std::string, int> lacking;     // why calls have none, and how many
};

Wanted kernels_of_all(const std::vector<AttentionProblem>& calls, const Target& target) {
  std::map<std::string, runtime::Variant> kernels;
  Wanted wanted;
  for (const AttentionProblem& call : calls) {
    const Result<std::vector<runtime::Variant>> needed = gpu::kernels_of(call, target.name, target.shape);
    if (!needed.ok()) ++wanted.lacking[needed.status().message()];
    if (!needed.ok()) continue;
    for (const runtime::Variant& kernel : *needed) {
      kernels.emplace(kernel.architecture + kernel.expression + kernel.code, kernel);
    }
  }
  for (auto& [key, kernel] : kernels) wanted.kernels.push_back(std::move(kernel));
  return wanted;
}

/// Whether a pack holds it, as the library does not itself; else whether it has to be compiled. The Status says why
/// nothing can be compiled.
Result<bool> is_wanted(const runtime::Variant& kernel, const Target& target, bool for_pack) {
  if (for_pack && gpu::is_built_in(kernel, target.newest)) return false;
  const Result<bool> is_missing = gpu::is_missing(kernel, target.newest);
  if (!is_missing.ok()) return is_missing.status();
  return for_pack || *is_missing;
}

Result<std::vector<runtime::Variant>> wanted_of(const std::vector<runtime::Variant>& kernels, const Target& target,
                                                bool for_pack) {
  std::vector<runtime::Variant> wanted;
  for (const runtime::Variant& kernel : kernels) {
    const Result<bool> is_one = is_wanted(kernel, target, for_pack);
    if (!is_one.ok()) return is_one.status();
    if (*is_one) wanted.push_back(kernel);
  }
  return wanted;
}

Status write_pack(const std::string& path, const std::vector<runtime::Variant>& kernels, const Target& target) {
  const Result<std::string> pack = gpu::pack_of(kernels, target.newest);
  if (!pack.ok()) return pack.status();
  return io::write_file(path, {std::as_bytes(std::span(*pack))});
}

std::string summary(const CompileFlags& flags, const Target& target, std::size_t calls, std::size_t kernels,
                    std::size_t compiled, double seconds, const std::string& folder) {
  if (!flags.pack.empty()) {
    return fmt::format("{}: {} calls need {} kernels; {} are in the library, {} in the pack {}, made in {:.1f} s\n",
                       target.name, calls, kernels, kernels - compiled, compiled, flags.pack, seconds);
  }
  return fmt::format("{}: {} calls need {} kernels; {} were there, {} were compiled in {:.1f} s into {}\n", target.name,
                     calls, kernels, kernels - compiled, compiled, seconds, folder);
}

ExitCode compile(const CompileFlags& flags) {
  if (Status status = flags.json.prepare(); !status.ok()) return report(status);
  if (!flags.pack.empty()) {
    if (Status status = io::check_writable(flags.pack); !status.ok()) return report(status);
  }
  const Result<Target> target = target_of(flags);
  if (!target.ok()) return report(target.status());
  const Result<std::vector<AttentionProblem>> calls = calls_of(flags);
  if (!calls.ok()) return report(calls.status());
  const Result<std::string> folder = gpu::cache_folder();
  if (!folder.ok()) return report(folder.status());
  const Wanted wanted = kernels_of_all(*calls, *target);
  const Result<std::vector<runtime::Variant>> missing = wanted_of(wanted.kernels, *target, !flags.pack.empty());
  if (!missing.ok()) return report(missing.status());
  const auto start = std::chrono::steady_clock::now();
  Status status = compile_all(*missing, target->newest, flags.jobs);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const auto& [reason, count] : wanted.lacking) {
    print_wrapped(fmt::format("without kernels ({} of the calls): {}\n", count, reason));
  }
  if (status.ok() && !flags.pack.empty()) status = write_pack(flags.pack, *missing, *target);
  if (!status.ok()) return report(status);
  print_wrapped(summary(flags, *target, calls->size(), wanted.kernels.size(), missing->size(), seconds, *folder));
  std::vector<std::string> names;
  for (const runtime::Variant& kernel : *missing) names.push_back(kernel.name);
  return report(flags.json.write({{"device", target->name},
                                  {"calls", calls->size()},
                                  {"kernels", wanted.kernels.size()},
                                  {"compiled", names},
                                  {"seconds", seconds},
                                  {"without_kernels", wanted.lacking},
                                  {"cache", *folder}}));
}

}  // namespace

void add_compile_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App& command = *app.add_subcommand("compile", "Compile the GPU kernels that a model or a run needs");
  command.footer(kCompileFooter);
  const auto flags = std::make_shared<CompileFlags>();
  CLI::Option_group& sources = *command.add_option_group("Calls");
  sources.add_option("--recorded", flags->recorded, "the calls of a run, as STROBE_RECORD wrote them")
      ->type_name("FILE");
  CLI::Option* const config =
      sources.add_option("--config", flags->config, "a model's config.json, as transformers writes it")
          ->type_name("FILE");
  sources.add_flag("--combinations", flags->combinations, "every combination of common options: thousands of kernels");
  sources.require_option(1, 3);
  CLI::Option* const training =
      command
          .add_flag("--training", flags->training, "the model's forwards and backwards, in the place of its decodes")
          ->needs(config);
  command.add_option("--kv-cache-dtype", flags->kv_cache_dtype, "the model's caches are in 8 bits: e4m3 or int8")
      ->check(CLI::IsMember({"e4m3", "int8"}))
      ->type_name("NAME")
      ->needs(config)
      ->excludes(training);
  flags->texts.add_to(command);
  for (const char* const name : {"--score", "--mask-text", "--capture"}) command.get_option(name)->needs(config);
  command.add_option("--device", flags->device, "the GPU; default: this machine's first")
      ->check(CLI::IsMember(device_names()))
      ->type_name("NAME");
  command
      .add_option("--driver", flags->driver, "the CUDA version of the GPU's driver; default: this machine's, or any")
      ->check(check_driver)
      ->type_name("VERSION");
  command.add_option("--pack", flags->pack, "write the kernels that the library lacks to FILE, for STROBE_KERNELS")
      ->type_name("FILE");
  command.add_option("--jobs", flags->jobs, "processes that compile at once")
      ->check(CLI::Range(1U, 1024U))
      ->capture_default_str();
  flags->json.add_to(command);
  command.callback([flags, &exit_code] { exit_code = compile(*flags); });
}

}  // namespace strobe::program
