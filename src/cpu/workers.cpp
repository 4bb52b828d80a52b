// SPDX-License-Identifier: Apache-2.0
#include "cpu/workers.h"

#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <functional>

namespace strobe::cpu {

namespace {

/// The tasks of one call, and which of them is next.
struct Tasks {
  TaskRef task;
  std::int64_t count;
  std::atomic<std::int64_t> next{0};

  void work(int worker) {
    for (std::int64_t index = next.fetch_add(1, std::memory_order_relaxed); index < count;
         index = next.fetch_add(1, std::memory_order_relaxed)) {
      task(index, worker);
    }
  }
};

}  // namespace

void for_each_task(std::int64_t count, int workers, const ParallelFor* parallel_for, TaskRef task) {
  Tasks tasks{task, count};
  const std::function<void(int)> work = [&tasks](int worker) { tasks.work(worker); };  // so small that it lies in place
  const int useful = static_cast<int>(std::min<std::int64_t>(workers, count));
  if (useful <= 1) return work(0);
  if (parallel_for != nullptr) return (*parallel_for)(useful, work);
  // oneTBB warns on standard error when asked for more threads than it may run; the rest of the workers find no task
  // left.
  const auto allowed = tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
  tbb::task_arena arena(std::min(useful, static_cast<int>(allowed)));
  arena.execute([&] { tbb::parallel_for(0, useful, work, tbb::simple_partitioner()); });
}

}  // namespace strobe::cpu
