// SPDX-License-Identifier: Apache-2.0
#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

#include "errors.h"
#include "values.h"

namespace nb = nanobind;

namespace strobe::python {
namespace {

constexpr int kMaxThreads = 4096;  // of a call, as the library has it
constexpr int kNoLimit = std::numeric_limits<int>::max();

std::atomic<bool> forked{false};
std::atomic<int> chosen{0};  // by set_threads(); 0: not

/// Hardware threads that the process may run on now: its affinity mask may change while it runs.
int allowed_threads() {
  cpu_set_t
      sets[8];  // a kernel's own mask may be longer than one cpu_set_t, which a call of a shorter one does not get
  if (sched_getaffinity(0, sizeof(sets), sets) == 0) return std::max(1, CPU_COUNT_S(sizeof(sets), sets));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// OMP_NUM_THREADS as the first call found it, of a list the first number; kNoLimit where it says none.
int openmp_threads() {
  static const int number = [] {
    const char* text = std::getenv("OMP_NUM_THREADS");  // NOLINT(concurrency-mt-unsafe): nothing here writes to it
    int value = 0;
    if (text != nullptr) std::from_chars(text, text + std::strlen(text), value);
    return value > 0 ? value : kNoLimit;
  }();
  return number;
}

/// torch.get_num_threads(), if PyTorch is loaded.
int torch_threads() {
  static const nb::object name = nb::steal(PyUnicode_InternFromString("torch"));
  const nb::object torch = nb::steal(PyImport_GetModule(name.ptr()));
  if (!torch.is_valid()) {
    PyErr_Clear();
    return kNoLimit;
  }
  const nb::object ask = nb::getattr(torch, "get_num_threads", nb::none());
  return ask.is_none() ? kNoLimit : std::max(1, short_integer({"torch.get_num_threads()", ask()}));
}

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

int threads() {
  if (const int count = chosen.load(std::memory_order_relaxed); count > 0) return count;
  const int torch = torch_threads();
  return std::min(torch == kNoLimit ? openmp_threads() : torch, allowed_threads());
}

int threads_without_torch() {
  if (const int count = chosen.load(std::memory_order_relaxed); count > 0) return count;
  return std::min(openmp_threads(), allowed_threads());
}

void set_threads(nb::handle count) {
  const int number = short_integer({"threads", count});
  if (number < 0 || number > kMaxThreads) {
    raise(PyExc_ValueError, "threads is {}: it must be from 1 to {}, or 0 for the default", number, kMaxThreads);
  }
  chosen.store(number, std::memory_order_relaxed);
}

const ParallelFor* parallel_for() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  static const ParallelFor on_new_threads = run_on_new_threads;
  static_cast<void>(registered);
  return forked ? &on_new_threads : nullptr;
}

}  // namespace strobe::python
