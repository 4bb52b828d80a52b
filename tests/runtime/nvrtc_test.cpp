// SPDX-License-Identifier: Apache-2.0
// How NVRTC is found, and what it says.
#include "runtime/nvrtc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "temporary_folder.h"
#include "test_kernels.h"

namespace strobe::runtime {
namespace {

namespace fs = std::filesystem;

class NvrtcSearch : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"STROBE_NVRTC", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"}) ::unsetenv(name);
    ::setenv("HOME", folder_.path().c_str(), 1);
    ::setenv("PATH", (folder_ / "bin").c_str(), 1);
  }

  /// An empty file under that name; searching does not open it.
  std::string touch(const std::string& name) const {
    const fs::path path = folder_.path() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "";
    return path;
  }

  static bool is_candidate(const std::string& path) {
    const std::vector<std::string> candidates = nvrtc_candidates();
    return std::ranges::find(candidates, path) != candidates.end();
  }

  test::TemporaryFolder folder_;
};

TEST_F(NvrtcSearch, TakesTheGivenFileAlone) {
  ::setenv("STROBE_NVRTC", "/somewhere/libnvrtc.so.13", 1);
  EXPECT_EQ(nvrtc_candidates(), std::vector<std::string>{"/somewhere/libnvrtc.so.13"});
}

TEST_F(NvrtcSearch, PrefersTheNamedToolkitThenTheLoadersPath) {
  const std::string library = touch("toolkit/lib64/libnvrtc.so.13");
  touch("toolkit/lib64/libnvrtc.so.13.0.88");
  touch("toolkit/lib64/libnvrtc-builtins.so.13");
  ::setenv("CUDA_HOME", (folder_ / "toolkit").c_str(), 1);
  const std::vector<std::string> candidates = nvrtc_candidates();
  ASSERT_GE(candidates.size(), 3U);
  EXPECT_EQ(candidates[0], library);
  EXPECT_EQ(candidates[1], "libnvrtc.so.13");
  EXPECT_EQ(candidates[2], "libnvrtc.so.12");
}

TEST_F(NvrtcSearch, FindsTheWheelsOfBothMajors) {
  ::setenv("VIRTUAL_ENV", (folder_ / "venv").c_str(), 1);
  touch("bin/python3");
  for (const std::string package : {"cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"}) {
    const std::string wheel = "lib/python3.11/site-packages/nvidia/" + package;
    EXPECT_TRUE(is_candidate(touch("venv/" + wheel)));
    EXPECT_TRUE(is_candidate(touch(".local/" + wheel)));
    EXPECT_TRUE(is_candidate(touch(wheel)));
  }
}

TEST(Nvrtc, RejectsWhatIsNotThere) {
  const Status status = Nvrtc::open("/nowhere/libnvrtc.so.13").status();
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("/nowhere/libnvrtc.so.13"), std::string::npos) << status.message();
}

TEST(Nvrtc, RejectsAnotherLibrary) {
  const Status status = Nvrtc::open("libm.so.6").status();
  EXPECT_EQ(status.message(), "libm.so.6 is not a usable NVRTC");
}

class NvrtcCompile : public testing::Test {
 protected:
  void SetUp() override {
    if (!nvrtc().ok()) GTEST_SKIP() << nvrtc().status().message();
  }

  static Status compile(const std::string& source, const std::string& expression, CompileOutput& output) {
    const std::string sources = test::test_sources();
    return (*nvrtc())->compile({.name = "test",
                                .source = source,
                                .expression = expression,
                                .options = {"--gpu-architecture=sm_90a", "--std=c++20", "-default-device"}},
                               *Archive::parse(sources), output);
  }
};

TEST_F(NvrtcCompile, NamesAKernelByItsConfig) {
  CompileOutput output;
  const Status status =
      compile("#include \"test/change.h\"\n", "test::change<Config{.kind = Kind::multiply, .by = 3}>", output);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_NE(output.lowered_name.find("change"), std::string::npos);
  EXPECT_FALSE(output.cubin.empty());
}

// The headers travel inside the library: no include folder is given.
TEST_F(NvrtcCompile, FindsTheEmbeddedHeaders) {
  if (embedded_sources().empty()) GTEST_SKIP() << "this build has no GPU kernels";
  CompileOutput output;
  const Status status = compile(R"(
    #include "kernels/sm90/ptx/cuda_ptx.h"
    #include <cuda/std/cstdint>
    __global__ void kernel() {
      __shared__ alignas(8) cuda::std::uint64_t barrier;
      cuda::ptx::mbarrier_init(&barrier, 1);
    })",
                                "kernel", output);
  EXPECT_TRUE(status.ok()) << output.log;
}

TEST_F(NvrtcCompile, SaysTheFirstError) {
  CompileOutput output;
  const Status status = compile("__global__ void kernel() { nonsense; }", "kernel", output);
  EXPECT_EQ(status.code(), StatusCode::device_error);
  EXPECT_EQ(
      status.message(),
      "compiling test for the GPU: NVRTC_ERROR_COMPILATION: test(1): error: identifier \"nonsense\" is undefined");
}

TEST_F(NvrtcCompile, SaysWhichHeaderIsMissing) {
  CompileOutput output;
  const Status status = compile("#include <vector>\n__global__ void kernel() {}", "kernel", output);
  EXPECT_NE(status.message().find("vector"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace strobe::runtime
