// SPDX-License-Identifier: Apache-2.0
// Spreads independent tasks over workers, first come first served.
#pragma once

#include <cstdint>

#include "strobe/attention.h"

namespace strobe::cpu {

/// A callable task(index, worker) that for_each_task calls but does not own. std::function would allocate, and a call
/// that has begun to write its outputs must not run out of memory.
class TaskRef {
 public:
  template <class Task>
  TaskRef(const Task& task)  // NOLINT(google-explicit-constructor)
      : task_(&task),
        call_([](const void* to, std::int64_t index, int worker) { (*static_cast<const Task*>(to))(index, worker); }) {}

  void operator()(std::int64_t index, int worker) const { call_(task_, index, worker); }

 private:
  const void* task_;
  void (*call_)(const void* task, std::int64_t index, int worker);
};

/// Calls task(index, worker) for every index below `count`, in the order of the indices as workers come free. Worker w
/// runs its tasks one after another, so what it owns needs no lock; a task may wait for one of a smaller index. Runs on
/// the caller's `parallel_for`, or on oneTBB when that is null; `workers` >= 1. Where no thread can be started the
/// caller's runs all tasks.
void for_each_task(std::int64_t count, int workers, const ParallelFor* parallel_for, TaskRef task);

}  // namespace strobe::cpu
