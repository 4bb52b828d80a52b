// SPDX-License-Identifier: Apache-2.0
// Every test program links this: on SIGABRT, which run_limited sends to what hangs, the stacks of all threads go to
// standard error. Frames are program(+offset); `addr2line -Cfpe PROGRAM OFFSET` names their lines.
#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { most_frames = 64, slices = 2000 };  // a thread has two seconds to answer

static const int kPrintYourStack = SIGUSR2;
static atomic_int printed;  // stacks so far

static void write_text(const char* text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) return;  // nobody reads it
}

static void print_own_stack(int signal_number) {
  (void)signal_number;
  void* frames[most_frames];
  char title[64];
  snprintf(title, sizeof title, "stack of thread %ld:\n", syscall(SYS_gettid));
  write_text(title);
  backtrace_symbols_fd(frames, backtrace(frames, most_frames), STDERR_FILENO);
  atomic_fetch_add(&printed, 1);
}

static void wait_for_stack(int count, const char* thread) {
  const struct timespec slice = {.tv_sec = 0, .tv_nsec = 1000000};
  for (int i = 0; i < slices && atomic_load(&printed) < count; ++i) nanosleep(&slice, NULL);
  if (atomic_load(&printed) >= count) return;
  write_text("no answer from thread ");
  write_text(thread);
  write_text("\n");
}

/// One thread after another, so that their lines do not mix.
static void print_all_stacks(int signal_number) {
  print_own_stack(signal_number);
  DIR* const threads = opendir("/proc/self/task");
  if (threads != NULL) {
    for (const struct dirent* entry = readdir(threads); entry != NULL; entry = readdir(threads)) {
      const long thread = strtol(entry->d_name, NULL, 10);
      if (thread <= 0 || thread == syscall(SYS_gettid)) continue;
      const int before = atomic_load(&printed);
      if (syscall(SYS_tgkill, getpid(), thread, kPrintYourStack) == 0) wait_for_stack(before + 1, entry->d_name);
    }
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

__attribute__((constructor)) static void install(void) {
  void* frame;
  backtrace(&frame, 1);  // loads the unwinder now: a handler must not
  struct sigaction action = {.sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  action.sa_handler = print_own_stack;
  sigaction(kPrintYourStack, &action, NULL);
  action.sa_handler = print_all_stacks;
  sigaction(SIGABRT, &action, NULL);
}
