// SPDX-License-Identifier: Apache-2.0
// Instructions of sm_90 whose opcodes begin as those of earlier GPUs.
#pragma once

#include "ptx/decoder.h"

namespace strobe::emulator {

void decode_bulk(Decoder& decoder, const Statement& statement);
void decode_cluster_barrier(Decoder& decoder, const Statement& statement);

}  // namespace strobe::emulator
