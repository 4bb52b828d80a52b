// SPDX-License-Identifier: Apache-2.0
// strobe bench --io: its table and its JSON.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "files.h"
#include "program.h"
#include "runtime/temporary_folder.h"

namespace strobe::test {
namespace {

TEST(BenchIo, WritesWhatItCounted) {
  const TemporaryFolder folder;
  const std::string json = folder / "io.json";
  const Outcome outcome = run_program({"bench", "--io", "--pass", "forward", "--head-dim", "64", "--seqlen", "1024",
                                       "--fast-memory", "16384,32768", "--json", json});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("pass forward, head_dim 64, seqlen 1024\n"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\n16384 "), std::string::npos) << outcome.out;

  const auto rows = nlohmann::ordered_json::parse(read_bytes(json))["rows"];
  ASSERT_EQ(rows.size(), 10U);  // two sizes of fast memory, five ways to walk
  const std::vector<std::string> keys{"order",   "pass",  "head_dim", "seqlen", "fast_memory",
                                      "density", "outer", "inner",    "loads",  "stores"};
  const std::vector<std::string> orders{"standard", "flash_attention", "flash_attention_2", "butterfly", "local"};
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::vector<std::string> own;
    for (const auto& [key, value] : rows[row].items()) own.push_back(key);
    EXPECT_EQ(own, keys);
    EXPECT_EQ(rows[row]["order"], orders[row % 5]);
    EXPECT_EQ(rows[row]["fast_memory"], row < 5 ? 16384 : 32768);
  }
  // 128 queries at a time in 32,768 elements: Q and O once, K and V for each of 8 blocks of queries, LSE.
  EXPECT_EQ(rows[7]["outer"], 128);
  EXPECT_EQ(rows[7]["loads"], 1024 * 64 + 8 * 2 * 1024 * 64);
  EXPECT_EQ(rows[7]["stores"], 1024 * 64 + 1024);
  // Of 8 blocks of keys a butterfly sees 4, and a local mask 2 at the ends and 3 elsewhere.
  EXPECT_EQ(rows[8]["density"], 0.5);
  EXPECT_EQ(rows[8]["loads"], 1024 * 64 + 8 * 4 * 2 * 128 * 64);
  EXPECT_EQ(rows[9]["density"], 22.0 / 64);
  EXPECT_EQ(rows[9]["loads"], 1024 * 64 + 22 * 2 * 128 * 64);
}

TEST(BenchIo, RejectsWhatCannotBeWalked) {
  expect_rejection(run_program({"bench", "--io", "--head-dim", "64", "--fast-memory", "100"}), 2,
                   "the fast memory has 100 elements");
  expect_rejection(run_program({"bench", "--io", "--fast-memory", "0"}), 2, "--fast-memory");
}

}  // namespace
}  // namespace strobe::test
