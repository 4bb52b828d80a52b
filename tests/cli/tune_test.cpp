// SPDX-License-Identifier: Apache-2.0
// strobe tune on a machine that needs no GPU: its files, and tables compared.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "program.h"
#include "runtime/temporary_folder.h"
#include "runtime/tuned_table.h"

namespace strobe::test {
namespace {

class TuneCommand : public testing::Test {
 protected:
  std::string table(const std::string& name, std::map<std::string, runtime::TunedEntry, std::less<>> entries) const {
    const std::string path = folder_ / name;
    EXPECT_EQ(runtime::write_tuned(path, {.device = "D", .library = "1 2", .entries = std::move(entries)}), "");
    return path;
  }

  TemporaryFolder folder_;
};

TEST_F(TuneCommand, ComparesTables) {
  const std::string first =
      table("first", {{"a", {"rule", 1.0}}, {"b", {"section_heads=2", 1.1}}, {"c", {"rule", 1.0}}});
  const std::string second = table("second", {{"a", {"rule", 1.0}}, {"b", {"section_heads=4", 1.2}}});
  const Outcome text = run_program({"tune", "--compare", first, second});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_TRUE(
      text.out.starts_with("1 of the 2 calls that are in both tables have the same choice (50.0%); the\n"
                           "tables have 3 and 2 calls\n"))
      << text.out;
  EXPECT_NE(text.out.find("b     section_heads=2 (1.100)  section_heads=4 (1.200)"), std::string::npos) << text.out;
  const Outcome json = run_program({"tune", "--compare", first, second, "--json", "-"});
  const nlohmann::json document = nlohmann::json::parse(json.out, nullptr, false);
  EXPECT_EQ(document["same"], 1);
  EXPECT_EQ(document["both"], 2);
  EXPECT_EQ(document["share"], 0.5);
}

TEST_F(TuneCommand, SaysWhatIsWrongWithItsFiles) {
  const std::string good = table("good", {});
  const std::string bad = folder_ / "bad";
  std::ofstream(bad) << "no table";
  expect_rejection(run_program({"tune", "--compare", good, bad}), 2,
                   "'" + bad + "' cannot be compared: it is no table of tuned choices, or damaged");
  expect_rejection(run_program({"tune", "--compare", folder_ / "missing", good}), 2, "No such file or directory");
  expect_rejection(run_program({"tune", "--compare", good}), 2, "--compare");
  expect_rejection(run_program({"tune", "--recorded", folder_ / "missing"}), 2, "cannot be read");
  expect_rejection(run_program({"tune", "--tokens", "1000", "--seqlen", "512"}), 2, "tokens");
  expect_rejection(run_program({"tune", "--recorded", good, "--config", good}), 2, "--config");
  expect_rejection(run_program({"tune", "--batch", "1,x"}), 2, "--batch");
}

TEST_F(TuneCommand, LooksAtItsOutputBeforeItMeasures) {
  const std::string notes = folder_ / "notes.txt";
  std::ofstream(notes) << "notes";
  expect_rejection(run_program({"tune", "--output", notes}), 2, "is not written over");
  expect_rejection(run_program({"tune", "--output", notes + "/table.txt"}), 2, "table.txt");
  std::ifstream file(notes);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "notes");
}

TEST_F(TuneCommand, NeedsAGpu) {
  const Outcome outcome = run_program({"tune", "--output", folder_ / "table.txt"});
  if (outcome.exit_code == 0) GTEST_SKIP() << "there is one";
  expect_rejection(outcome, 3, "NVIDIA");
  EXPECT_FALSE(std::ifstream(folder_ / "table.txt").is_open());
}

}  // namespace
}  // namespace strobe::test
