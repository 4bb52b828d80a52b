// SPDX-License-Identifier: Apache-2.0
// A node as text that parses to it again, unless it is very long: then parts of it are "...".
#pragma once

#include <span>
#include <string>

#include "expression/graph.h"
#include "expression/parser.h"

namespace strobe::expression {

std::string text_of(const Graph& graph, Id id, std::span<const Capture> captures);

}  // namespace strobe::expression
