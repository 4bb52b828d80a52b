// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "io/number_text.h"
#include "io/printable.h"
#include "io/terminal.h"

namespace sentence_search {
namespace {

using strobe::io::binary_units;
using strobe::io::grouped;

constexpr int kPlainColumns = 100;
constexpr int kNarrowest = 40;

/// Breaks `text` between words into lines of at most `width` characters, each but the first after `indent` spaces.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::string result;
  while (text.size() > width) {
    std::size_t end = text.rfind(' ', width);
    if (end == std::string_view::npos || end == 0) end = std::min(text.find(' ', width), text.size());
    result += fmt::format("{}\n{:{}}", text.substr(0, end), "", indent);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result.append(text);
}

void print_measurement(const char* name, const Measurement& measurement) {
  const std::string memory = measurement.memory_bytes ? binary_units(*measurement.memory_bytes) : "unknown";
  const std::string time = measurement.seconds < 1.0 ? fmt::format("{:.1f} ms", 1e3 * measurement.seconds)
                                                     : fmt::format("{:.2f} s", measurement.seconds);
  fmt::print("  {:<20}{:>9}{:>13}{:>12.1e}{:>12.1e}\n", name, time, memory, measurement.root_mean_square_error,
             measurement.largest_error);
}

void print_shares(const Measurement& strobe, const Measurement& standard) {
  fmt::print("  {:<20}{:>7.1f} x", "standard / Strobe", standard.seconds / strobe.seconds);
  if (standard.memory_bytes && strobe.memory_bytes.value_or(0) > 0) {
    const double ratio = static_cast<double>(*standard.memory_bytes) / static_cast<double>(*strobe.memory_bytes);
    fmt::print("{:>11.0f} x", ratio);
  }
  fmt::print("\n");
}

}  // namespace

Report::Report()
    : color_(strobe::io::is_terminal(stdout) && std::getenv("NO_COLOR") == nullptr),
      columns_(static_cast<std::size_t>(std::max(kNarrowest, strobe::io::terminal_columns(stdout, kPlainColumns)))) {}

std::string Report::bold(const std::string& text) const { return color_ ? "\x1b[1m" + text + "\x1b[0m" : text; }

std::string Report::dim(const std::string& text) const { return color_ ? "\x1b[2m" + text + "\x1b[0m" : text; }

void Report::print_title(const std::string& title) const {
  fmt::print("{}\n", bold(title));
  std::fflush(stdout);
}

void Report::print_index(const Index& index, std::size_t passages) const {
  if (index.seconds == 0.0) {
    fmt::print("{} passages, encoded before\n", grouped(passages));
    return;
  }
  const bool all = index.passages.size() == passages;
  fmt::print("{} of {} passages{}, {} tokens, in {:.1f} s: {} tokens/s\n", grouped(index.passages.size()),
             grouped(passages), all ? "" : ", spread evenly over the text", grouped(index.tokens), index.seconds,
             grouped(static_cast<std::size_t>(static_cast<double>(index.tokens) / index.seconds)));
}

void Report::print_hits(const std::string& query, const std::vector<Hit>& hits,
                        const std::vector<Passage>& passages) const {
  std::size_t name_width = 0;
  for (const Hit& hit : hits) name_width = std::max(name_width, passages[hit.passage].reference.size());
  const std::size_t indent = 2 + 5 + 2 + name_width + 2;  // margin, score, gap, reference, gap
  fmt::print("\n{}\n", bold("\"" + strobe::io::printable(query) + "\""));
  for (const Hit& hit : hits) {
    const Passage& passage = passages[hit.passage];
    fmt::print("  {:.3f}  {}  {}\n", hit.score, dim(fmt::format("{:<{}}", passage.reference, name_width)),
               wrapped(strobe::io::printable(passage.text), columns_ - std::min(indent, columns_ / 2), indent));
  }
}

void Report::print_comparison(const Comparison& comparison, std::size_t asked_seqlen, int threads) const {
  const auto seqlen = static_cast<std::size_t>(comparison.seqlen);
  fmt::print("\n{}\n", bold(fmt::format("Attention of layer {} on one sequence of {} tokens", comparison.layer + 1,
                                        grouped(seqlen))));
  if (seqlen < asked_seqlen) {
    fmt::print("  {} were asked for: {}\n", grouped(asked_seqlen),
               seqlen < longest_comparison() ? "the text has no more" : "standard attention has no memory for more");
  }
  fmt::print("  Q, K and V of the text itself, {} heads, head_dim {}, float32, {} thread{}\n\n", comparison.heads,
             comparison.head_dim, threads, threads == 1 ? "" : "s");
  fmt::print("  {:<20}{:>9}{:>13}{:>12}{:>12}\n", "", "time", "memory", "RMSE", "max error");
  print_measurement("standard attention", comparison.standard);
  print_measurement("Strobe", comparison.strobe);
  print_shares(comparison.strobe, comparison.standard);
  fmt::print(
      "\n  memory: the process's peak beyond Q, K, V and O; standard attention has one head's S and P at a time\n"
      "  errors: against float64, for {} queries of each head, spread evenly\n",
      grouped(static_cast<std::size_t>(comparison.sampled_queries)));
}

}  // namespace sentence_search
