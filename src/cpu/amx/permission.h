// SPDX-License-Identifier: Apache-2.0
// May this process use AMX?
#pragma once

namespace strobe::cpu::amx {

/// Processor (AMX tiles and bfloat16, AVX512_BF16), operating system (tile state in XCR0) and, on Linux, the process's
/// permission, which is asked for. False elsewhere.
bool permission();

}  // namespace strobe::cpu::amx
