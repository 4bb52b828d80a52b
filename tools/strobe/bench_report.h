// A benchmark's results as rows: a table for people, JSON for programs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/cell.h"
#include "strobe/status.h"

namespace strobe::program {

/// One implementation's time in one cell.
struct BenchRow {
  bench::Cell cell;
  std::string implementation;  // strobe, standard, pytorch or probe
  double median_ms = 0.0;

  double tflops() const { return bench::flops(cell) / median_ms * 1e-9; }
};

/// One line for each cell: GFLOP/s of each implementation, and Strobe's ratios to probe and peers. `rows` holds the
/// cells one after another, each with `implementations` in that order.
std::string bench_table(const std::vector<BenchRow>& rows, const std::vector<std::string>& implementations);

/// {"rows": [{engine, device, implementation, pass, dtype, head_dim, head_dim_v, causal, seqlen, batch, heads, threads,
/// median_ms, tflops}, ...]}, one row a line. Standard attention, PyTorch and the probe ran on the same device under
/// the same engine's name.
Status write_bench_json(const std::filesystem::path& path, const std::vector<BenchRow>& rows, const std::string& engine,
                        const std::string& device);

}  // namespace strobe::program
