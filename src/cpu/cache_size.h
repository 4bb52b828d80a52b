// SPDX-License-Identifier: Apache-2.0
// The sizes of this machine's caches.
#pragma once

#include <cstdint>
#include <string>

namespace strobe::cpu {

/// Bytes of the data cache of `level` as Linux describes a processor's caches below `folder`; 0 where it does not.
std::int64_t described_cache_bytes(const std::string& folder, int level);

/// Bytes of the first processor's data cache of level 1 or 2, or `otherwise` where neither the C library nor Linux
/// tells it, as in containers and emulators.
std::int64_t data_cache_bytes(int level, std::int64_t otherwise);

}  // namespace strobe::cpu
