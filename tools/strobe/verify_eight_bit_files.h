// SPDX-License-Identifier: Apache-2.0
// strobe verify --eight-bit on a user's own tensors: which element, scales and rotation they need.
#pragma once

#include <optional>

#include "exit_code.h"
#include "input_files.h"
#include "json_flag.h"
#include "strobe/attention.h"

namespace strobe::program {

/// Prints the root mean square error of O on q, k and v from files in several quantisations, then of each element the
/// simplest that has nearly its least error, and which element keeps to `max_rmse`, where that is given; check_failed
/// where none does. JSON: rows of {operands, rmse}; needs of {element, q_scales, k_scales, v_scales, rotate_qk,
/// rotate_v, center_k, rmse}; and chosen, the element, or null.
ExitCode verify_eight_bit_files(const InputFlags& inputs, std::optional<float> max_rmse,
                                const AttentionOptions& options, const Execution& execution, const JsonFlag& json);

}  // namespace strobe::program
