// SPDX-License-Identifier: Apache-2.0
// run_limited SECONDS COMMAND...: runs one test and ends with its exit code or signal. What the test started ends with
// it. After SECONDS, or STROBE_TEST_SECONDS where that is set, every process of the test is told by SIGABRT to print
// its stacks and end; the exit code is then 124. SIGALRM does the same at once; any other signal that ends a process
// ends the test too.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <string_view>
#include <vector>

#include "process_tree.h"

namespace strobe::test {
namespace {

constexpr int kTimedOut = 124;  // as timeout(1) has them
constexpr int kUsage = 125;
constexpr int kCannotRun = 127;
constexpr int kSecondsToPrint = 30;  // for the stacks of one process
constexpr int kSecondsToEnd = 2;     // for what a test left behind and ends by itself

constexpr std::array kAwaited{SIGCHLD, SIGALRM, SIGTERM, SIGINT, SIGHUP, SIGQUIT};

sigset_t awaited_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kAwaited) sigaddset(&set, signal);
  return set;
}

/// The test and whatever it starts. Orphans become children of this process, which so sees the last of them end.
class Test {
 public:
  explicit Test(char** command) : command_(command) {}

  /// False when there is no such command, or no process for it.
  bool start() {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::setenv("PYTHONFAULTHANDLER", "1", 1);  // Python prints its stacks on SIGABRT
    process_ = ::fork();
    if (process_ != 0) return process_ > 0;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const sigset_t set = awaited_signals();
    ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
    ::execvp(command_[0], command_);
    std::fprintf(stderr, "run_limited: cannot run '%s': %s\n", command_[0], std::strerror(errno));
    ::_exit(kCannotRun);
  }

  /// How the test itself ended, once it has.
  std::optional<int> state() const { return state_; }

  /// Takes in every process that has ended; false once there is none any more.
  bool reap() {
    int state = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(-1, &state, WNOHANG)) > 0) {
      if (ended == process_) state_ = state;
    }
    return ended == 0;
  }

  /// Waits at most `seconds` for processes to end; `done` says when they have.
  template <class Done>
  bool wait(int seconds, const Done& done) {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const std::time_t end = now.tv_sec + seconds;
    for (bool some = reap(); some && !done(); some = reap()) {
      ::clock_gettime(CLOCK_MONOTONIC, &now);
      if (now.tv_sec >= end) return false;
      const timespec slice{.tv_sec = 0, .tv_nsec = 20'000'000};
      ::nanosleep(&slice, nullptr);
    }
    return true;
  }

  /// Stops every process, then lets one after another print its stacks and end.
  void print_stacks() {
    const std::vector<pid_t> processes = stop_descendants();
    for (const pid_t process : processes) {
      describe_process(process);
      const rlimit no_core{};
      ::prlimit(process, RLIMIT_CORE, &no_core, nullptr);
      ::kill(process, SIGABRT);
      ::kill(process, SIGCONT);
      wait(kSecondsToPrint, [&] { return has_ended(process); });
    }
  }

  /// Ends whatever is left, and what that starts meanwhile.
  void kill_all() {
    while (reap()) {
      for (const pid_t process : descendants()) ::kill(process, SIGKILL);
      wait(1, [] { return false; });
    }
  }

 private:
  char** command_;
  pid_t process_ = -1;
  std::optional<int> state_;
};

[[noreturn]] void end_by_signal(int signal) {
  const rlimit no_core{};
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  ::raise(signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::_exit(128 + signal);
}

/// 0 for a text that is no limit.
unsigned seconds_of(const char* text) {
  const std::string_view digits(text);
  unsigned seconds = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seconds);
  return error == std::errc() && end == digits.data() + digits.size() ? seconds : 0;
}

int run(char** arguments) {
  const char* const own_limit = std::getenv("STROBE_TEST_SECONDS");
  const unsigned seconds = seconds_of(own_limit != nullptr ? own_limit : arguments[1]);
  ::unsetenv("STROBE_TEST_SECONDS");
  if (seconds == 0) {
    std::fputs("run_limited: the limit must be a number of seconds from 1\n", stderr);
    return kUsage;
  }
  const sigset_t set = awaited_signals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // whoever runs the tests may be killed
  Test test(arguments + 2);
  if (!test.start()) {
    std::fprintf(stderr, "run_limited: cannot start a process: %s\n", std::strerror(errno));
    return kUsage;
  }
  ::alarm(seconds);

  int signal = SIGCHLD;
  while (signal == SIGCHLD && !test.state()) {
    if (::sigwait(&set, &signal) != 0) return kUsage;
    test.reap();
  }
  const std::optional<int> state = test.state();
  if (!state && signal == SIGALRM) {
    std::fprintf(stderr, "run_limited: the test has run into its limit of %u s\n", seconds);
    test.print_stacks();
  }
  if (state) test.wait(kSecondsToEnd, [] { return false; });
  test.kill_all();
  if (!state && signal == SIGALRM) return kTimedOut;
  if (!state) end_by_signal(signal);
  if (WIFSIGNALED(*state)) end_by_signal(WTERMSIG(*state));
  return WEXITSTATUS(*state);
}

}  // namespace
}  // namespace strobe::test

int main(int argc, char** argv) {
  if (argc >= 3) return strobe::test::run(argv);
  std::fputs("usage: run_limited SECONDS COMMAND...\n", stderr);
  return strobe::test::kUsage;
}
