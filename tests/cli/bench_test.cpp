// SPDX-License-Identifier: Apache-2.0
// strobe bench: its JSON, its table, and PyTorch's process with a stand-in for Python. Nothing here asks for speed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "bench/multiply_probe.h"
#include "bench/torch_runner.h"
#include "files.h"
#include "program.h"
#include "runtime/temporary_folder.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

std::vector<std::string> tiny_cell_with(const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"bench",   "--seqlen", "32",        "--heads", "2",         "--head-dim", "16",
                                     "--dtype", "float32",  "--repeats", "1",       "--threads", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// A program that answers as bench/torch_runner.py does, each run taking 2.5 ms.
std::string make_python(const TemporaryFolder& folder, const std::string& script) {
  const std::string path = folder / "python";
  write_bytes(path, "#!/bin/sh\n" + script);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

constexpr const char* kAnsweringScript = R"(echo '{"version": "2.13.0"}'
while read -r request; do
  case $request in
    *prepare*) echo '{"ready": true}' ;;
    *) echo '{"milliseconds": 2.5}' ;;
  esac
done
)";

TEST(Bench, WritesRowsOfTheDocumentedShape) {
  const TemporaryFolder folder;
  const std::string json = folder / "bench.json";
  const std::string python = make_python(folder, kAnsweringScript);
  const Outcome outcome = run_program(tiny_cell_with({"--head-dim-v", "8", "--json", json, "--python", python}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;

  const auto document = nlohmann::ordered_json::parse(read_bytes(json));
  ASSERT_EQ(document["rows"].size(), 16U);  // 2 passes, 2 masks, 4 implementations
  const std::vector<std::string> keys{"engine",     "device",  "implementation", "pass",     "dtype", "head_dim",
                                      "head_dim_v", "causal",  "seqlen",         "seqlen_k", "batch", "heads",
                                      "heads_kv",   "threads", "median_ms",      "tflops",   "gbps"};
  std::set<std::string> cells;
  for (const auto& row : document["rows"]) {
    std::vector<std::string> own;
    for (const auto& [key, value] : row.items()) own.push_back(key);
    EXPECT_EQ(own, keys);
    EXPECT_EQ(row["engine"], "cpu");
    EXPECT_EQ(row["dtype"], "float32");
    EXPECT_EQ(row["head_dim"], 16);
    EXPECT_EQ(row["head_dim_v"], 8);
    EXPECT_EQ(row["seqlen"], 32);
    EXPECT_EQ(row["batch"], 1);
    EXPECT_EQ(row["heads"], 2);
    EXPECT_EQ(row["threads"], 1);
    EXPECT_GT(row["median_ms"].get<double>(), 0.0);
    const double forward = 2.0 * 2 * 32 * 32 * (16 + 8) * (row["causal"].get<bool>() ? 0.5 : 1.0);
    const double flops = row["pass"] == "forward" ? forward : 2.5 * forward;
    EXPECT_NEAR(row["tflops"].get<double>() * row["median_ms"].get<double>() * 1e9 / flops, 1.0, 1e-12);
    EXPECT_TRUE(row["implementation"] != "pytorch" || row["median_ms"] == 2.5);
    cells.insert(row["implementation"].get<std::string>() + row["pass"].get<std::string>() + row["causal"].dump());
  }
  EXPECT_EQ(cells.size(), 16U);
}

TEST(Bench, PrintsALineForEachCell) {
  const Outcome outcome =
      run_program({"bench", "--pass", "forward", "--mask", "causal,full", "--implementation", "strobe,probe",
                   "--seqlen", "16,24", "--head-dim", "16", "--dtype", "float16", "--repeats", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* const row : {"\ncausal      16 ", "\ncausal      24 ", "\nfull        16 ", "\nfull        24 "}) {
    EXPECT_NE(outcome.out.find(row), std::string::npos) << outcome.out;
  }
  EXPECT_NE(outcome.out.find("pass forward, dtype float16, head_dim 16"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("of probe"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("standard"), std::string::npos) << outcome.out;
}

TEST(Bench, TakesSeveralBatches) {
  const Outcome json = run_program({"bench", "--pass", "forward", "--dtype", "float32", "--mask", "full", "--seqlen",
                                    "64", "--batch", "1,3", "--repeats", "1", "--threads", "1", "--json", "-"});
  const nlohmann::json document = nlohmann::json::parse(json.out, nullptr, false);
  ASSERT_FALSE(document.is_discarded()) << json.out << json.err;
  EXPECT_EQ(document["rows"].front()["batch"], 1);
  EXPECT_EQ(document["rows"].back()["batch"], 3);
  const Outcome text = run_program({"bench", "--pass", "forward", "--dtype", "float32", "--mask", "full", "--seqlen",
                                    "64", "--batch", "1,3", "--repeats", "1", "--threads", "1"});
  EXPECT_NE(text.out.find("batch 1 and 3, heads 8"), std::string::npos) << text.out;
}

TEST(Bench, TakesQueryAndKeyLengthsApart) {
  const TemporaryFolder folder;
  const std::string json = folder / "bench.json";
  const Outcome outcome = run_program(tiny_cell_with({"--pass", "forward", "--implementation", "strobe,copy,probe",
                                                      "--seqlen-k", "64,96", "--heads-kv", "1", "--json", json}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("GB/s"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("of copy"), std::string::npos) << outcome.out;
  const auto rows = nlohmann::ordered_json::parse(read_bytes(json))["rows"];
  ASSERT_EQ(rows.size(), 8U);  // 2 masks, 2 lengths of keys, 2 implementations: the probe is not for these cells
  for (const auto& row : rows) {
    const double queries = row["seqlen"].get<double>();
    const double keys = row["seqlen_k"].get<double>();
    const double ms = row["median_ms"].get<double>();
    const double bytes = (queries * 2 + keys) * 32 * 4;
    EXPECT_NEAR(row["gbps"].get<double>() * ms * 1e6 / bytes, 1.0, 1e-12);
    const double pairs = queries * keys - (row["causal"].get<bool>() ? queries * (queries - 1) / 2 : 0.0);
    EXPECT_NEAR(row["tflops"].get<double>() * ms * 1e9 / (2.0 * 2 * pairs * 32), 1.0, 1e-12);
  }
  expect_rejection(run_program({"bench", "--seqlen-k", "64", "--options"}), 2, "--options");
}

TEST(Bench, KeepsFinishedCellsWhenItIsInterrupted) {
  const TemporaryFolder folder;
  const std::string json = folder / "bench.json";
  std::string seqlens = "16";
  constexpr std::size_t kCells = 2000;  // a fifth of a second each
  for (std::size_t cell = 1; cell < kCells; ++cell) seqlens += ",16";
  const Outcome outcome =
      interrupt_program({"bench", "--pass", "forward", "--mask", "full", "--seqlen", seqlens, "--head-dim", "16",
                         "--dtype", "float32", "--repeats", "3", "--implementation", "strobe", "--json", json},
                        json);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_NE(outcome.err.find("strobe: interrupted"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("GFLOP/s"), std::string::npos) << outcome.out;
  const auto rows = nlohmann::ordered_json::parse(read_bytes(json))["rows"];
  EXPECT_GE(rows.size(), 1U);
  EXPECT_LT(rows.size(), kCells);
}

TEST(Bench, ProbesTheUnitThatTheEngineTakes) {
  float number = 0.0F;
  const auto view = [&](auto* data) { return tensor(data, {1, 64, 1, 64}); };
  bfloat16* const data = reinterpret_cast<bfloat16*>(&number);  // planning reads no element
  const Result<Plan> plan =
      make_plan(ForwardArguments{.q = view(data), .k = view(data), .v = view(data), .o = view(data)});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(bench::bfloat16_chains() != nullptr, plan->probability_dtype() == DType::bfloat16);
  EXPECT_GT(bench::multiply_probe_gflops(DType::float32, 1, std::chrono::milliseconds(1)), 0.0);
  EXPECT_GT(bench::multiply_probe_gflops(DType::bfloat16, 1, std::chrono::milliseconds(1)), 0.0);
}

TEST(Bench, LeavesPyTorchOutUnlessItWasAskedFor) {
  const Outcome without = run_program(tiny_cell_with({"--pass", "forward", "--python", "/bin/false"}));
  EXPECT_EQ(without.exit_code, 0) << without.err;
  EXPECT_NE(without.err.find("pytorch is left out"), std::string::npos) << without.err;
  expect_rejection(run_program(tiny_cell_with({"--implementation", "pytorch", "--python", "/bin/false"})), 3, "torch");
  expect_rejection(run_program(tiny_cell_with({"--implementation", "pytorch", "--python", "/no/such/python"})), 3,
                   "/no/such/python");
}

TEST(Bench, RejectsWrongCells) {
  expect_rejection(run_program({"bench", "--seqlen", "0"}), 2, "--seqlen: '0' is not an integer from 1");
  expect_rejection(run_program({"bench", "--head-dim", "64,0"}), 2, "--head-dim: '0' is not an integer from 1");
  expect_rejection(run_program({"bench", "--repeats", "many"}), 2, "--repeats");
  expect_rejection(run_program({"bench", "--pass", "sideways"}), 2, "sideways");
  expect_rejection(run_program({"bench", "--dtype", "float32,float9"}), 2, "float9");
  EXPECT_EQ(run_program(tiny_cell_with({"--engine", "gpu"})).exit_code, 3);
  EXPECT_EQ(run_program(tiny_cell_with({"--json", "/no/such/folder/bench.json"})).exit_code, 2);
}

TEST(TorchRunner, PassesOnWhatTheProcessSays) {
  const TemporaryFolder folder;
  const std::string python = make_python(folder, R"(echo '{"version": "2.13.0"}'
read -r request
echo '{"error": "no such dtype"}'
read -r request
echo 'Segmentation fault'
read -r request
)");
  Result<bench::TorchRunner> runner = bench::TorchRunner::start(python);
  ASSERT_TRUE(runner.ok()) << runner.status().message();
  EXPECT_EQ(runner->version(), "2.13.0");
  EXPECT_EQ(runner->prepare({}).message(), "no such dtype");
  EXPECT_NE(runner->run().status().message().find("Segmentation fault"), std::string::npos);
  EXPECT_NE(runner->run().status().message().find("ended without an answer"), std::string::npos);
  EXPECT_FALSE(runner->run().ok());
}

}  // namespace
}  // namespace strobe::test
