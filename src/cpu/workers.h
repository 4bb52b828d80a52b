// Spreads independent tasks over workers, first come first served.
#pragma once

#include <cstdint>
#include <functional>

#include "strobe/attention.h"

namespace strobe::cpu {

/// Calls task(index, worker) for every index below `count`, in the order of the indices as workers come free. Worker w
/// runs its tasks one after another, so what it owns needs no lock; a task may wait for one of a smaller index. Runs on
/// the caller's `parallel_for`, or on oneTBB when that is null; `workers` >= 1.
void for_each_task(std::int64_t count, int workers, const ParallelFor* parallel_for,
                   const std::function<void(std::int64_t index, int worker)>& task);

}  // namespace strobe::cpu
