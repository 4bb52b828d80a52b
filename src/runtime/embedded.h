// SPDX-License-Identifier: Apache-2.0
// What the build put inside the library.
#pragma once

#include <string_view>

namespace strobe::runtime {

/// The archive of every header that kernels include; no bytes in a build without GPU kernels.
std::string_view embedded_sources();

/// The archive of the kernels compiled at build time; no bytes in a build without GPU kernels.
std::string_view embedded_pack();

}  // namespace strobe::runtime
