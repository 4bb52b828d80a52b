// SPDX-License-Identifier: Apache-2.0
// CLI11's command by its name alone: compiling the library takes seconds, and only what adds flags needs it.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own
class App;
}
