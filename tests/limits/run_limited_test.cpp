// SPDX-License-Identifier: Apache-2.0
// What hangs is ended, with the stacks of its threads, and nothing that it started stays behind.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program to declare

namespace strobe::test {
namespace {

/// A command with its standard output and standard error in one pipe.
class Command {
 public:
  explicit Command(std::vector<std::string> arguments) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    for (const int end : ends) posix_spawn_file_actions_addclose(&actions, end);
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&process_, words[0], &actions, nullptr, words.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    output_ = ::fdopen(ends[0], "r");
  }
  Command(Command&& other) noexcept : process_(other.process_), output_(std::exchange(other.output_, nullptr)) {}
  Command& operator=(Command&&) = delete;
  ~Command() {
    if (output_ != nullptr) std::fclose(output_);
  }

  /// The number after "ready", which a hanging program prints.
  pid_t wait_until_ready() {
    int daemon = 0;
    EXPECT_EQ(std::fscanf(output_, "ready %d", &daemon), 1);
    return daemon;
  }

  void send(int signal) const { EXPECT_EQ(::kill(process_, signal), 0); }

  /// All that it still prints: the pipe ends with the last process that holds it.
  std::string rest() {
    std::string text;
    for (int byte = std::fgetc(output_); byte != EOF; byte = std::fgetc(output_)) text += static_cast<char>(byte);
    return text;
  }

  /// Its wait status.
  int end() const {
    int state = 0;
    EXPECT_EQ(::waitpid(process_, &state, 0), process_);
    return state;
  }

 private:
  pid_t process_ = -1;
  std::FILE* output_ = nullptr;
};

/// run_limited with a limit that no test here reaches by itself.
Command limited(std::vector<std::string> command) {
  command.insert(command.begin(), {RUN_LIMITED, "100000"});
  return Command(std::move(command));
}

int exit_code_of(Command command) {
  command.rest();
  const int state = command.end();
  return WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
}

bool is_gone(pid_t process) { return ::kill(process, 0) == -1 && errno == ESRCH; }

std::size_t count(const std::string& text, const std::string& words) {
  std::size_t found = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++found;
  return found;
}

TEST(RunLimited, EndsAsTheTestDoes) {
  EXPECT_EQ(exit_code_of(limited({"/bin/sh", "-c", "exit 0"})), 0);
  EXPECT_EQ(exit_code_of(limited({"/bin/sh", "-c", "exit 7"})), 7);
  EXPECT_EQ(exit_code_of(limited({"/bin/sh", "-c", "kill -SEGV $$"})), -SIGSEGV);
  EXPECT_EQ(exit_code_of(limited({"/no/such/program"})), 127);
  EXPECT_EQ(exit_code_of(Command({RUN_LIMITED, "many", "/bin/true"})), 125);
  EXPECT_EQ(exit_code_of(Command({RUN_LIMITED, "1"})), 125);
}

TEST(RunLimited, HasATimer) { EXPECT_EQ(exit_code_of(Command({RUN_LIMITED, "1", "/bin/sleep", "100000"})), 124); }

TEST(RunLimited, EndsATestThatHangsAndPrintsItsStacks) {
  Command command = limited({HANG});
  const pid_t daemon = command.wait_until_ready();
  command.send(SIGALRM);
  const std::string text = command.rest();
  const int state = command.end();
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 124) << state;
  EXPECT_TRUE(is_gone(daemon));
  EXPECT_NE(text.find("has run into its limit of 100000 s"), std::string::npos) << text;
  EXPECT_EQ(count(text, "\nprocess "), 2U) << text;
  EXPECT_EQ(count(text, "stack of thread "), 4U) << text;  // three of the test, one of the process that it started
  EXPECT_EQ(count(text, "wait_for_the_lock"), 2U) << text;
  EXPECT_EQ(text.find("the lock was free"), std::string::npos) << text;
}

TEST(RunLimited, PrintsTheStacksOfPython) {
  Command command = limited({PYTHON, "-c",
                             "import os, threading\n"
                             "def wait_for_ever():\n"
                             "  print('ready', os.getpid(), flush=True)\n"
                             "  threading.Event().wait()\n"
                             "wait_for_ever()\n"});
  command.wait_until_ready();
  command.send(SIGALRM);
  const std::string text = command.rest();
  command.end();
  EXPECT_NE(text.find("in wait_for_ever"), std::string::npos) << text;
}

TEST(RunLimited, EndsTheTestWhenItIsInterrupted) {
  Command command = limited({"/bin/sh", "-c", "trap '' TERM ABRT; echo ready $$; while :; do sleep 100; done"});
  const pid_t shell = command.wait_until_ready();
  command.send(SIGTERM);
  command.rest();
  const int state = command.end();
  EXPECT_TRUE(WIFSIGNALED(state) && WTERMSIG(state) == SIGTERM) << state;
  EXPECT_TRUE(is_gone(shell));
}

TEST(RunLimited, EndsWhatTheTestLeavesBehind) {
  Command command = limited({"/bin/sh", "-c", "sleep 100000 & echo ready $!"});
  const pid_t left = command.wait_until_ready();
  command.rest();
  EXPECT_EQ(command.end(), 0);
  EXPECT_TRUE(is_gone(left));
}

TEST(RunLimited, EndsWithItsParent) {
  Command parent({"/bin/sh", "-c", "\"$0\" 100000 \"$1\" & wait", RUN_LIMITED, HANG});
  parent.wait_until_ready();
  parent.send(SIGKILL);
  parent.rest();  // ends with the last process that can write to the pipe
  parent.end();
}

}  // namespace
}  // namespace strobe::test
