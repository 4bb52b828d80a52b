// SPDX-License-Identifier: Apache-2.0
#include "cpu/cache_size.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

namespace strobe::cpu {

// Documentation/ABI/testing/sysfs-devices-system-cpu: a folder for each cache, with a word or a number in each file.
std::int64_t described_cache_bytes(const std::string& folder, int level) {
  for (int index = 0;; ++index) {
    const std::string cache = fmt::format("{}/index{}", folder, index);
    int own_level = 0;
    if (!(std::ifstream(cache + "/level") >> own_level)) return 0;
    std::string type;
    std::ifstream(cache + "/type") >> type;
    if (own_level != level || type == "Instruction") continue;
    std::int64_t kib = 0;
    std::ifstream(cache + "/size") >> kib;  // "64K"
    return kib * 1024;
  }
}

std::int64_t data_cache_bytes(int level, std::int64_t otherwise) {
  const long known = sysconf(level == 1 ? _SC_LEVEL1_DCACHE_SIZE : _SC_LEVEL2_CACHE_SIZE);
  if (known > 0) return known;
  // On ARM no instruction tells a program the sizes, and the C library knows none.
  const std::int64_t described = described_cache_bytes("/sys/devices/system/cpu/cpu0/cache", level);
  return described > 0 ? described : otherwise;
}

}  // namespace strobe::cpu
