// SPDX-License-Identifier: Apache-2.0
// The ceiling that attention on a CPU is measured against: multiplications from registers, no memory at all.
#pragma once

#include <chrono>
#include <cstdint>

#include "strobe/tensor.h"

namespace strobe::bench {

/// `steps` rounds of independent chains of multiply-adds on this thread. `start` is 0, which the compiler does not
/// know; `sink` keeps the results alive. Returns FLOPs: a multiply-add is two.
using RunChains = double (*)(std::int64_t steps, float start, float* sink);

/// Products of bfloat16 with float32 sums, by the unit that the CPU engine takes: AMX's tiles or AVX512-BF16's dot
/// products. Null where there is neither: bfloat16 is computed as float32 there.
RunChains bfloat16_chains();

/// Runs what multiplies `dtype` on this machine on `threads` threads (at least 1) for about `duration`: for bfloat16
/// what bfloat16_chains() says, otherwise float32 multiply-adds with the widest vectors. Returns GFLOP/s of all threads
/// together.
double multiply_probe_gflops(DType dtype, int threads, std::chrono::duration<double> duration);

}  // namespace strobe::bench
