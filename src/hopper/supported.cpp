// SPDX-License-Identifier: Apache-2.0
#include "hopper/supported.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "call/eight_bit.h"
#include "gpu/row_invariant.h"
#include "hopper/engine.h"
#include "hopper/pages.h"

namespace strobe::hopper {

namespace {

/// What the kernel for 8-bit operands lacks.
Status check_eight_bit(const AttentionProblem& problem) {
  for (const auto& [name, value] :
       {std::pair{"head_dim", problem.head_dim}, std::pair{"head_dim_v", problem.head_dim_v}}) {
    if (value != 64 && value != 128) {
      return unsupported("{} is {}: the hopper engine takes 64 and 128 with {} inputs; the cpu engine takes any", name,
                         value, name_of(problem.dtype));
    }
  }
  if (problem.eight_bit.k_rows < std::min(kGroupRows, problem.seqlen_k)) {
    return unsupported("k_descale has a scale for each row: the hopper engine takes one for 32 rows or more");
  }
  return {};
}

/// What the kernel that converts K and V lacks.
Status check_stored_pages(const AttentionProblem& problem) {
  if (key_source(problem) != forward::KeySource::page_rows) return {};
  const std::string_view dtype = name_of(problem.stored.dtype);
  if (problem.has_leftpad_k) {
    return unsupported(
        "k is {} in pages, and leftpad_k is given: the hopper engine takes one of them; the cpu engine takes both",
        dtype);
  }
  return unsupported("k is {} in pages of {} rows: the hopper engine takes multiples of 8; the cpu engine takes any",
                     dtype, problem.page_size);
}

}  // namespace

Status check_supported(const AttentionProblem& problem) {
  if (problem.eight_bit.given()) {
    if (Status status = check_eight_bit(problem); !status.ok()) return status;
  } else if (Status status = gpu::check_dtype(problem, kEngine); !status.ok()) {
    return status;
  }
  if (problem.stored.given()) {
    if (Status status = check_stored_pages(problem); !status.ok()) return status;
  }
  if (Status status = gpu::check_row_invariant(problem, kEngine); !status.ok()) return status;
  return gpu::check_sizes(problem, kEngine);
}

}  // namespace strobe::hopper
