// SPDX-License-Identifier: Apache-2.0
#include "io/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "io/number_text.h"
#include "io/terminal.h"

namespace strobe::io {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);
constexpr std::int64_t kPlainLines = 10;
constexpr int kDefaultColumns = 80;
constexpr int kShortestBar = 10;
constexpr int kLongestBar = 40;

/// Seconds as "1:02:03" or "2:03".
std::string clock_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::ceil(seconds));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

double fraction(const ProgressState& state) {
  if (state.total <= 0) return 1.0;
  return std::clamp(static_cast<double>(state.done) / static_cast<double>(state.total), 0.0, 1.0);
}

/// "310/s  0:05 left", or "in 0:09" at the end; empty while nothing can be said.
std::string pace(const ProgressState& state, const char* separator) {
  if (state.elapsed_seconds <= 0.0 || state.done <= 0) return "";
  const double rate = static_cast<double>(state.done) / state.elapsed_seconds;
  // Three digits are enough to read a rate by, whatever its size.
  const std::string shown = rate >= 100.0 ? grouped(std::llround(rate)) : fmt::format("{:.3g}", rate);
  const std::string time = state.done >= state.total
                               ? "in " + clock_time(state.elapsed_seconds)
                               : clock_time(static_cast<double>(state.total - state.done) / rate) + " left";
  return fmt::format("{}{}/s{}{}", separator, shown, separator, time);
}

/// A stream that takes no more text does not stop the work that is reported on.
void show(std::FILE* stream, const std::string& text) {
  std::fputs(text.c_str(), stream);
  std::fflush(stream);
}

}  // namespace

std::string progress_bar(const ProgressState& state, int columns) {
  const std::string text = fmt::format("{:3.0f}%  {}/{} {}{}", std::floor(100.0 * fraction(state)), grouped(state.done),
                                       grouped(state.total), state.unit, pace(state, "  "));
  std::string line = state.label + "  ";
  const int room = columns - static_cast<int>(line.size() + text.size()) - 4;  // brackets and two spaces
  if (room >= kShortestBar) {
    const int length = std::min(room, kLongestBar);
    const int filled = static_cast<int>(fraction(state) * length);
    line += fmt::format("[{:#<{}}{:.<{}}]  ", "", filled, "", length - filled);
  }
  line += text;
  line.resize(std::min(line.size(), static_cast<std::size_t>(std::max(columns, 0))));
  return line;
}

std::string progress_line(const ProgressState& state) {
  return fmt::format("{}: {:.0f}%, {} of {} {}{}", state.label, std::floor(100.0 * fraction(state)),
                     grouped(state.done), grouped(state.total), state.unit, pace(state, ", "));
}

Progress::Progress(std::string label, std::int64_t total, std::string unit, std::FILE* stream)
    : state_{std::move(label), std::move(unit), 0, total, 0.0},
      stream_(stream),
      terminal_(is_terminal(stream)),
      last_drawn_(start_ - kRedrawInterval) {}

Progress::~Progress() { finish(); }

void Progress::update(std::int64_t done) { update(done, state_.total); }

void Progress::update(std::int64_t done, std::int64_t total) {
  if (finished_) return;
  state_.done = done;
  state_.total = total;
  state_.elapsed_seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  terminal_ ? report_bar(/*last=*/false) : report_line(/*last=*/false);
}

void Progress::finish() {
  if (finished_) return;
  state_.elapsed_seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  terminal_ ? report_bar(/*last=*/true) : report_line(/*last=*/true);
  finished_ = true;
}

void Progress::report_bar(bool last) {
  const Clock::time_point now = Clock::now();
  if (!last && now - last_drawn_ < kRedrawInterval) return;
  last_drawn_ = now;
  // One column stays free: a full line would wrap on some terminals. "\x1b[K" clears what an older bar left.
  show(stream_, fmt::format("\r{}\x1b[K{}", progress_bar(state_, terminal_columns(stream_, kDefaultColumns) - 1),
                            last ? "\n" : ""));
}

void Progress::report_line(bool last) {
  const auto tenths = static_cast<std::int64_t>(fraction(state_) * static_cast<double>(kPlainLines));
  if (!last && (tenths <= lines_reported_ || tenths == kPlainLines)) return;  // finish() has the last tenth's line
  if (last && tenths < kPlainLines && state_.done == done_reported_) return;
  lines_reported_ = tenths;
  done_reported_ = state_.done;
  show(stream_, progress_line(state_) + "\n");
}

}  // namespace strobe::io
