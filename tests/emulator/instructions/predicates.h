// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "machine/instruction.h"

namespace strobe::emulator {

Step not_predicate(Warp& warp, const Instruction& instruction, LaneMask lanes);

}  // namespace strobe::emulator
