// SPDX-License-Identifier: Apache-2.0
// Tables of tuned choices: read whole or not at all, whatever a file holds.
#include "runtime/tuned_table.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "runtime/sha256.h"
#include "temporary_folder.h"

namespace strobe::runtime {
namespace {

using test::TemporaryFolder;

CudaDevice device_of(int index, const std::string& name = "NVIDIA H100 80GB HBM3") {
  CudaDevice device;
  device.index = index;
  device.name = name;
  device.compute_major = 9;
  device.multiprocessors = 132;
  return device;
}

TunedTable table_for(const CudaDevice& device) {
  return {.device = tuned_device(device),
          .library = tuned_library(),
          .entries = {{"sm90 {\"batch\": 1}", {"section_heads=8", 1.0625}}, {"sm90 {\"batch\": 2}", {"rule", 1.0}}}};
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// STROBE_TUNED while it lives.
class TunedVariable {
 public:
  explicit TunedVariable(const std::string& path) { ::setenv("STROBE_TUNED", path.c_str(), 1); }
  ~TunedVariable() { ::unsetenv("STROBE_TUNED"); }
};

TEST(TunedTable, IsALineForEachCall) {
  const TunedTable table = table_for(device_of(0));
  const std::string text = tuned_text(table);
  EXPECT_TRUE(text.starts_with("strobe tuned choices 1\nlibrary " + tuned_library() +
                               "\ndevice NVIDIA H100 80GB HBM3, compute capability 9.0, 132 multiprocessors\n"
                               "sm90 {\"batch\": 1} | section_heads=8 | 1.0625\n"
                               "sm90 {\"batch\": 2} | rule | 1.0000\nsha256 "))
      << text;
  const TunedRead read = parse_tuned(text);
  EXPECT_EQ(read.reason, "");
  EXPECT_EQ(read.table.device, table.device);
  EXPECT_EQ(read.table.library, table.library);
  EXPECT_EQ(read.table.entries, table.entries);
}

TEST(TunedTable, DamageIsNoTable) {
  const std::string text = tuned_text(table_for(device_of(0)));
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_NE(parse_tuned(damaged).reason, "") << at;
    EXPECT_NE(parse_tuned(text.substr(0, at)).reason, "") << at;
  }
  EXPECT_NE(parse_tuned(text + "\n").reason, "");
  EXPECT_NE(parse_tuned("").reason, "");
}

/// The hash is right, and what it is of is not.
TEST(TunedTable, OtherLinesAreNoTable) {
  const std::string head = "strobe tuned choices 1\nlibrary 1 2\ndevice D\n";
  const auto reason = [](const std::string& lines) {
    return parse_tuned(lines + "sha256 " + to_hex(Sha256().update(lines).finish()) + "\n").reason;
  };
  EXPECT_EQ(reason(head), "");
  EXPECT_EQ(reason(head + "a | rule | 1.0000\nb | rule | 1.0000\n"), "");
  EXPECT_NE(reason(head + "b | rule | 1.0000\na | rule | 1.0000\n"), "");  // order
  EXPECT_NE(reason(head + "a | rule | 1.0000\na | rule | 1.0000\n"), "");  // twice
  EXPECT_NE(reason(head + "a | rule | 1\n"), "");
  EXPECT_NE(reason(head + "a | rule | nan\n"), "");
  EXPECT_NE(reason(head + "a | rule | -1.0000\n"), "");
  EXPECT_NE(reason(head + "a | rule\n"), "");
  EXPECT_NE(reason(head + "\n"), "");
  EXPECT_NE(reason("strobe tuned choices 2\nlibrary 1 2\ndevice D\n"), "");
  EXPECT_NE(reason("strobe tuned choices 1\ndevice D\nlibrary 1 2\n"), "");
}

TEST(TunedTable, IsWrittenWholeOrNotAtAll) {
  const TemporaryFolder folder;
  const std::string path = folder / "deep/tuned/table.txt";
  const TunedTable table = table_for(device_of(0));
  ASSERT_EQ(write_tuned(path, table), "");
  ASSERT_EQ(write_tuned(path, table), "");
  EXPECT_EQ(contents(path), tuned_text(table));
  EXPECT_EQ(read_tuned(path).reason, "");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "deep/tuned")) files += entry.exists() ? 1 : 0;
  EXPECT_EQ(files, 1);
  EXPECT_NE(write_tuned(path + "/below/a/file", table), "");
  EXPECT_NE(read_tuned(folder / "deep").reason, "");  // a folder
  EXPECT_EQ(read_tuned(folder / "missing").reason, "No such file or directory");
}

TEST(TunedChoices, AreThoseOfTheDeviceAndTheLibrary) {
  const TemporaryFolder folder;
  const std::string path = folder / "table.txt";
  const TunedVariable variable(path);
  const CudaDevice own = device_of(1);
  ASSERT_EQ(write_tuned(path, table_for(own)), "");
  EXPECT_EQ(tuned_choices(own).table.entries, table_for(own).entries);
  EXPECT_EQ(tuned_choices(own).note, "2 calls, from " + path);
  const TunedChoices& foreign = tuned_choices(device_of(2, "NVIDIA H200"));
  EXPECT_TRUE(foreign.table.entries.empty());
  EXPECT_EQ(foreign.note, "none: " + path + ": it is for " + tuned_device(own));
  TunedTable older = table_for(own);
  older.library = "0.0.1 of old";
  ASSERT_EQ(write_tuned(path, older), "");
  const TunedChoices& of_older = tuned_choices(device_of(3));
  EXPECT_TRUE(of_older.table.entries.empty());
  EXPECT_EQ(of_older.note, "none: " + path + ": another version of the library measured it");
  // The first answer for a device is every later one's.
  EXPECT_EQ(tuned_choices(own).table.entries.size(), 2U);
}

TEST(TunedChoices, AreNoneWithAReason) {
  const TemporaryFolder folder;
  const std::string path = folder / "table.txt";
  const TunedVariable variable(path);
  EXPECT_EQ(tuned_choices(device_of(10)).note, "none: " + path + ": No such file or directory");
  std::ofstream(path) << "strobe tuned choices 1\n";
  EXPECT_EQ(tuned_choices(device_of(11)).note, "none: " + path + ": it is no table of tuned choices, or damaged");
}

TEST(TunedChoices, LieBesideTheKernelCache) {
  const TemporaryFolder folder;
  ::setenv("STROBE_CACHE_DIR", std::string(folder / "cache").c_str(), 1);
  const std::string path = tuned_path(device_of(0));
  ::unsetenv("STROBE_CACHE_DIR");
  EXPECT_EQ(path, std::string(folder / "cache") +
                      "/tuned/nvidia-h100-80gb-hbm3-compute-capability-9-0-132-multiprocessors.txt");
}

}  // namespace
}  // namespace strobe::runtime
