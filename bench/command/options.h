// SPDX-License-Identifier: Apache-2.0
// strobe bench --options: what each option costs on the CPU.
#pragma once

#include "bench/command/flags.h"
#include "tools/strobe/exit_code.h"

namespace strobe::program {

/// Each cell plain and with one option at a time, in turns; a table of times and their ratio to the plain call's, and
/// with flags.json {"rows": [{device, pass, dtype, head_dim, seqlen, heads, threads, option, visible_blocks, median_ms,
/// ratio}, ...]}.
ExitCode run_option_costs(const BenchFlags& flags);

}  // namespace strobe::program
