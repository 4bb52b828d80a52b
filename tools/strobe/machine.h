// SPDX-License-Identifier: Apache-2.0
// Facts about the machine that the program runs on.
#pragma once

#include <string>
#include <vector>

namespace strobe::program {

/// "AMD EPYC", "Intel(R) Xeon(R) ...": the processor's name for itself; "unknown" when it does not say.
std::string processor_name();

/// Which of the instruction set extensions that matter to attention it has, in the kernel's spelling.
std::vector<std::string> processor_features();

/// "L1d 32 KiB, L2 512 KiB, L3 32 MiB": what the first core sees, as the kernel reports it; "unknown" when it does not.
std::string cache_sizes();

/// The Highway target that dynamic dispatch takes here, the best first of those compiled in: {"AVX2", "SSE4", ...}.
std::vector<std::string> instruction_sets();

}  // namespace strobe::program
