// SPDX-License-Identifier: Apache-2.0
// The merge of partial results on Python tensors.
#pragma once

#include <nanobind/nanobind.h>

namespace strobe::python {

/// Reads the parts' o and lse, lists of the same length, and writes o and lse. Of the options it reads threads, engine
/// and stream.
void merge(const nanobind::list& parts_o, const nanobind::list& parts_lse, nanobind::handle o, nanobind::handle lse,
           const nanobind::kwargs& keywords);

/// Likewise the gradient of a merge: writes the parts' d_o and d_lse. The merged d_lse may be None.
void merge_backward(const nanobind::list& parts_o, const nanobind::list& parts_lse, nanobind::handle d_o,
                    nanobind::handle d_lse, const nanobind::list& parts_d_o, const nanobind::list& parts_d_lse,
                    const nanobind::kwargs& keywords);

}  // namespace strobe::python
