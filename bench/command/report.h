// SPDX-License-Identifier: Apache-2.0
// A benchmark's results as rows: a table for people, JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/cell.h"
#include "strobe/status.h"
#include "tools/strobe/table.h"

namespace strobe::program {

/// One implementation's time in one cell.
struct BenchRow {
  bench::Cell cell;
  std::string engine;  // Strobe's, or what else ran it: see write_bench_json
  std::string implementation;
  double median_ms = 0.0;

  double gbps() const { return bench::tensor_bytes(cell) / median_ms * 1e-6; }
  double tflops() const { return bench::flops(cell) / median_ms * 1e-9; }
};

/// What was measured, and one line for each cell: the speed of each implementation that ran it, and Strobe's ratios to
/// probe and peers. `rows` holds the cells one after another. On the CPU in GFLOP/s, on a GPU in TFLOP/s. `decodes`: in
/// GB/s. What all cells have in common is said once, after `common`.
std::string bench_text(const std::vector<BenchRow>& rows, const std::vector<std::string>& implementations,
                       DeviceType device, bool decodes, const std::string& common);

/// "COMMON\nKEYS\n\nTABLE": a table with what is the same in all its rows said once above it. Fits output_columns(). ""
/// where there are no rows.
std::string captioned(Table table, const std::string& common);

/// {"rows": [...]}: what --json writes of every kind of benchmark.
nlohmann::ordered_json json_rows(nlohmann::ordered_json rows);

/// {"rows": [{engine, device, implementation, pass, dtype, head_dim, head_dim_v, causal, seqlen, seqlen_k, batch,
/// heads, heads_kv, threads, median_ms, tflops, gbps}, ...]}. On the CPU all implementations have the engine's name, on
/// a GPU those that PyTorch runs have "pytorch"; threads is 0 there.
nlohmann::ordered_json bench_json(const std::vector<BenchRow>& rows, const std::string& device);

}  // namespace strobe::program
