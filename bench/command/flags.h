// SPDX-License-Identifier: Apache-2.0
// The flags of `strobe bench`, and the cells that they stand for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/cell.h"
#include "bench/command/io.h"
#include "strobe/status.h"
#include "tools/strobe/cli_app.h"
#include "tools/strobe/flags.h"
#include "tools/strobe/json_flag.h"

namespace strobe::program {

struct BenchFlags {
  std::vector<std::string> passes;  // empty lists: what fits the device
  std::vector<std::string> dtypes;
  std::vector<std::int64_t> head_dims{128};
  std::int64_t head_dim_v = 0;  // 0: as head_dim
  std::vector<std::string> masks{"full", "causal"};
  std::vector<std::int64_t> seqlens{512, 1024, 2048};
  std::vector<std::int64_t> seqlens_k;  // empty: as seqlens
  std::vector<std::int64_t> batches{1};
  std::int64_t tokens = 0;  // 0: --batch counts
  std::int64_t heads = 8;
  std::int64_t hidden = 0;    // 0: --heads counts
  std::int64_t heads_kv = 0;  // 0: as heads
  std::vector<int> threads;
  int repeats = 5;
  std::vector<std::string> implementations;
  std::string python = "python3";
  JsonFlag json;
  bool ablation = false;
  bool host_time = false;
  bool options = false;
  IoFlags io;
  ExecutionFlags execution;

  /// --pass to --heads-kv.
  void add_cells_to(CLI::App& command);

  void add_threads_to(CLI::App& command);

  /// What --pass and --dtype name, or what the device's engine has.
  std::vector<std::string> pass_names() const;
  std::vector<std::string> cell_dtype_names() const;

  /// Whether query and key lengths are given apart, as in decoding, where bytes count and not FLOPs.
  bool decodes() const { return !seqlens_k.empty(); }

  /// Every combination. invalid_argument where tokens or hidden do not divide.
  Result<std::vector<bench::Cell>> cells() const;

  /// Whether an implementation of that name is to run: all are unless some were named.
  bool wants(const std::string& implementation) const;

  /// "batch 1, heads 8", "batch 1 and 16, heads 8" or "16384 tokens, hidden 2048".
  std::string batch_and_heads() const;

 private:
  /// The cells of one pass, dtype, head_dim and mask.
  Status add_cells(bench::Cell cell, const std::vector<int>& workers, std::vector<bench::Cell>& cells) const;
};

}  // namespace strobe::program
