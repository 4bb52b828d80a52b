// SPDX-License-Identifier: Apache-2.0
// Opcodes that integers share with floating-point numbers.
#pragma once

#include "ptx/decoder.h"

namespace strobe::emulator {

void decode_integer_add(Decoder& decoder, const Statement& statement);
void decode_integer_subtract(Decoder& decoder, const Statement& statement);
void decode_integer_multiply(Decoder& decoder, const Statement& statement);
void decode_integer_divide(Decoder& decoder, const Statement& statement);
void decode_integer_min(Decoder& decoder, const Statement& statement);
void decode_integer_max(Decoder& decoder, const Statement& statement);
void decode_integer_negate(Decoder& decoder, const Statement& statement);
void decode_integer_absolute(Decoder& decoder, const Statement& statement);

}  // namespace strobe::emulator
