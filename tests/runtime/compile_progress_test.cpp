// SPDX-License-Identifier: Apache-2.0
// What a terminal shows while kernels are compiled.
#include "runtime/compile_progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

namespace strobe::runtime {
namespace {

TEST(CompileProgress, LineFitsTheTerminal) {
  EXPECT_EQ(progress_line(1, "sm80 forward", 80), "strobe: compiling sm80 forward");
  EXPECT_EQ(progress_line(3, "sm80 forward", 80), "strobe: compiling 3 kernels, the last sm80 forward");
  EXPECT_EQ(progress_line(1, "sm80 forward", 25), "strobe: compiling sm8...");
  EXPECT_EQ(progress_line(1, "sm80 forward", 1), "");
}

/// Standard error is a terminal of 80 columns while this lives.
class Terminal {
 public:
  Terminal() {
    winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    int terminal = -1;
    if (::openpty(&controller_, &terminal, nullptr, nullptr, &size) != 0) return;
    saved_ = ::dup(STDERR_FILENO);
    ::dup2(terminal, STDERR_FILENO);
    ::close(terminal);
    ::fcntl(controller_, F_SETFL, O_NONBLOCK);
  }
  ~Terminal() {
    if (saved_ >= 0) ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
    ::close(controller_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool opened() const { return saved_ >= 0; }

  /// What was written since the last call.
  std::string take() const {
    std::string text(4096, '\0');
    const ssize_t bytes = ::read(controller_, text.data(), text.size());
    text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
    return text;
  }

 private:
  int controller_ = -1;
  int saved_ = -1;
};

TEST(CompileProgress, IsOneLineThatIsErasedInTheEnd) {
  const Terminal terminal;
  if (!terminal.opened()) GTEST_SKIP() << "no terminal can be opened here";
  ::setenv("STROBE_PROGRESS", "1", 1);
  {
    const CompileProgress first("one");
    EXPECT_EQ(terminal.take(), "\r\x1b[Kstrobe: compiling one");
    auto second = std::make_unique<CompileProgress>("two");
    EXPECT_EQ(terminal.take(), "\r\x1b[Kstrobe: compiling 2 kernels, the last two");
    second.reset();
    EXPECT_EQ(terminal.take(), "");
  }
  EXPECT_EQ(terminal.take(), "\r\x1b[K");
  ::unsetenv("STROBE_PROGRESS");
  const CompileProgress silent("three");
  EXPECT_EQ(terminal.take(), "");
}

}  // namespace
}  // namespace strobe::runtime
