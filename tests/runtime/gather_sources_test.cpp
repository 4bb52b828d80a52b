// SPDX-License-Identifier: Apache-2.0
// The archive holds what kernels reach and nothing else.
#include "runtime/pack/gather_sources.h"

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/embedded.h"
#include "runtime/kernel_store.h"
#include "temporary_folder.h"

namespace strobe::runtime {
namespace {

namespace fs = std::filesystem;

class GatherSources : public testing::Test {
 protected:
  void SetUp() override {
    if (!nvrtc().ok()) GTEST_SKIP() << nvrtc().status().message();
    write("cuda/vector_of", "#include <vector_parts.h>\n");
    write("cuda/vector_parts.h", "struct Parts {};\n");
    write("cuda/unreached.h", "#error not for this\n");
    write("cuda/host_only.h", "#error not for the device\n");
  }

  void write(const std::string& name, const std::string& text) const {
    const fs::path path = folder_.path() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  Result<std::string> gather() const {
    return gather_sources(**nvrtc(), folder_ / "kernels", {folder_ / "cuda"}, {"sm_90a"});
  }

  test::TemporaryFolder folder_;
};

TEST_F(GatherSources, TakesOurHeadersAndWhatTheyReach) {
  write("kernels/common/shape.h", R"(
    #pragma once
    #ifndef __CUDACC_RTC__
    #include <host_only.h>
    #endif
    struct Shape {};
  )");
  write("kernels/forward.h", R"(
    #pragma once
    #include <vector_of>
    #include "kernels/common/shape.h"
    Parts parts_of(Shape);
  )");
  write("kernels/generate.py", "no header");
  const Result<std::string> bytes = gather();
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  const Result<Archive> archive = Archive::parse(*bytes);
  ASSERT_TRUE(archive.ok());
  std::vector<std::string_view> names;
  for (const Archive::Entry& entry : archive->entries()) names.push_back(entry.name);
  EXPECT_EQ(names, (std::vector<std::string_view>{"digest of kernels/common/shape.h", "digest of kernels/forward.h",
                                                  "kernels/common/shape.h", "kernels/forward.h", "vector_of",
                                                  "vector_parts.h"}));
  EXPECT_EQ(archive->find("vector_parts.h"), "struct Parts {};\n");
}

TEST_F(GatherSources, LeavesWhatMayNotBeRedistributedToTheCompiler) {
  const std::string notice = "// NOTICE TO LICENSEE:\n";
  write("cuda/cuda_fp16.h", notice + "#ifndef __CUDACC_RTC__\n#include <runtime_types.h>\n#include <open.h>\n#endif\n");
  write("cuda/runtime_types.h", notice + "#include <driver_types.h>\n");
  write("cuda/driver_types.h", notice);
  write("cuda/open.h", "");
  write("kernels/forward.h", "#pragma once\n#include <cuda_fp16.h>\n");
  const Result<std::string> bytes = gather();
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  const Result<Archive> archive = Archive::parse(*bytes);
  ASSERT_TRUE(archive.ok());
  EXPECT_TRUE(archive->find("cuda_fp16.h"));
  EXPECT_TRUE(archive->find("open.h"));
  EXPECT_FALSE(archive->find("runtime_types.h"));
  EXPECT_FALSE(archive->find("driver_types.h"));
}

// The headers of NVIDIA's that attachment A of the CUDA EULA lists.
TEST(EmbeddedSources, HaveOnlyHeadersThatMayBeRedistributed) {
  if (embedded_sources().empty()) GTEST_SKIP() << "this build has no GPU kernels";
  const Result<Archive> sources = Archive::parse(embedded_sources());
  ASSERT_TRUE(sources.ok());
  for (const Archive::Entry& entry : sources->entries()) {
    if (entry.content.find("NOTICE TO LICENSEE") == std::string_view::npos) continue;
    EXPECT_TRUE(entry.name == "cuda_fp16.h" || entry.name == "cuda_fp16.hpp") << entry.name;
  }
}

TEST_F(GatherSources, RenamesTheKernelsThatAChangedHeaderReaches) {
  write("kernels/shape.h", "#pragma once\nstruct Shape {};\n");
  write("kernels/forward.h", "#pragma once\n # include \"kernels/shape.h\"\n");
  write("kernels/backward.h", "#pragma once\n#include <vector_of>\n");
  const auto keys = [&] {
    const Result<std::string> bytes = gather();
    const KernelStore store(*Archive::parse(*bytes), {}, DiskCache(), nvrtc);
    const auto key = [&](const char* header) {
      return store.key({.name = "", .include = header, .expression = "f", .architecture = "sm_90a"}, {13, 0});
    };
    return std::pair(key("kernels/forward.h"), key("kernels/backward.h"));
  };
  const auto before = keys();
  write("kernels/shape.h", "#pragma once\nstruct Shape { int rows; };\n");
  const auto shape_changed = keys();
  EXPECT_NE(shape_changed.first, before.first);
  EXPECT_EQ(shape_changed.second, before.second);
  write("cuda/vector_parts.h", "struct Parts { int count; };\n");
  const auto cuda_changed = keys();
  EXPECT_NE(cuda_changed.first, shape_changed.first);
  EXPECT_NE(cuda_changed.second, shape_changed.second);
}

TEST_F(GatherSources, AcceptsNoIncludeByMacro) {
  write("kernels/forward.h", "#pragma once\n#define VECTOR <vector_of>\n#include VECTOR\n");
  const Status status = gather().status();
  EXPECT_NE(status.message().find("kernels/forward.h includes VECTOR"), std::string::npos) << status.message();
}

TEST_F(GatherSources, SaysWhichHeaderIsNotWhole) {
  write("kernels/forward.h", "#include <missing.h>\n");
  const Status status = gather().status();
  EXPECT_NE(status.message().find("kernels/forward.h"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("missing.h"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace strobe::runtime
