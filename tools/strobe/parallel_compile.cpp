// SPDX-License-Identifier: Apache-2.0
#include "parallel_compile.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "io/progress.h"
#include "output.h"
#include "runtime/shared_work.h"

namespace strobe::program {
namespace {

/// One of the processes; its exit code. Each has an NVRTC of its own, whose front end runs on one thread at a time.
int compile_some(const std::vector<runtime::Variant>& kernels, runtime::NvrtcVersion newest,
                 const runtime::SharedWork& shared) {
  int code = EXIT_SUCCESS;
  for (std::size_t index = 0; shared.take(index); shared.finish_one()) {
    const Status status = gpu::compile_into_cache(kernels[index], newest);
    if (status.ok()) continue;
    print_error(status.message());
    code = EXIT_FAILURE;
  }
  return code;
}

/// Waits for the processes; how many failed.
int wait_for(const std::vector<pid_t>& workers, std::size_t total, const runtime::SharedWork& shared) {
  io::Progress progress("compiling", static_cast<std::int64_t>(total), "kernels");
  int failed = 0;
  for (const pid_t worker : workers) {
    int state = 0;
    while (::waitpid(worker, &state, WNOHANG) == 0) {
      progress.update(static_cast<std::int64_t>(shared.done()));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (!WIFEXITED(state) || WEXITSTATUS(state) != EXIT_SUCCESS) ++failed;
  }
  progress.update(static_cast<std::int64_t>(shared.done()));
  return failed;
}

}  // namespace

Status compile_all(const std::vector<runtime::Variant>& kernels, runtime::NvrtcVersion newest, unsigned jobs) {
  if (kernels.empty()) return {};
  const runtime::SharedWork shared(kernels.size());
  if (!shared.usable()) return {StatusCode::out_of_memory, "there is no memory that processes could share"};
  ::setenv("STROBE_PROGRESS", "0", 1);  // the bar says it
  std::fflush(nullptr);
  std::vector<pid_t> workers;
  for (unsigned job = 0; job < std::min<std::size_t>(jobs, kernels.size()); ++job) {
    const pid_t worker = ::fork();
    if (worker == 0) ::_exit(compile_some(kernels, newest, shared));
    if (worker > 0) workers.push_back(worker);
  }
  if (workers.empty()) return {StatusCode::out_of_memory, "no process could be started"};
  if (wait_for(workers, kernels.size(), shared) == 0) return {};
  return {StatusCode::device_error, "not every kernel was compiled; the reasons are above"};
}

}  // namespace strobe::program
