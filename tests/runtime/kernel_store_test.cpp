// SPDX-License-Identifier: Apache-2.0
// Pack, then disk, then compiler: each step gives exactly the kernel asked for, or passes on to the next.
#include "runtime/kernel_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>

#include "child_process.h"
#include "temporary_folder.h"
#include "test_kernels.h"

namespace strobe::runtime {
namespace {

namespace fs = std::filesystem;
using test::add_variant;

Result<const Nvrtc*> no_compiler(const CubinTarget&) {
  return Status(StatusCode::unsupported, "no compiler for this test");
}

class KernelStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!nvrtc().ok()) GTEST_SKIP() << nvrtc().status().message();
    version_ = (*nvrtc())->version();
  }

  KernelStore store(const KernelStore::Compiler& compiler = nvrtc, std::string_view pack = {},
                    std::string_view sources = {}) const {
    const Result<Archive> packed = Archive::parse(pack);
    return {*Archive::parse(sources.empty() ? sources_ : sources),
            {KernelPack(packed.ok() ? *packed : Archive())},
            DiskCache::open(folder_ / "kernels"),
            compiler};
  }

  /// What an untouched compiler makes of the variant.
  std::string expected_cubin(const Variant& variant) const {
    const KernelStore fresh(*Archive::parse(sources_), {}, DiskCache(), nvrtc);
    const Result<KernelImage> image = fresh.find(variant);
    EXPECT_TRUE(image.ok()) << image.status().message();
    return std::string(image->cubin);
  }

  fs::path file_of(const Variant& variant) const {
    return fs::path(folder_ / "kernels") / (store().key(variant, version_) + ".kernel");
  }

  test::TemporaryFolder folder_;
  std::string sources_ = test::test_sources();
  NvrtcVersion version_;
};

TEST_F(KernelStoreTest, CompilesOnceAndKeepsIt) {
  const Result<KernelImage> compiled = store().find(add_variant(3));
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  EXPECT_TRUE(
      compiled->cubin.starts_with("\x7f"
                                  "ELF"));
  EXPECT_NE(compiled->log.find("registers"), std::string_view::npos);
  ASSERT_TRUE(fs::exists(file_of(add_variant(3))));
  const auto written = fs::last_write_time(file_of(add_variant(3)));
  const Result<KernelImage> read = store().find(add_variant(3));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->cubin, compiled->cubin);
  EXPECT_EQ(read->lowered_name, compiled->lowered_name);
  EXPECT_EQ(fs::last_write_time(file_of(add_variant(3))), written);
}

TEST_F(KernelStoreTest, SaysWhatIsCompiledWhereThatIsWanted) {
  const auto said = [&](int number) {
    testing::internal::CaptureStderr();
    EXPECT_TRUE(store().find(add_variant(number)).ok());
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(3), "");
  ::setenv("STROBE_PROGRESS", "1", 1);
  EXPECT_EQ(said(3), "");  // from the disk
  EXPECT_EQ(said(4), fmt::format("strobe: compiling {}\n", add_variant(4).name));
  ::unsetenv("STROBE_PROGRESS");
}

TEST_F(KernelStoreTest, TakesThePackWithoutACompiler) {
  const KernelStore compiling = store();
  const Result<std::string> image = compiling.compile(add_variant(3), **nvrtc());
  ASSERT_TRUE(image.ok());
  const std::string pack = KernelPack::make(std::array{version_}, {{compiling.key(add_variant(3), version_), *image}});
  const KernelStore packed = store(no_compiler, pack);
  const Result<KernelImage> found = packed.find(add_variant(3));
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->cubin, expected_cubin(add_variant(3)));
  EXPECT_EQ(packed.find(add_variant(4)).status().message(), "no compiler for this test");
}

TEST_F(KernelStoreTest, TakesNoPackOfALaterVersionThanTheDriverLoads) {
  const KernelStore compiling = store();
  const Result<std::string> image = compiling.compile(add_variant(3), **nvrtc());
  ASSERT_TRUE(image.ok());
  const std::string pack = KernelPack::make(std::array{version_}, {{compiling.key(add_variant(3), version_), *image}});
  CubinTarget asked;
  const KernelStore packed = store(
      [&](const CubinTarget& target) {
        asked = target;
        return no_compiler(target);
      },
      pack);
  EXPECT_TRUE(packed.find(add_variant(3), version_).ok());
  const NvrtcVersion older{version_.major - 1, NvrtcVersion::kAnyMinor};
  EXPECT_EQ(packed.find(add_variant(3), older).status().message(), "no compiler for this test");
  EXPECT_EQ(asked.newest, older);
  EXPECT_EQ(asked.architecture, "sm_90a");
}

TEST_F(KernelStoreTest, ProcessesThatWantAKernelAtOnceCompileItOnce) {
  int began[2];
  ASSERT_EQ(::pipe(began), 0);
  std::vector<pid_t> processes;
  for (int i = 0; i < 3; ++i) {
    processes.push_back(test::start_child([&] {
      // The progress of a compilation is a line on standard error.
      ::setenv("STROBE_PROGRESS", "1", 1);
      ::dup2(began[1], STDERR_FILENO);
      return store().find(add_variant(3)).ok() ? 0 : 1;
    }));
  }
  ::close(began[1]);
  for (const pid_t process : processes) EXPECT_EQ(test::wait_for(process), 0);
  std::string lines(4096, '\0');
  lines.resize(static_cast<std::size_t>(std::max<ssize_t>(::read(began[0], lines.data(), lines.size()), 0)));
  EXPECT_EQ(lines, "strobe: compiling add 3\n");
}

