// SPDX-License-Identifier: Apache-2.0
// verify --eight-bit on tensors from files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "files.h"
#include "io/npy.h"
#include "program.h"
#include "runtime/temporary_folder.h"

namespace strobe::test {
namespace {

/// q.npy, k.npy and v.npy in a folder of their own: grouped heads, and keys with a mean.
class EightBitFiles : public ::testing::Test {
 protected:
  EightBitFiles() {
    write("q", normal_tensor(DType::float32, {2, 40, 4, 32}, 1));
    io::HostTensor k = normal_tensor(DType::float32, {2, 48, 2, 32}, 2);
    auto* const keys = reinterpret_cast<float*>(k.bytes.data());
    for (std::size_t i = 0; i < io::element_count(k); i += 16) keys[i] += 20.0F;
    write("k", k);
    write("v", normal_tensor(DType::bfloat16, {2, 48, 2, 24}, 3));
  }

  void write(const std::string& name, const io::HostTensor& tensor) const {
    EXPECT_TRUE(io::write_npy(file(name), tensor).ok());
  }
  std::string file(const std::string& name) const { return folder_ / (name + ".npy"); }

  Outcome verify(const Words& more, const std::string& v = "v") const {
    return run_program(Words{"verify", "--eight-bit", "--q", file("q"), "--k", file("k"), "--v", file(v)} + more);
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(EightBitFiles, SaysWhatTheyNeed) {
  const Outcome outcome = verify({"--causal"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  for (const char* const row : {"\nbfloat16 ", "\ne4m3, blocks ", "\nint8, all: the default ", "\nfloat8_e4m3  head ",
                                "\nfloat8_e4m3  32 keys ", "\nfloat8_e4m3  row ", "\nint8         head ",
                                "\nint8         32 keys ", "\nint8         row "}) {
    EXPECT_TRUE(contains(outcome.out, row)) << outcome.out;
  }
  const Outcome json = verify({"--json", "-"});
  EXPECT_EQ(json.exit_code, 0) << json.err;
  const auto document = nlohmann::json::parse(json.out);
  ASSERT_EQ(document["needs"].size(), 2U);
  const auto& int8 = document["needs"][1];
  EXPECT_EQ(int8["element"], "int8");
  EXPECT_TRUE(int8["center_k"]) << "channels of K are far from zero";
  double least = 1.0;
  for (const auto& row : document["rows"]) {
    const auto operands = row["operands"].get<std::string>();
    if (operands.starts_with("int8")) least = std::min(least, row["rmse"].get<double>());
  }
  EXPECT_LE(int8["rmse"].get<double>(), 1.1 * least);
}

/// Keys of which some channels are far from zero, and a value in eight that is small.
TEST_F(EightBitFiles, SaysWhatACacheIsOffBy) {
  io::HostTensor v = normal_tensor(DType::float32, {2, 48, 2, 24}, 3);
  auto* const values = reinterpret_cast<float*>(v.bytes.data());
  for (std::size_t i = 0; i < io::element_count(v); ++i) {
    if (i / (2 * 24) % 8 != 0) values[i] *= 0.01F;
  }
  write("unequal", v);
  const Outcome json = verify({"--json", "-", "--max-rmse", "1"}, "unequal");
  EXPECT_EQ(json.exit_code, 0) << json.err;
  const auto document = nlohmann::json::parse(json.out);
  const auto error_of = [&](const std::string& operands) {
    for (const auto& row : document["rows"]) {
      if (row["operands"] == operands) return row["rmse"].get<double>();
    }
    ADD_FAILURE() << operands;
    return 0.0;
  };
  for (const std::string element : {"int8", "e4m3"}) {
    const std::string cache = "K, V alone: " + element + ", a scale per ";
    EXPECT_GT(error_of(cache + "head"), 0.0);
    EXPECT_LT(error_of(cache + "row"), (element == "int8" ? 0.9 : 1.2) * error_of(cache + "head"));
    EXPECT_LT(error_of(cache + "32 keys"), 1.2 * error_of(cache + "head"));
  }
  EXPECT_EQ(document["chosen_cache"], "K, V alone: e4m3, a scale per head");
}

TEST_F(EightBitFiles, KeepsToABudgetOrFails) {
  const Outcome loose = verify({"--max-rmse", "0.5"});
  EXPECT_EQ(loose.exit_code, 0) << loose.err;
  EXPECT_TRUE(contains(loose.out, "float8_e4m3 keeps to an RMSE of 5.00e-01")) << loose.out;
  const Outcome strict = verify({"--max-rmse", "1e-6"});
  EXPECT_EQ(strict.exit_code, 1) << strict.err;
  EXPECT_TRUE(contains(strict.out, "FAIL: no element keeps to an RMSE of 1.00e-06")) << strict.out;
  EXPECT_TRUE(contains(loose.out, "a cache of float8_e4m3 with a scale for each head does\n")) << loose.out;
  EXPECT_TRUE(contains(strict.out, "no cache in 8 bits does\n")) << strict.out;
}

TEST_F(EightBitFiles, RejectsWhatItCannotCompare) {
  io::HostTensor v = normal_tensor(DType::float32, {2, 48, 2, 24}, 3);
  reinterpret_cast<float*>(v.bytes.data())[5] = std::numeric_limits<float>::quiet_NaN();
  write("nan", v);
  write("flat", normal_tensor(DType::float32, {48, 24}, 3));
  write("short", normal_tensor(DType::float32, {2, 47, 2, 24}, 3));
  expect_rejection(verify({}, "nan"), 2, "O is not finite");
  expect_rejection(verify({}, "flat"), 2, "[batch, seqlen, heads, head_dim] is accepted");
  expect_rejection(verify({}, "short"), 2, "v has shape [2, 47, 2, 24]");
  expect_rejection(verify({"--seqlen", "4"}), 2, "--seqlen excludes --q");
  expect_rejection(verify({"--alibi"}), 3, "leave out ALiBi");
  expect_rejection(verify({"--heads-kv", "2"}), 2, "--heads-kv excludes --eight-bit");
  expect_rejection(run_program({"verify", "--q", file("q"), "--k", file("k"), "--v", file("v")}), 2,
                   "--q requires --eight-bit");
}

}  // namespace
}  // namespace strobe::test
