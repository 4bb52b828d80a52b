// SPDX-License-Identifier: Apache-2.0
// What every command prints: lines that fit a terminal, JSON for programs, suggestions for mistyped words.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "files.h"
#include "io/npy.h"
#include "program.h"
#include "runtime/temporary_folder.h"

namespace strobe::test {
namespace {

namespace fs = std::filesystem;

/// A small call of every command; run's results go to `folder`.
std::vector<Words> commands(const TemporaryFolder& folder) {
  for (const char* const name : {"q", "k", "v"}) {
    EXPECT_TRUE(
        io::write_npy(folder / (std::string(name) + ".npy"), normal_tensor(DType::float32, {1, 8, 2, 16}, 1)).ok());
  }
  return {
      {"info"},
      {"explain", "--seqlen", "4096", "--heads", "32", "--heads-kv", "8", "--dtype", "bfloat16"},
      {"explain", "--backward", "--window", "128", "0", "--softcap", "30", "--head-dim-v", "96", "--alibi"},
      {"run", "--q", folder / "q.npy", "--k", folder / "k.npy", "--v", folder / "v.npy", "--out", folder / "results"},
      {"verify", "--seqlen", "16", "--heads", "1", "--head-dim", "8"},
      {"verify", "--eight-bit", "--seqlen", "16", "--heads", "1", "--head-dim", "32"},
      {"verify", "--eight-bit", "--seqlen", "8", "--seqlen-k", "64", "--heads", "1", "--head-dim", "32"},
      {"verify", "--eight-bit", "--q", folder / "q.npy", "--k", folder / "k.npy", "--v", folder / "v.npy"},
      {"bench", "--pass", "forward", "--mask", "full", "--seqlen", "16,24", "--heads", "1", "--head-dim", "16,32",
       "--repeats", "1"},
      {"bench", "--pass", "forward", "--dtype", "float32", "--seqlen", "4", "--seqlen-k", "64,96", "--heads", "1",
       "--head-dim", "16", "--repeats", "1"},
      {"bench", "--options", "--pass", "forward", "--dtype", "float32", "--mask", "full", "--seqlen", "128", "--heads",
       "1", "--head-dim", "16", "--repeats", "1"},
      {"bench", "--io", "--seqlen", "256,512", "--head-dim", "32,64", "--fast-memory", "16384,32768"}};
}

void expect_narrow(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
}

TEST(Output, FitsEightyColumns) {
  const TemporaryFolder folder;
  for (const Words& command : commands(folder)) {
    const Outcome outcome = run_program(command);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    if (command[0] == "run") continue;  // prints the folder's name, which is as long as it is
    expect_narrow(outcome.out);
  }
}

TEST(Output, HelpFitsEightyColumns) {
  for (const Words& command :
       {Words{}, {"info"}, {"run"}, {"explain"}, {"verify"}, {"bench"}, {"completion"}, {"manual"}}) {
    expect_narrow(run_program(command + Words{"--help"}).out);
  }
}

TEST(Json, OfEveryCommandGoesToAFileOrToStandardOutput) {
  const TemporaryFolder folder;
  for (const Words& command : commands(folder)) {
    const std::string path = folder / "results.json";
    const Outcome to_file = run_program(command + Words{"--json", path});
    ASSERT_EQ(to_file.exit_code, 0) << to_file.err;
    EXPECT_NE(to_file.out, "");
    const Outcome instead = run_program(command + Words{"--json", "-"});
    ASSERT_EQ(instead.exit_code, 0) << instead.err;
    const auto saved = nlohmann::ordered_json::parse(read_bytes(path));
    const auto printed = nlohmann::ordered_json::parse(instead.out);
    const auto keys = [](const nlohmann::ordered_json& object) {
      Words all;
      for (const auto& [key, value] : object.items()) all.push_back(key);
      return all;
    };
    EXPECT_EQ(keys(saved), keys(printed)) << command[0];
    fs::remove(path);
  }
  EXPECT_FALSE(fs::exists("-"));
}

TEST(Json, OfVerifyHasTheTablesErrors) {
  const Outcome outcome = run_program({"verify", "--seqlen", "16", "--heads", "1", "--dtype", "bfloat16", "--inputs",
                                       "normal", "--pass", "forward", "--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto document = nlohmann::ordered_json::parse(outcome.out);
  EXPECT_EQ(document["passed"], true);
  ASSERT_EQ(document["rows"].size(), 4U);  // O and LSE, of Strobe and of standard attention
  for (const auto& row : document["rows"]) {
    EXPECT_GT(row["rmse"].get<double>(), 0.0);
    EXPECT_TRUE(row["implementation"] != "strobe" || row["worst_of_bound"].get<double>() <= 1.0);
  }
}

TEST(Json, OfRunNamesFilesAndTimes) {
  const TemporaryFolder folder;
  const Outcome outcome = run_program(commands(folder)[3] + Words{"--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto document = nlohmann::ordered_json::parse(outcome.out);
  EXPECT_EQ(document["inputs"][0]["shape"], (std::vector<int>{1, 8, 2, 16}));
  EXPECT_GT(document["forward_ms"].get<double>(), 0.0);
  for (const auto& output : document["outputs"]) EXPECT_TRUE(fs::exists(output["file"].get<std::string>()));
}

/// Nothing is computed where the results could not be kept.
TEST(Json, IsCheckedBeforeWorkBegins) {
  const TemporaryFolder folder;
  for (Words command : commands(folder)) {
    if (command[0] == "verify") command = {"verify", "--seqlen", "1000000"};  // would take hours
    const Outcome outcome = run_program(command + Words{"--json", "/no/such/folder/results.json"});
    expect_rejection(outcome, 2, "cannot write '/no/such/folder/results.json': No such file or directory");
  }
  EXPECT_FALSE(fs::exists(folder / "results"));
}

TEST(Output, ThatIsClosedIsAnErrorAndGoesIntoNoFile) {
  const TemporaryFolder folder;
  Words command = commands(folder)[3];
  std::string line = "exec '" STROBE_PROGRAM "'";
  for (const std::string& word : command) line += " '" + word + "'";
  line += " >&- 2>/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(line.c_str())), 4);  // NOLINT(bugprone-command-processor): it closes the output
  EXPECT_TRUE(io::read_npy(folder / "results/o.npy").ok());
  EXPECT_TRUE(io::read_npy(folder / "results/lse.npy").ok());
}

TEST(Suggestions, NameTheNearestFlagOrCommand) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"run", "--causl"}, "there is no flag '--causl'; did you mean --causal? (see strobe run --help)"},
      {{"run", "--is-causal"}, "did you mean --causal?"},
      {{"explain", "--softmax-scale", "1"}, "did you mean --scale?"},
      {{"explain", "--head_dim=64"}, "did you mean --head-dim? (see strobe explain --help)"},
      {{"bench", "--seqlen_k", "4"}, "did you mean --seqlen-k? (see strobe bench --help)"},
      {{"verfy"}, "there is no command 'verfy'; did you mean verify? (see strobe --help)"},
      {{"--versoin"}, "did you mean --version?"}};
  for (const auto& [command, words] : cases) expect_rejection(run_program(command), 2, words);
  const Outcome far = run_program({"run", "--polish"});
  expect_rejection(far, 2, "there is no flag '--polish' (see strobe run --help)");
}

}  // namespace
}  // namespace strobe::test