TEST_F(KernelStoreTest, LacksWhatIsNeitherInAPackNorOnTheDisk) {
  EXPECT_EQ(*store().lacks(add_variant(3)), true);
  ASSERT_TRUE(store().find(add_variant(3)).ok());
  EXPECT_EQ(*store().lacks(add_variant(3)), false);
  EXPECT_EQ(*store().lacks(add_variant(4)), true);
  EXPECT_EQ(store(no_compiler).lacks(add_variant(4)).status().message(), "no compiler for this test");
}

TEST_F(KernelStoreTest, NeverTakesAPackOfOtherSources) {
  const KernelStore compiling = store();
  const Result<std::string> image = compiling.compile(add_variant(3), **nvrtc());
  ASSERT_TRUE(image.ok());
  const std::string pack = KernelPack::make(std::array{version_}, {{compiling.key(add_variant(3), version_), *image}});
  const std::string changed = test::test_sources(std::string(test::kKernelText) + "// changed\n");
  EXPECT_FALSE(store(no_compiler, pack, changed).find(add_variant(3)).ok());
}

TEST_F(KernelStoreTest, KeyDependsOnAllThatMakesTheKernel) {
  const KernelStore one = store();
  const Variant variant = add_variant(3);
  Variant renamed = variant;
  renamed.name = "another name";
  EXPECT_EQ(one.key(variant, version_), one.key(renamed, version_));
  Variant elsewhere = variant;
  elsewhere.architecture = "sm_90";
  Variant faster = variant;
  faster.options = {"--use_fast_math"};
  Variant other_include = variant;
  other_include.include = "test/other.h";
  for (const Variant& other : {add_variant(4), elsewhere, faster, other_include}) {
    EXPECT_NE(one.key(variant, version_), one.key(other, version_));
  }
  EXPECT_NE(one.key(variant, {13, 0}), one.key(variant, {13, 1}));
  const std::string changed = test::test_sources("// other text");
  EXPECT_NE(one.key(variant, version_), store(nvrtc, {}, changed).key(variant, version_));
}

TEST_F(KernelStoreTest, CompilesAgainWhatIsDamagedOnDisk) {
  const std::string expected = expected_cubin(add_variant(3));
  ASSERT_TRUE(store().find(add_variant(3)).ok());
  const auto size = fs::file_size(file_of(add_variant(3)));
  for (const auto kept : {std::uintmax_t{0}, size / 2, size - 1}) {
    fs::resize_file(file_of(add_variant(3)), kept);
    const Result<KernelImage> image = store().find(add_variant(3));
    ASSERT_TRUE(image.ok()) << image.status().message();
    EXPECT_EQ(image->cubin, expected);
    EXPECT_TRUE(DiskCache::open(folder_ / "kernels").load(store().key(add_variant(3), version_)).has_value());
  }
}

TEST_F(KernelStoreTest, NeverTakesAWholeFileOfAnotherKernel) {
  ASSERT_TRUE(store().find(add_variant(4)).ok());
  fs::copy_file(file_of(add_variant(4)), file_of(add_variant(3)));
  const Result<KernelImage> image = store().find(add_variant(3));
  ASSERT_TRUE(image.ok());
  EXPECT_EQ(image->cubin, expected_cubin(add_variant(3)));
}

TEST_F(KernelStoreTest, WorksWhereTheCacheCannot) {
  std::ofstream(folder_ / "kernels") << "a file in the folder's place";
  const Result<KernelImage> image = store().find(add_variant(3));
  ASSERT_TRUE(image.ok()) << image.status().message();
  EXPECT_EQ(image->cubin, expected_cubin(add_variant(3)));
}

TEST_F(KernelStoreTest, SixteenProcessesRaceOnAnEmptyCache) {
  const std::string expected[] = {expected_cubin(add_variant(3)), expected_cubin(add_variant(4))};
  std::vector<pid_t> children;
  for (int child = 0; child < 16; ++child) {
    children.push_back(test::start_child([&, child] {
      for (int which : {child % 2, 1 - child % 2}) {
        const Result<KernelImage> image = store().find(add_variant(3 + which));
        if (!image.ok() || image->cubin != expected[which]) return 1;
      }
      return 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(test::wait_for(child), 0);
  // Two kernels, and the file of claims.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "kernels"), fs::directory_iterator()), 3);
}

TEST_F(KernelStoreTest, SaysWhatDoesNotCompile) {
  Variant wrong = add_variant(3);
  wrong.expression = "test::missing";
  std::string log;
  const Result<std::string> image = store().compile(wrong, **nvrtc(), &log);
  EXPECT_EQ(image.status().code(), StatusCode::device_error);
  EXPECT_NE(image.status().message().find("compiling add 3 for the GPU: NVRTC_ERROR"), std::string::npos)
      << image.status().message();
  EXPECT_NE(log.find("missing"), std::string::npos);
}

TEST(KernelStoreWithoutKernels, ReturnsAnError) {
  const KernelStore store(Archive(), {}, DiskCache(), no_compiler);
  const Status status = store.find(add_variant(3)).status();
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("configured without CUDA"), std::string::npos);
}

TEST(LibraryStore, HoldsWhatTheBuildMade) {
  EXPECT_EQ(embedded_sources().empty(), embedded_pack().empty());
  if (embedded_sources().empty()) GTEST_SKIP() << "this build has no GPU kernels";
  EXPECT_TRUE(Archive::parse_untrusted(embedded_sources()).ok());
  EXPECT_TRUE(Archive::parse_untrusted(embedded_pack()).ok());
}

}  // namespace
}  // namespace strobe::runtime
