// SPDX-License-Identifier: Apache-2.0
// A test that never ends: two threads wait for a lock that the third keeps, and so does a process in a session of its
// own. Prints "ready" and that process's number once all of them are there.
#include <unistd.h>

#include <cstdio>
#include <latch>
#include <mutex>
#include <thread>

extern "C" [[gnu::noinline, gnu::visibility("default")]] void wait_for_the_lock(std::mutex& lock, std::latch& ready) {
  ready.count_down();
  const std::scoped_lock never(lock);
  std::fputs("the lock was free", stderr);
}

int main() {
  const pid_t daemon = ::fork();
  if (daemon == 0) {
    ::setsid();
    for (;;) ::pause();
  }
  std::mutex lock;
  const std::scoped_lock held(lock);
  std::latch ready(2);
  std::thread first([&] { wait_for_the_lock(lock, ready); });
  std::thread second([&] { wait_for_the_lock(lock, ready); });
  ready.wait();
  std::printf("ready %d\n", static_cast<int>(daemon));
  std::fflush(stdout);
  first.join();
  second.join();
}
