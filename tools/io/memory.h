// SPDX-License-Identifier: Apache-2.0
// How much memory a piece of work took and how much there is, as the Linux kernel counts it.
#pragma once

#include <cstdint>

namespace strobe::io {

/// The process's resident memory in bytes, now.
std::int64_t resident_bytes();

/// The most that resident_bytes() has been since the start, or the last reset_peak(). -1: the kernel does not say.
std::int64_t peak_resident_bytes();

/// Starts the peak anew from what is resident now. False where the kernel does not let a process do so.
bool reset_peak();

/// Bytes that programs can still take before the machine runs out. -1: the kernel does not say.
std::int64_t available_bytes();

}  // namespace strobe::io
