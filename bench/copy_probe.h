// SPDX-License-Identifier: Apache-2.0
// What reading memory is measured against where there are few queries: a copy of blocks beyond every cache.
#pragma once

namespace strobe::bench {

/// Copies 32 MiB once on each of `threads` threads (at least 1). Returns GB/s of all threads together, bytes read and
/// bytes written counted both, as STREAM counts them (McCalpin, 1995).
double copy_probe_gbps(int threads);

}  // namespace strobe::bench
