// SPDX-License-Identifier: Apache-2.0
// The merge of partial results on Python tensors.
#pragma once

#include <nanobind/nanobind.h>

namespace strobe::python {

/// Reads the parts' o and lse, lists of the same length, and writes o and lse. Of the options it reads threads, engine
/// and stream.
void merge(const nanobind::list& parts_o, const nanobind::list& parts_lse, nanobind::handle o, nanobind::handle lse,
           const nanobind::kwargs& keywords);

}  // namespace strobe::python
