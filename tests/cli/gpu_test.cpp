// SPDX-License-Identifier: Apache-2.0
// The program on tensors of a GPU; and without one, the message that every command has for it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "files.h"
#include "io/npy.h"
#include "program.h"
#include "runtime/device.h"
#include "runtime/temporary_folder.h"

namespace strobe::test {
namespace {

/// Small calls of every command, on device 0.
std::vector<std::vector<std::string>> calls(const TemporaryFolder& folder) {
  for (const char* const name : {"q", "k", "v", "do"}) {
    EXPECT_TRUE(
        io::write_npy(folder / (std::string(name) + ".npy"), normal_tensor(DType::bfloat16, {1, 40, 2, 64}, 1)).ok());
  }
  EXPECT_TRUE(io::write_npy(folder / "slope.npy", normal_tensor(DType::float32, {2}, 1)).ok());
  const Words texts{"--score", "score + slope[head] * abs(k - q) * 0.1", "--capture", "slope=" + folder / "slope.npy"};
  return {
      {"explain", "--device", "cuda", "--dtype", "bfloat16", "--causal"},
      {"explain", "--device", "cuda", "--dtype", "bfloat16", "--backward"},
      Words{"explain", "--device", "cuda", "--dtype", "bfloat16", "--heads", "2"} + texts,
      {"run", "--device", "cuda", "--q", folder / "q.npy", "--k", folder / "k.npy", "--v", folder / "v.npy", "--out",
       folder / "results"},
      {"run", "--device", "cuda", "--q", folder / "q.npy", "--k", folder / "k.npy", "--v", folder / "v.npy", "--do",
       folder / "do.npy", "--out", folder / "results"},
      {"verify", "--device", "cuda:0", "--seqlen", "200", "--heads", "2", "--causal"},
      {"bench", "--device", "cuda", "--seqlen", "256", "--implementation", "strobe", "--repeats", "1"},
      Words{"run", "--device", "cuda", "--q", folder / "q.npy", "--k", folder / "k.npy", "--v", folder / "v.npy",
            "--do", folder / "do.npy", "--out", folder / "results"} +
          texts,
      Words{"verify", "--device", "cuda", "--dtype", "bfloat16", "--seqlen", "90", "--heads", "2", "--head-dim", "64"} +
          texts,
      {"bench", "--device", "cuda", "--host-time"},
      {"bench", "--device", "cuda", "--options", "--seqlen", "256", "--repeats", "1"},
  };
}

TEST(OnAGpu, IsRejectedInOneSentenceWhereThereIsNone) {
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(0);
  if (device.ok()) GTEST_SKIP() << "there is a GPU";
  const int code = device.status().code() == StatusCode::invalid_argument ? 2 : 3;
  const TemporaryFolder folder;
  for (const std::vector<std::string>& call : calls(folder)) {
    expect_rejection(run_program(call), code, device.status().message());
  }
  expect_rejection(run_program({"bench", "--device", "cuda", "--ablation"}), code, device.status().message());
}

TEST(OnAGpu, EveryCommandRuns) {
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(0);
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  if ((*device)->compute_major != 9) GTEST_SKIP() << (*device)->name << " is not of compute capability 9.0";
  const TemporaryFolder folder;
  for (const std::vector<std::string>& call : calls(folder)) {
    const Outcome outcome = run_program(call);
    EXPECT_EQ(outcome.exit_code, 0) << call[0] << ": " << outcome.err << outcome.out;
  }
}

TEST(OnAGpu, AblationKeepsFinishedCellsWhenItIsInterrupted) {
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(0);
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  if ((*device)->compute_major != 9) GTEST_SKIP() << (*device)->name << " is not of compute capability 9.0";
  const TemporaryFolder folder;
  const std::string json = folder / "bench.json";
  std::string dtypes = "float16";
  for (int cell = 0; cell < 200; ++cell) dtypes += ",float16";
  const Outcome outcome =
      interrupt_program({"bench", "--device", "cuda", "--ablation", "--dtype", dtypes, "--json", json}, json);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_NE(outcome.out.find("as planned"), std::string::npos) << outcome.out;
  EXPECT_GE(nlohmann::ordered_json::parse(read_bytes(json))["rows"].size(), 1U);
}

TEST(OnAGpu, WrongDevicesAndWrongMixesAreRejected) {
  for (const char* const device : {"gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda0"}) {
    expect_rejection(run_program({"explain", "--device", device}), 2, "--device");
  }
  expect_rejection(run_program({"explain", "--engine", "gpu"}), 3, "CUDA device");
  expect_rejection(run_program({"explain", "--engine", "cpu", "--device", "cuda"}), 3, "cuda:0");
  expect_rejection(run_program({"bench", "--ablation"}), 2, "--device cuda");
  expect_rejection(run_program({"bench", "--host-time"}), 2, "--device cuda");
  expect_rejection(run_program({"bench", "--implementation", "cudnn"}), 2, "cudnn");
  expect_rejection(run_program({"bench", "--tokens", "100", "--seqlen", "64"}), 2, "--tokens");
  expect_rejection(run_program({"bench", "--hidden", "100", "--head-dim", "64"}), 2, "--hidden");
}

}  // namespace
}  // namespace strobe::test
