// SPDX-License-Identifier: Apache-2.0
// What a mistyped word was meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace strobe::program {

/// The word of `known` that `given` is nearest to, by letters missing, added, wrong or swapped with their neighbour; ""
/// where none is near: at most a third of its letters may be wrong. A word that only has another part before or after
/// it
/// ("softmax-scale" for "scale") is near, too.
std::string nearest_word(std::string_view given, const std::vector<std::string>& known);

}  // namespace strobe::program
