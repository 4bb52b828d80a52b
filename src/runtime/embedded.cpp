// SPDX-License-Identifier: Apache-2.0
#include "runtime/embedded.h"

// Defined in embedded.S.
// NOLINTBEGIN(readability-identifier-naming): the linker's names
extern "C" {
extern const char strobe_embedded_sources[];
extern const char strobe_embedded_sources_end[];
extern const char strobe_embedded_pack[];
extern const char strobe_embedded_pack_end[];
}
// NOLINTEND(readability-identifier-naming)

namespace strobe::runtime {

std::string_view embedded_sources() { return {strobe_embedded_sources, strobe_embedded_sources_end}; }

std::string_view embedded_pack() { return {strobe_embedded_pack, strobe_embedded_pack_end}; }

}  // namespace strobe::runtime
