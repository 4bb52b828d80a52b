// SPDX-License-Identifier: Apache-2.0
// Appends to caches that are Python tensors.
#pragma once

#include <nanobind/nanobind.h>

namespace strobe::python {

/// `tensors`: the optional tensors of strobe::AppendArguments, by their names there. Of the options it reads threads,
/// engine and stream.
void append(nanobind::handle k_cache, nanobind::handle v_cache, nanobind::handle k_new, nanobind::handle v_new,
            nanobind::handle cache_seqlens, const nanobind::dict& tensors, nanobind::handle interleaved,
            nanobind::handle q_in_order, const nanobind::kwargs& keywords);

}  // namespace strobe::python
