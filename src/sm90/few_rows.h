// SPDX-License-Identifier: Apache-2.0
// Calls that the Ampere engine's forward computes: of so few query rows that WGMMA's 64 would be mostly idle, and on
// stored keys that TMA does not bring.
#pragma once

#include "call/problem.h"
#include "sm80/forward.h"

namespace strobe::sm90 {

/// Whether the Ampere engine's forward computes the call: its tiles are of 16 rows, and its warps share out the keys.
// log: sm90-forward-few-rows-by-mmasync-table
bool has_few_rows(const AttentionProblem& problem);

/// What plans of such calls say of it, and those of reads_stored_page_rows() (pages.h).
sm80::Caller few_rows_caller();
sm80::Caller stored_page_rows_caller();

}  // namespace strobe::sm90
