// SPDX-License-Identifier: Apache-2.0
// strobe bench --io: the memory traffic of attention's orders, counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/strobe/cli_app.h"
#include "tools/strobe/exit_code.h"
#include "tools/strobe/json_flag.h"

namespace strobe::program {

/// --io and --fast-memory.
struct IoFlags {
  bool wanted = false;
  std::vector<std::int64_t> fast_memories{8192, 32768, 131072};

  void add_to(CLI::App& command);
};

/// What is walked: every combination.
struct IoCells {
  std::vector<std::string> passes;
  std::vector<std::int64_t> head_dims;
  std::vector<std::int64_t> seqlens;
  std::vector<std::int64_t> fast_memories;  // M, in elements
};

/// Walks every cell in every order; prints a table and writes JSON of {"rows": [{order, pass, head_dim, seqlen,
/// fast_memory, density, outer, inner, loads, stores}, ...]}.
ExitCode run_io_bench(const IoCells& cells, const JsonFlag& json);

}  // namespace strobe::program
