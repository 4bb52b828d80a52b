// SPDX-License-Identifier: Apache-2.0
// strobe verify --eight-bit: what each ingredient of 8-bit attention does to the error.
#pragma once

#include <cstdint>

#include "exit_code.h"
#include "flags.h"
#include "json_flag.h"

namespace strobe::program {

/// Prints the root mean square error of O, quantisation included, of 8-bit operands made in several ways, on several
/// distributions of inputs. Batch 1 and equal heads. With more keys than queries, of the last queries, relative to O,
/// and beside it how many keys are found that one query each looks for. JSON rows are {operands, inputs, rmse}, and for
/// the modes of a budget also {estimate, bound}; for needles {operands, inputs, found}.
ExitCode verify_eight_bit(const ShapeFlags& shape, const AttentionOptions& options, const Execution& execution,
                          std::uint64_t seed, const JsonFlag& json);

}  // namespace strobe::program
