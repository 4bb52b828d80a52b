// SPDX-License-Identifier: Apache-2.0
// How many threads calls take, and the threads of calls in a process that was forked.
#pragma once

#include <nanobind/nanobind.h>

#include "strobe/attention.h"

namespace strobe::python {

/// The number of threads of calls that do not say: the first that there is of what set_threads() was given, PyTorch's
/// number if PyTorch is loaded, and OMP_NUM_THREADS as the first call found it; the last two at most one per
/// hardware thread that the process may run on, which is also the number where there is none of the three.
int threads();

/// The same without asking PyTorch, which needs the interpreter's lock.
int threads_without_torch();

/// For every thread of the process. 0 takes back what was given before. TypeError for what is no integer, ValueError
/// for what is out of range.
void set_threads(nanobind::handle count);

/// Null, for the library's own pool, as a rule. The threads of a pool do not survive a fork: in a child process this is
/// a loop that starts threads of its own for each call.
const ParallelFor* parallel_for();

}  // namespace strobe::python
