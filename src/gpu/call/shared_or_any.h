// SPDX-License-Identifier: Apache-2.0
// Forwards with a variant for calls in which V is a view of K, or K's columns are V's and some behind them (qv): which
// of two plans runs is known when the call's pointers are.
#pragma once

#include "engine/engine.h"

namespace strobe::gpu {

/// Whether V is K's first columns, and all of K lies within the 64 GiB that 32 bits count in pieces of 16 bytes.
bool values_are_keys(const ForwardArguments& arguments);

/// A call that runs `shared` where V is K's first columns, or with qv where K and V lie within as much each, and else
/// `any`; an error where one of them is.
engine::PlannedCallResult shared_or_any(const engine::PlannedCallResult& shared, const engine::PlannedCallResult& any);

/// Whether V is K's first columns with K's scales, of a cache in 8 bits.
bool latent_rows_are_stored(const ForwardArguments& arguments);

/// A call that runs `rows` over such a cache whose rows lie at multiples of 8 bytes, and else `converted`.
engine::PlannedCallResult rows_or_converted(const engine::PlannedCallResult& rows,
                                            const engine::PlannedCallResult& converted);

/// A call that runs `rows` over such a cache, and is an error over others.
engine::PlannedCallResult rows_alone(const engine::PlannedCallResult& rows);

}  // namespace strobe::gpu
