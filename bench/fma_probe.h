// SPDX-License-Identifier: Apache-2.0
// The ceiling that attention on a CPU is measured against: fused multiply-adds from registers, no memory at all.
#pragma once

#include <chrono>

namespace strobe::bench {

/// Runs independent chains of float32 fused multiply-adds on `threads` threads (at least 1), with the widest vectors
/// of this machine, for about `duration`. Returns GFLOP/s of all threads together; one FMA is two FLOPs.
double fma_probe_gflops(int threads, std::chrono::duration<double> duration);

}  // namespace strobe::bench
