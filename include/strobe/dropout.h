// SPDX-License-Identifier: Apache-2.0
// Which probabilities dropout keeps.
//
// The element of query i and key j (positions within their sequence) of sequence b and head h of H (RandomState says
// where a call on some of them is in a larger one) is kept if
// u >= round(256 * dropout), where u is an 8-bit slice of Philox4x32-7 with the key
// (seed low, seed high ^ offset high) and the counter (patch(j), patch(i), b * H + h, offset low),
// patch(x) = x / 16 * 4 + x / 2 % 4: byte place(j), counted from the lowest, of word place(i),
// place(x) = x / 8 % 2 * 2 + x % 2. One block of Philox serves sixteen elements, which two threads hold in MMAs of
// 16 x 8 tiles, whether rows are queries or keys.
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
/// random.on_device. @stable
STROBE_API Status dropout_mask(float dropout, const RandomState& random, const TensorView& mask);

}  // namespace strobe
