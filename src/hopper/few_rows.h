// SPDX-License-Identifier: Apache-2.0
// Calls that the Ampere engine's forward computes: of so few query rows that WGMMA's 64 would be mostly idle, and on
// stored keys that TMA does not bring.
#pragma once

#include "ampere/forward.h"
#include "call/problem.h"

namespace strobe::hopper {

/// Whether the Ampere engine's forward computes the call: its tiles are of 16 rows, and its warps share out the keys.
/// Measured on an H200: docs/performance-log-hopper.md.
bool has_few_rows(const AttentionProblem& problem);

/// What plans of such calls say of it, and those of reads_stored_page_rows() (pages.h).
ampere::Caller few_rows_caller();
ampere::Caller stored_page_rows_caller();

}  // namespace strobe::hopper
