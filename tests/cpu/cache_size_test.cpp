// SPDX-License-Identifier: Apache-2.0
#include "cpu/cache_size.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/temporary_folder.h"

namespace strobe::test {
namespace {

void describe_cache(const TemporaryFolder& folder, int index, int level, const std::string& type,
                    const std::string& size) {
  const std::filesystem::path cache = folder.path() / ("index" + std::to_string(index));
  std::filesystem::create_directory(cache);
  std::ofstream(cache / "level") << level << '\n';
  std::ofstream(cache / "type") << type << '\n';
  std::ofstream(cache / "size") << size << '\n';
}

// A Neoverse V2 as Linux describes it, with the instruction cache in the first place.
TEST(CacheSize, IsTheDataCachesOfTheLevel) {
  const TemporaryFolder folder;
  describe_cache(folder, 0, 1, "Instruction", "48K");
  describe_cache(folder, 1, 1, "Data", "64K");
  describe_cache(folder, 2, 2, "Unified", "2048K");
  describe_cache(folder, 3, 3, "Unified", "116736K");
  EXPECT_EQ(cpu::described_cache_bytes(folder.path(), 1), 64 * 1024);
  EXPECT_EQ(cpu::described_cache_bytes(folder.path(), 2), 2048 * 1024);
  EXPECT_EQ(cpu::described_cache_bytes(folder.path(), 3), 116736 * 1024);
  EXPECT_EQ(cpu::described_cache_bytes(folder.path(), 4), 0);
}

TEST(CacheSize, IsZeroWhereNothingIsDescribed) {
  const TemporaryFolder folder;
  EXPECT_EQ(cpu::described_cache_bytes(folder.path(), 1), 0);
  describe_cache(folder, 0, 1, "Data", "");
  EXPECT_EQ(cpu::described_cache_bytes(folder.path(), 1), 0);
}

}  // namespace
}  // namespace strobe::test
