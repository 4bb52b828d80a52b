// SPDX-License-Identifier: Apache-2.0
// Shared memory for the gradients of captures (score/capture_gradients.h). Plain constexpr C++, shared by host and
// device.
#pragma once

namespace strobe::score {

/// On how many diagonals a thread has scores of its warp's fragment of sixteen rows.
constexpr int thread_diagonals(int columns) { return columns / 4 + 2; }

/// Floats in which a warp adds up what its threads have of each diagonal.
constexpr int diagonal_floats(int columns) { return 32 * thread_diagonals(columns); }

}  // namespace strobe::score
