// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace strobe::test {

/// A caller's pool that starts a thread for every index.
inline void run_on_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int index = 0; index < count; ++index) threads.emplace_back(body, index);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace strobe::test
