// SPDX-License-Identifier: Apache-2.0
#include "io/progress.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace strobe::io {
namespace {

TEST(ProgressBar, FillsTheRoomThatTheTextLeaves) {
  const ProgressState state{"encoding", "verses", 1250, 5000, 5.0};
  const std::string bar = progress_bar(state, 79);
  EXPECT_EQ(bar, "encoding  [#####..................]   25%  1,250/5,000 verses  250/s  0:15 left");
  EXPECT_EQ(bar.size(), 79U);
  EXPECT_LE(progress_bar(state, 200).size(), 100U);
}

TEST(ProgressBar, NeverExceedsTheTerminal) {
  const ProgressState state{"encoding", "verses", 1250, 5000, 5.0};
  EXPECT_EQ(progress_bar(state, 58), "encoding   25%  1,250/5,000 verses  250/s  0:15 left");
  EXPECT_EQ(progress_bar(state, 20), "encoding   25%  1,25");
  EXPECT_EQ(progress_bar(state, -1), "");
}

TEST(ProgressLine, SaysPaceAndTime) {
  EXPECT_EQ(progress_line({"encoding", "verses", 0, 5000, 0.0}), "encoding: 0%, 0 of 5,000 verses");
  EXPECT_EQ(progress_line({"encoding", "verses", 4999, 5000, 9998.0}),
            "encoding: 99%, 4,999 of 5,000 verses, 0.5/s, 0:02 left");
  EXPECT_EQ(progress_line({"encoding", "verses", 10, 73000, 10.0}),
            "encoding: 0%, 10 of 73,000 verses, 1/s, 20:16:30 left");
  EXPECT_EQ(progress_line({"encoding", "verses", 1234567, 1234567, 61.0}),
            "encoding: 100%, 1,234,567 of 1,234,567 verses, 20,239/s, in 1:01");
  EXPECT_EQ(progress_line({"encoding", "verses", 0, 0, 0.0}), "encoding: 100%, 0 of 0 verses");
}

/// What Progress writes to a stream that is no terminal, line by line, without paces.
template <class Work>
std::vector<std::string> reported(std::int64_t total, const Work& work) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
  {
    Progress progress("work", total, "steps", file.get());
    work(progress);
  }
  EXPECT_EQ(std::fseek(file.get(), 0, SEEK_SET), 0);
  std::vector<std::string> lines;
  char line[256];
  while (std::fgets(line, sizeof(line), file.get()) != nullptr) {
    const std::string text(line);
    lines.push_back(text.substr(0, text.find(" steps")));
  }
  return lines;
}

TEST(Progress, WritesOneLineForEveryTenth) {
  const auto lines = reported(1000, [](Progress& progress) {
    for (int i = 0; i <= 1000; ++i) progress.update(i);
  });
  ASSERT_EQ(lines.size(), 10U);
  EXPECT_EQ(lines.front(), "work: 10%, 100 of 1,000");
  EXPECT_EQ(lines.back(), "work: 100%, 1,000 of 1,000");
}

TEST(Progress, FinishesOnce) {
  const auto lines = reported(100, [](Progress& progress) {
    progress.update(5);
    progress.finish();
    progress.update(90);
    progress.finish();
  });
  EXPECT_EQ(lines, std::vector<std::string>{"work: 5%, 5 of 100"});
}

TEST(Progress, FollowsATotalThatChanges) {
  const auto lines = reported(1000, [](Progress& progress) {
    progress.update(100, 1000);
    progress.update(120, 200);
  });
  EXPECT_EQ(lines, (std::vector<std::string>{"work: 10%, 100 of 1,000", "work: 60%, 120 of 200"}));
}

}  // namespace
}  // namespace strobe::io
