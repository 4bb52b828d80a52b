// SPDX-License-Identifier: Apache-2.0
// The calls that a model makes, from its config.json as transformers writes it.
#pragma once

#include <filesystem>
#include <vector>

#include "call/problem.h"
#include "strobe/status.h"

namespace strobe::program {

/// Prefills, batched and packed, and steps of a query at a time over caches, contiguous and in pages; with `training`
/// the backwards too. For each kind of layer: with and without its sliding window. invalid_argument names what the file
/// lacks.
Result<std::vector<AttentionProblem>> model_calls(const std::filesystem::path& path, bool training);

}  // namespace strobe::program
