// SPDX-License-Identifier: Apache-2.0
// What a tune does with the file that is there before.
#include "tools/strobe/tune_table.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/temporary_folder.h"

namespace strobe::program {
namespace {

runtime::TunedTable table_of(const std::string& device, const std::string& library) {
  return {.device = device, .library = library, .entries = {{"a", {"section_heads=2", 1.1}}}};
}

TEST(TuneTable, OfNoFileIsEmptyAndItsFolderIsMade) {
  const test::TemporaryFolder folder;
  const Result<runtime::TunedTable> table = table_before(folder / "new/table.txt");
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_TRUE(table->entries.empty());
  EXPECT_TRUE(std::filesystem::is_empty(folder / "new"));
  std::ofstream(folder / "empty.txt").close();
  EXPECT_TRUE(table_before(folder / "empty.txt").ok());
}

TEST(TuneTable, IsReadWhereThereIsOne) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(runtime::write_tuned(folder / "table.txt", table_of("D", "1")), "");
  const Result<runtime::TunedTable> table = table_before(folder / "table.txt");
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ(table->entries.size(), 1U);
  EXPECT_EQ(table->device, "D");
}

TEST(TuneTable, LeavesWhatIsNoTable) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "notes.txt";
  std::ofstream(path) << "notes";
  EXPECT_EQ(table_before(path).status().message(),
            "'" + path +
                "' is not written over: it is no table of tuned choices, or damaged; remove it or name another "
                "--output");
  EXPECT_FALSE(table_before(path + "/table.txt").ok());
}

TEST(TuneTable, KeepsEntriesOfTheSameDeviceAndVersion) {
  const Result<TableToWrite> same = table_to_write("t", table_of("D", "1"), "D", "1");
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same->table.entries.size(), 1U);
  EXPECT_EQ(same->note, "");
  const Result<TableToWrite> none = table_to_write("t", {}, "D", "1");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->table.device, "D");
  EXPECT_EQ(none->note, "");
}

TEST(TuneTable, SaysWhatIsNotKept) {
  const Result<TableToWrite> old = table_to_write("t", table_of("D", "0"), "D", "1");
  ASSERT_TRUE(old.ok());
  EXPECT_TRUE(old->table.entries.empty());
  EXPECT_EQ(old->note, "another version of the library measured the 1 calls in t: they are not kept\n");
  EXPECT_EQ(table_to_write("t", table_of("E", "1"), "D", "1").status().message(),
            "'t' is not written over: it is for E; remove it or name another --output");
}

}  // namespace
}  // namespace strobe::program
