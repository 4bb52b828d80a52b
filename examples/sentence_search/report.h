// SPDX-License-Identifier: Apache-2.0
// What the program prints: hits and the comparison, with colour on a terminal only.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "comparison.h"
#include "index.h"
#include "passages.h"

namespace sentence_search {

class Report {
 public:
  /// Looks at standard output: terminal or not, width, NO_COLOR.
  Report();

  void print_title(const std::string& title) const;
  void print_index(const Index& index, std::size_t passages) const;
  void print_hits(const std::string& query, const std::vector<Hit>& hits, const std::vector<Passage>& passages) const;
  void print_comparison(const Comparison& comparison, std::size_t asked_seqlen, int threads) const;

 private:
  std::string bold(const std::string& text) const;
  std::string dim(const std::string& text) const;

  bool color_;
  std::size_t columns_;
};

}  // namespace sentence_search
