// SPDX-License-Identifier: Apache-2.0
// strobe bench on a GPU, beside its cells: the ablation of a kernel's ingredients, and the host's share of a call.
#pragma once

#include "bench/command/flags.h"
#include "tools/strobe/exit_code.h"

namespace strobe::program {

/// The FlashAttention-3 paper's ablation: its shape (batch 4, seqlen 8448, 16 heads, head_dim 128, full mask) with each
/// ingredient of the kernel left out in turn, beside the variant that the plan takes. --dtype (default float16, the
/// paper's), --repeats and --json count; JSON rows are {engine, device, implementation, pass, dtype, head_dim,
/// head_dim_v, causal, seqlen, batch, heads, threads, median_ms, tflops} with implementation "strobe, ...".
/// Source: Shah et al., "FlashAttention-3" (2024), section 4.2, table 2.
ExitCode run_ablation(const BenchFlags& flags);

/// Microseconds of the host from the call to its return, with the kernel enqueued: Plan::run on a plan that is used
/// again, and forward(), which plans too. The calls are so small that the device never is what they wait for.
/// JSON rows are {device, call, options, median_us, p90_us}.
ExitCode run_host_time(const BenchFlags& flags);

}  // namespace strobe::program
