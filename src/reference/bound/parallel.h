// SPDX-License-Identifier: Apache-2.0
// Independent tasks on plain threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace strobe::reference {

/// Calls task(0) ... task(count - 1) on `threads` threads; 0 takes one per hardware thread.
template <class Task>
void run_tasks(std::int64_t count, int threads, const Task& task) {
  const std::int64_t hardware = std::max(1U, std::thread::hardware_concurrency());
  const std::int64_t workers = std::min(count, threads > 0 ? std::int64_t{threads} : hardware);
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t index = next++; index < count; index = next++) task(index);
  };
  std::vector<std::jthread> others;
  for (std::int64_t worker = 1; worker < workers; ++worker) others.emplace_back(work);
  work();
}

}  // namespace strobe::reference
