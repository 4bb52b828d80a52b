// SPDX-License-Identifier: Apache-2.0
#include "bench/command/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>

#include "tools/strobe/number_flag.h"

namespace strobe::program {
namespace {

/// The batch and the heads of a cell that has all else, where others than --batch and --heads decide them.
Status fit_batch_and_heads(const BenchFlags& flags, bench::Cell& cell) {
  if (flags.tokens > 0 && flags.tokens % cell.seqlen != 0) {
    return {StatusCode::invalid_argument,
            fmt::format("--tokens is {}: it must be a multiple of every --seqlen, {} among them", flags.tokens,
                        cell.seqlen)};
  }
  if (flags.hidden > 0 && flags.hidden % cell.head_dim != 0) {
    return {StatusCode::invalid_argument,
            fmt::format("--hidden is {}: it must be a multiple of every --head-dim, {} among them", flags.hidden,
                        cell.head_dim)};
  }
  if (flags.tokens > 0) cell.batch = flags.tokens / cell.seqlen;
  cell.heads = flags.hidden > 0 ? flags.hidden / cell.head_dim : flags.heads;
  cell.heads_kv = flags.heads_kv > 0 ? flags.heads_kv : cell.heads;
  return {};
}

using Names = std::vector<std::string>;

}  // namespace

Names BenchFlags::pass_names() const { return passes.empty() ? Names{"forward", "backward"} : passes; }

Names BenchFlags::cell_dtype_names() const {
  if (!dtypes.empty()) return dtypes;
  return execution.on_gpu() ? Names{"bfloat16"} : Names{"float32", "bfloat16"};
}

Status BenchFlags::add_cells(bench::Cell cell, const std::vector<int>& workers, std::vector<bench::Cell>& cells) const {
  for (const std::int64_t batch : batches) {
    cell.batch = batch;
    for (const std::int64_t seqlen : seqlens) {
      cell.seqlen = seqlen;
      for (const std::int64_t keys : decodes() ? seqlens_k : std::vector{seqlen}) {
        cell.seqlen_k = keys;
        if (Status status = fit_batch_and_heads(*this, cell); !status.ok()) return status;
        for (const int count : workers) {
          cell.threads = count;
          cells.push_back(cell);
        }
      }
    }
  }
  return {};
}

Result<std::vector<bench::Cell>> BenchFlags::cells() const {
  std::vector<int> workers = threads.empty() ? std::vector{resolved_threads(0)} : threads;
  if (execution.on_gpu()) workers = {0};
  std::vector<bench::Cell> cells;
  for (const std::string& pass : pass_names()) {
    for (const std::string& dtype : cell_dtype_names()) {
      for (const std::int64_t head_dim : head_dims) {
        for (const std::string& mask : masks) {
          const bench::Cell cell{.pass = pass == "forward" ? bench::BenchPass::forward : bench::BenchPass::backward,
                                 .dtype = dtype_of(dtype),
                                 .head_dim = head_dim,
                                 .head_dim_v = head_dim_v > 0 ? head_dim_v : head_dim,
                                 .causal = mask == "causal"};
          if (Status status = add_cells(cell, workers, cells); !status.ok()) return status;
        }
      }
    }
  }
  return cells;
}

bool BenchFlags::wants(const std::string& implementation) const {
  return implementations.empty() || std::ranges::find(implementations, implementation) != implementations.end();
}

std::string BenchFlags::batch_and_heads() const {
  const std::string sequences =
      tokens > 0 ? fmt::format("{} tokens", tokens) : fmt::format("batch {}", fmt::join(batches, " and "));
  const std::string all_heads = hidden > 0 ? fmt::format("hidden {}", hidden) : fmt::format("heads {}", heads);
  return heads_kv > 0 && heads_kv != heads ? fmt::format("{}, {} and {}", sequences, all_heads, heads_kv)
                                           : fmt::format("{}, {}", sequences, all_heads);
}

void BenchFlags::add_cells_to(CLI::App& command) {
  const auto add_names = [&](const char* name, std::vector<std::string>& values, const char* text) {
    return command.add_option(name, values, text)->delimiter(',')->type_name("NAME,...")->group("Cells");
  };
  const auto add_list = [&](const char* name, auto& values, const char* text) {
    return add_number(command, name, values, text, 1)->delimiter(',')->type_name("N,...")->group("Cells");
  };
  const auto add_one = [&](const char* name, std::int64_t& value, const char* text) {
    return add_number(command, name, value, text, 1)->type_name("N")->group("Cells");
  };
  add_names("--pass", passes, "forward, backward (default both)")->check(CLI::IsMember({"forward", "backward"}));
  add_names("--dtype", dtypes, "float32, float16, bfloat16 (default float32,bfloat16; bfloat16 on a GPU)")
      ->check(CLI::IsMember(dtype_names()));
  add_list("--head-dim", head_dims, "of Q and K")->capture_default_str();
  add_one("--head-dim-v", head_dim_v, "of V and O (default as --head-dim)");
  add_names("--mask", masks, "full, causal")->check(CLI::IsMember({"full", "causal"}))->capture_default_str();
  add_list("--seqlen", seqlens, "queries, and as many keys without --seqlen-k")->capture_default_str();
  add_list("--seqlen-k", seqlens_k, "keys (default as many as queries); speeds are then in GB/s");
  CLI::Option* const sequences = add_list("--batch", batches, "sequences")->capture_default_str();
  add_one("--tokens", tokens, "as many sequences as have N tokens together")->excludes(sequences);
  CLI::Option* const query_heads = add_one("--heads", heads, "query heads")->capture_default_str();
  add_one("--hidden", hidden, "as many heads as have N columns together")->excludes(query_heads);
  add_one("--heads-kv", heads_kv, "key and value heads (default as --heads)");
}

void BenchFlags::add_threads_to(CLI::App& command) {
  add_number(command, "--threads", threads, "workers on the CPU (default one per hardware thread)", 1)
      ->delimiter(',')
      ->type_name("N,...")
      ->group("Cells");
}

}  // namespace strobe::program
