// SPDX-License-Identifier: Apache-2.0
// Apart from the kernels: tests choose for themselves.
#include "cpu/bfloat16/kernels.h"

namespace strobe::cpu::bf16 {

Unit unit() { return has_kernels() ? processor_unit() : Unit::none; }

}  // namespace strobe::cpu::bf16
