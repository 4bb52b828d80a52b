// SPDX-License-Identifier: Apache-2.0
#include "flags.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <thread>

#include "number_flag.h"

namespace strobe::program {
namespace {

/// The index of "cuda" (0) or "cuda:N"; -1 for any other text.
int cuda_index(std::string_view text) {
  if (text == "cuda") return 0;
  if (!text.starts_with("cuda:")) return -1;
  text.remove_prefix(5);
  int index = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  return error == std::errc() && end == text.data() + text.size() ? index : -1;
}

std::string check_device(const std::string& text) {
  if (text == "cpu" || cuda_index(text) >= 0) return {};
  return fmt::format("'{}' is not a device: give cpu, cuda or cuda:N", text);
}

}  // namespace

std::string check_not_empty(const std::string& text) { return text.empty() ? "'' is no value" : ""; }

void OptionFlags::add_to(CLI::App& command) {
  const char* const group = "Attention";
  CLI::Option* const bottom_right =
      command.add_flag("--causal", causal, "mask keys after the query; the last query sees every key")->group(group);
  command.add_flag("--causal-top-left", causal_top_left, "causal, but the first query sees the first key")
      ->excludes(bottom_right)
      ->group(group);
  add_number(command, "--window", window, "see L keys to the left, R to the right; -1: no limit")
      ->expected(2)
      ->type_name("L R")
      ->group(group);
  add_number(command, "--chunk", others.chunk, "see only keys of the query's own chunk of N; 0 turns it off")
      ->type_name("N")
      ->group(group);
  add_number(command, "--softcap", others.softcap, "scores become X tanh(score / X); 0 turns it off")
      ->type_name("X")
      ->group(group);
  add_number(command, "--log-length", others.log_length,
             "multiply scores of n keys by log(n) / log(N) where n is above N; 0 turns it off")
      ->type_name("N")
      ->group(group);
  add_number(command, "--scale", others.scale, "multiplies Q K^T (default 1/sqrt(head_dim))")
      ->type_name("X")
      ->group(group);
  add_number(command, "--dropout", others.dropout, "drop each probability with this probability (see --seed)")
      ->type_name("P")
      ->group(group);
  command.add_flag("--row-invariant", others.row_invariant, "a row's bits depend on nothing else in the call")
      ->group(group);
  command.add_option("--normalize", normalize, "softmax, or none: scores are probabilities, as --score makes them")
      ->check(CLI::IsMember({"softmax", "none"}))
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
  command.add_flag("--max-logits", max_logits, "the largest score of each head, too")->group(group);
}

AttentionOptions OptionFlags::options() const {
  AttentionOptions options = others;
  if (causal) options.causal = CausalMask::bottom_right;
  if (causal_top_left) options.causal = CausalMask::top_left;
  if (!window.empty()) options.window = {window[0], window[1]};
  if (normalize == "none") options.normalize = Normalization::none;
  return options;
}

std::string OptionFlags::describe() const {
  std::vector<std::string> parts;
  if (causal) parts.emplace_back("causal");
  if (causal_top_left) parts.emplace_back("causal top-left");
  if (!window.empty()) parts.push_back(fmt::format("window ({}, {})", window[0], window[1]));
  if (others.chunk != 0) parts.push_back(fmt::format("chunk {}", others.chunk));
  if (parts.empty()) parts.emplace_back("full");
  if (others.softcap != 0.0F) parts.push_back(fmt::format("softcap {}", others.softcap));
  if (others.log_length != 0) parts.push_back(fmt::format("log length {}", others.log_length));
  if (others.scale) parts.push_back(fmt::format("scale {}", *others.scale));
  if (others.dropout != 0.0F) parts.push_back(fmt::format("dropout {}", others.dropout));
  if (others.row_invariant) parts.emplace_back("row-invariant");
  if (normalize == "none") parts.emplace_back("normalize none");
  if (max_logits) parts.emplace_back("max logits");
  return CLI::detail::join(parts, ", ");
}

std::string Shape::describe() const {
  const auto sides = [](const char* name, std::int64_t one, std::int64_t other) {
    return one == other ? fmt::format("{} {}", name, one) : fmt::format("{} {} and {}", name, one, other);
  };
  return fmt::format("batch {}, {}, {}, {}", batch, sides("heads", heads_q, heads_kv),
                     sides("seqlen", seqlen_q, seqlen_k), sides("head_dim", head_dim, head_dim_v));
}

void ShapeFlags::add_to(CLI::App& command) {
  const auto add = [&](const char* name, auto& value, const char* text, std::int64_t least) {
    return add_number(command, name, value, text, least)->type_name("N")->group("Shape");
  };
  add("--batch", batch, "sequences", 0)->capture_default_str();
  add("--seqlen", seqlen_q, "queries of each sequence", 0)->capture_default_str();
  add("--seqlen-k", seqlen_k, "keys of each sequence (default as --seqlen)", 0);
  add("--heads", heads_q, "query heads", 1)->capture_default_str();
  add("--heads-kv", heads_kv, "key and value heads (default as --heads)", 1);
  add("--head-dim", head_dim, "of Q and K", 1)->capture_default_str();
  add("--head-dim-v", head_dim_v, "of V and O (default as --head-dim)", 1);
}

Shape ShapeFlags::shape() const {
  return {batch,
          seqlen_q,
          seqlen_k.value_or(seqlen_q),
          heads_q,
          heads_kv.value_or(heads_q),
          head_dim,
          head_dim_v.value_or(head_dim)};
}

void ExecutionFlags::add_device_to(CLI::App& command) {
  command.add_option("--device", device, "where the tensors are: cpu, cuda or cuda:N")
      ->check(check_device)
      ->type_name("NAME")
      ->capture_default_str()
      ->group("Execution");
  command.add_option("--engine", engine, "auto (the device's), cpu or gpu")
      ->check(CLI::IsMember({"auto", "cpu", "gpu", "ampere", "hopper"}))  // the last two are deprecated
      ->type_name("NAME")
      ->capture_default_str()
      ->group("Execution");
  command
      .add_option("--kernels", kernels, "GPU: the family of kernels, sm90 or sm80 (default the fastest of the call)")
      ->check(CLI::IsMember({"sm90", "sm80"}))
      ->type_name("NAME")
      ->group("Execution");
}

void ExecutionFlags::add_to(CLI::App& command) {
  add_device_to(command);
  add_number(command, "--threads", threads, "workers (default one per hardware thread)", 0)
      ->type_name("N")
      ->group("Execution");
}

Execution ExecutionFlags::execution() const {
  Execution execution;
  if (engine == "cpu") execution.engine = Engine::cpu;
  if (engine == "gpu") execution.engine = Engine::gpu;
  if (engine == "ampere") execution.engine = Engine::ampere;
  if (engine == "hopper") execution.engine = Engine::hopper;
  for (const std::string_view family : {"sm90", "sm80"}) {
    if (kernels == family) execution.kernels = family;  // longer than these flags live
  }
  execution.threads = threads;
  return execution;
}

Device ExecutionFlags::tensor_device() const {
  if (device == "cpu") return {};
  return {DeviceType::cuda, cuda_index(device)};
}

const std::vector<std::string>& dtype_names() {
  static const std::vector<std::string> names{"float32", "float16", "bfloat16"};
  return names;
}

DType dtype_of(const std::string& name) {
  if (name == "float16") return DType::float16;
  return name == "bfloat16" ? DType::bfloat16 : DType::float32;
}

int resolved_threads(int threads) {
  return threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace strobe::program
