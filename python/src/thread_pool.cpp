// SPDX-License-Identifier: Apache-2.0
#include "thread_pool.h"

#include <pthread.h>

#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace strobe::python {
namespace {

std::atomic<bool> forked{false};

/// body(0) runs on this thread, as does what no thread could be started for.
void run_on_new_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  int index = 1;
  try {
    for (; index < count; ++index) threads.emplace_back(body, index);
  } catch (const std::system_error&) {
    for (; index < count; ++index) body(index);
  }
  body(0);
}

}  // namespace

const ParallelFor* parallel_for() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  static const ParallelFor on_new_threads = run_on_new_threads;
  static_cast<void>(registered);
  return forked ? &on_new_threads : nullptr;
}

}  // namespace strobe::python
