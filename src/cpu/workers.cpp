// SPDX-License-Identifier: Apache-2.0
#include "cpu/workers.h"

#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>

#include "call/callers_exception.h"

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

/// A thread's arena, kept from call to call: oneTBB does not give arenas back while calls follow one another. It has
/// room for the most workers that a call has had, of which a call with fewer tasks takes fewer. A process that was
/// forked makes its own, as the workers have stayed behind, and leaves the old one alone.
class KeptArena {
 public:
  tbb::task_arena& for_workers(int workers) {
    if (process_ != getpid()) {
      [[maybe_unused]] const tbb::task_arena* const of_the_parent = arena_.release();
    }
    if (arena_ == nullptr || workers_ < workers) {
      arena_ = std::make_unique<tbb::task_arena>(workers);
      workers_ = workers;
      process_ = getpid();
    }
    return *arena_;
  }
  void drop() { arena_.reset(); }

 private:
  std::unique_ptr<tbb::task_arena> arena_;
  int workers_ = 0;
  pid_t process_ = 0;
};

}  // namespace

void for_each_task(std::int64_t count, int workers, const ParallelFor* parallel_for, TaskRef task) {
  Tasks tasks{task, count};
  const std::function<void(int)> work = [&tasks](int worker) { tasks.work(worker); };  // so small that it lies in place
  const int useful = static_cast<int>(std::min<std::int64_t>(workers, count));
  if (useful <= 1) return work(0);
  if (parallel_for != nullptr) return call_callers(*parallel_for, useful, work);
  // oneTBB warns on standard error when asked for more threads than it may run; the rest of the workers find no task
  // left.
  const auto allowed = tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
  thread_local KeptArena kept;
  try {
    kept.for_workers(std::min(useful, static_cast<int>(allowed))).execute([&] {
      tbb::parallel_for(0, useful, work, tbb::simple_partitioner());
    });
  } catch (const std::exception&) {
    // Tasks do not throw: a thread could not be started. Those that ran are done, and this one takes the rest.
    kept.drop();
    work(0);
  }
}

}  // namespace strobe::cpu
