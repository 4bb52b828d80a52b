// SPDX-License-Identifier: Apache-2.0
// Attention with Q, K and V rounded first: what 16 and 8 bits do to the embeddings.
#pragma once

#include <cstdint>

#include "strobe/attention.h"
#include "strobe/status.h"

namespace sentence_search {

/// What the attention multiplies.
enum class Operands : std::uint8_t { float32, bfloat16, int8, float8_e4m3 };

/// A forward of packed float32 tensors, as strobe::forward() computes it from operands of that kind. 8-bit operands are
/// quantised sentence by sentence, as strobe::quantize() does by default.
strobe::Status attend(const strobe::ForwardArguments& arguments, Operands operands, int threads);

}  // namespace sentence_search
