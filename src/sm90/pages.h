// SPDX-License-Identifier: Apache-2.0
// How the forward reads keys and values in pages.
#pragma once

#include <cstdint>
#include <numeric>

#include "call/problem.h"
#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// By TMA where a page is whole atoms of the swizzle, of 8 rows: every block_n is a multiple of them, too. Behind left
/// padding blocks of keys begin anywhere in a page.
inline forward::KeySource key_source(const AttentionProblem& problem) {
  if (problem.page_size == 0) return forward::KeySource::tensor;
  const bool boxes = problem.page_size % forward::kLeastBoxRows == 0 && !problem.has_leftpad_k;
  return boxes ? forward::KeySource::page_boxes : forward::KeySource::page_rows;
}

/// Whether K and V in 8 bits are to be read out of pages row by row, for which there is no kernel here.
inline bool reads_stored_page_rows(const AttentionProblem& problem) {
  return problem.stored.given() && key_source(problem) == forward::KeySource::page_rows;
}

/// Rows of the boxes that TMA reads: of a block of keys each lies in one page.
inline int page_box_rows(const AttentionProblem& problem, const forward::Config& config) {
  return static_cast<int>(std::gcd(problem.page_size, static_cast<std::int64_t>(config.block_n)));
}

/// Whether blocks are to be read whole, as pages hold them. Parts of narrow tiles gain nothing by it, and so have one
/// kernel for all sizes of pages. log: wide-page-blocks
inline bool has_page_blocks(const AttentionProblem& problem, const forward::Config& config) {
  return config.keys == forward::KeySource::page_boxes && !converts(config) &&
         (is_wide(config) || config.schedule != Schedule::split) && page_box_rows(problem, config) == config.block_n;
}

}  // namespace strobe::sm90
