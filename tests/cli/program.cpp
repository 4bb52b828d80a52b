// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "runtime/temporary_folder.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program to declare

namespace strobe::test {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// What was built beside these tests, or what STROBE_PROGRAM names: where they are copied to.
std::string path_of_program() {
  const char* elsewhere = std::getenv("STROBE_PROGRAM");
  return elsewhere != nullptr ? elsewhere : STROBE_PROGRAM;
}

/// Runs the program and, while it runs, calls meanwhile(its process).
template <class Meanwhile>
Outcome run(const std::vector<std::string>& arguments, const std::string& other_out, const Meanwhile& meanwhile) {
  const TemporaryFolder folder;
  const std::string out = other_out.empty() ? folder / "out" : other_out;
  const std::string err = folder / "err";
  std::vector<std::string> words{path_of_program()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT, 0600);
  pid_t process = -1;
  const int error = posix_spawn(&process, words[0].c_str(), &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(error, 0);
  if (error != 0) return {};

  meanwhile(process);
  int state = 0;
  EXPECT_EQ(::waitpid(process, &state, 0), process);
  return {WIFEXITED(state) ? WEXITSTATUS(state) : -1, other_out.empty() ? content_of(out) : "", content_of(err)};
}

}  // namespace

Outcome run_program(const std::vector<std::string>& arguments, const std::string& other_out) {
  return run(arguments, other_out, [](pid_t) {});
}

Outcome interrupt_program(const std::vector<std::string>& arguments, const std::string& file) {
  return run(arguments, "", [&](pid_t process) {
    siginfo_t ended{};
    while (!std::filesystem::exists(file) && ended.si_pid == 0) {
      ::waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOHANG | WNOWAIT);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ::kill(process, SIGINT);
  });
}

void expect_rejection(const Outcome& outcome, int code, const std::string& words) {
  EXPECT_EQ(outcome.exit_code, code);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err.rfind("strobe: ", 0), 0U) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
}

}  // namespace strobe::test
