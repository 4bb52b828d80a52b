// SPDX-License-Identifier: Apache-2.0
// How far a long piece of work has come: a bar on a terminal, a few plain lines anywhere else.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace strobe::io {

/// One moment of a piece of work.
struct ProgressState {
  std::string label;  // "encoding"
  std::string unit;   // "verses"
  std::int64_t done = 0;
  std::int64_t total = 0;
  double elapsed_seconds = 0.0;
};

/// "encoding  [#########.............]  42%  1,200/2,860 verses  310/s  0:05 left", in at most `columns` characters:
/// the bar takes what the text leaves it.
std::string progress_bar(const ProgressState& state, int columns);

/// "encoding: 42%, 1,200 of 2,860 verses, 310/s, 0:05 left"
std::string progress_line(const ProgressState& state);

/// Reports to `stream`, standard error by default, so that results on standard output stay clean. A terminal sees one
/// bar, redrawn at most ten times a second; anything else one line for every tenth of the work, at most.
class Progress {
 public:
  Progress(std::string label, std::int64_t total, std::string unit, std::FILE* stream = stderr);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Finishes, if that was not done.
  ~Progress();

  /// `done` of the total are behind us.
  void update(std::int64_t done);

  /// The same, for work whose size is an estimate that sharpens on the way.
  void update(std::int64_t done, std::int64_t total);

  /// Leaves the last state on a line of its own; later updates are ignored.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  void report_bar(bool last);
  void report_line(bool last);

  ProgressState state_;
  std::FILE* stream_;
  bool terminal_;
  bool finished_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_drawn_;     // terminal: when the bar was last drawn
  std::int64_t lines_reported_ = 0;  // elsewhere: tenths of the work that have had their line
  std::int64_t done_reported_ = 0;   // elsewhere: what the last line said
};

}  // namespace strobe::io
