// SPDX-License-Identifier: Apache-2.0
#include "copy_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

namespace strobe::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBlockBytes = std::size_t{32} << 20U;

}  // namespace

double copy_probe_gbps(int threads) {
  const auto count = static_cast<std::size_t>(std::max(threads, 1));
  std::vector<double> seconds(count);
  std::atomic<std::size_t> waiting = count;
  {
    std::vector<std::jthread> pool;
    for (double& own : seconds) {
      pool.emplace_back([&] {
        const std::vector<std::byte> from(kBlockBytes, std::byte{1});
        std::vector<std::byte> to(kBlockBytes);  // written, so that its pages exist
        --waiting;
        while (waiting > 0) std::this_thread::yield();  // start together: threads share the memory's bandwidth
        const Clock::time_point begin = Clock::now();
        std::memcpy(to.data(), from.data(), kBlockBytes);
        own = std::chrono::duration<double>(Clock::now() - begin).count();
        const volatile std::byte kept = to[kBlockBytes / 2];  // so that the copy is made
        static_cast<void>(kept);
      });
    }
  }
  const double slowest = *std::max_element(seconds.begin(), seconds.end());
  return 2.0 * static_cast<double>(kBlockBytes) * static_cast<double>(count) / slowest * 1e-9;
}

}  // namespace strobe::bench
