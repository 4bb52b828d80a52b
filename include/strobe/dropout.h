// SPDX-License-Identifier: Apache-2.0
// Which probabilities dropout keeps.
//
// The element of query i and key j (positions within their sequence) of sequence b and head h of H, with a = j / 32, is
// kept if u >= round(65536 * dropout), where u is a 16-bit slice of Philox4x32-7 with the key
// (seed low, seed high ^ offset high) and the counter (4 a + j / 2 % 4, i, b * H + h, offset low): word j / 8 % 4, its
// low half where j is even. One block of Philox serves eight elements of a thread's
// accumulators in MMAs of 16 x 8 tiles.
//
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), section 3.3.
#pragma once

#include "strobe/attention.h"
#include "strobe/export.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe {

/// Writes 1 where an attention call with this dropout and state keeps the probability and 0 where it drops it.
/// `mask` is [batch, heads_q, seqlen_q, seqlen_k] uint8 in host memory, any strides, the last 1; so is
/// random.on_device.
STROBE_API Status dropout_mask(float dropout, const RandomState& random, const TensorView& mask);

}  // namespace strobe
