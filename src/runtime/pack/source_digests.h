// SPDX-License-Identifier: Apache-2.0
// One digest for each of our headers of everything it includes, so that a change recompiles only the kernels it
// reaches.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "strobe/status.h"

namespace strobe::runtime {

using Headers = std::map<std::string, std::string>;  // text by the name that #include gives

/// (KernelStore::digest_entry(header), digest) for each of `own`: over the header, those of `own` that it reaches by
/// #include, and all of `foreign`, which change with CUDA's version alone. Fails where one of `own` names what it
/// includes by a macro.
Result<std::vector<std::pair<std::string, std::string>>> digests_of_sources(const Headers& own, const Headers& foreign);

/// `reached` and what they name in turn by #include, as far as `foreign` has it: whatever #if may hide from one
/// compiler.
std::set<std::string> named_headers(const std::set<std::string>& reached, const Headers& foreign);

}  // namespace strobe::runtime
