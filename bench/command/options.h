// SPDX-License-Identifier: Apache-2.0
// strobe bench --options: what each option costs.
#pragma once

#include "bench/command/flags.h"
#include "tools/strobe/exit_code.h"

namespace strobe::program {

/// Each cell plain and with one option at a time, in turns; a table of times and their ratio to the plain call's, and
/// with flags.json {"rows": [{device, pass, dtype, head_dim, causal, seqlen, batch, heads, threads, option, visible,
/// median_ms, ratio}, ...]}, where `visible` is the share of the plain call's pairs of a query and a key. A call that
/// the engine does not support has no times, but "supported": false.
ExitCode run_option_costs(const BenchFlags& flags);

}  // namespace strobe::program
