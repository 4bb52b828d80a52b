// SPDX-License-Identifier: Apache-2.0
// What happens when the driver does not load a kernel.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fake_driver.h"
#include "runtime/kernel.h"
#include "test_kernels.h"

namespace strobe::runtime {
namespace {

/// Loaded kernels stay for the process, and so do their stores and what these read.
template <class T, class... Arguments>
T& make_kept(Arguments&&... arguments) {
  static auto& kept = *new std::vector<std::unique_ptr<T>>;
  return *kept.emplace_back(std::make_unique<T>(std::forward<Arguments>(arguments)...));
}

class LoadTest : public testing::Test {
 protected:
  /// Tries to load a kernel that a pack of NVRTC 12.9 has, with a driver for CUDA 12.4. No compiler is there.
  Status load() {
    fake_.set_version(12040);
    const Variant variant = test::add_variant(3);
    const NvrtcVersion version{12, 9};
    const auto& sources = make_kept<std::string>(make_archive({{"test/change.h", test::kKernelText}}));
    const KernelStore naming(*Archive::parse(sources), {}, DiskCache(), {});
    const std::string key = naming.key(variant, version);
    const std::string image = KernelImage::serialize(key, {.cubin = "code", .lowered_name = "kernel", .log = ""}, 1.0);
    const auto& pack = make_kept<std::string>(KernelPack::make(std::array{version}, {{key, image}}));
    const auto choose = [this](const CubinTarget& target) {
      asked_.push_back(target);
      return Result<const Nvrtc*>(Status(StatusCode::unsupported, "no compiler for this test"));
    };
    const auto& store = make_kept<KernelStore>(*Archive::parse(sources), std::vector{KernelPack(*Archive::parse(pack))},
                                               DiskCache(), choose);
    return load_kernel(store, variant, fake_.device(), 0).status();
  }

  test::FakeDriver fake_;
  std::vector<CubinTarget> asked_;
};

TEST_F(LoadTest, TakesAPackOfALaterMinorVersionThanTheDriver) {
  EXPECT_TRUE(load().ok());
  EXPECT_TRUE(asked_.empty());
}

TEST_F(LoadTest, CompilesForTheDriversOwnVersionWhatTheDriverRejects) {
  fake_.fail("LibraryLoadData", CUDA_ERROR_INVALID_IMAGE);
  const Status status = load();
  EXPECT_EQ(status.message(),
            "loading the kernel add 3: CUDA_ERROR_INVALID_VALUE (invalid argument); no compiler for this test");
  ASSERT_EQ(asked_.size(), 1U);
  EXPECT_EQ(asked_.front().newest, (NvrtcVersion{12, 4}));
}

TEST_F(LoadTest, PassesOtherErrorsOn) {
  fake_.fail("LibraryLoadData", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(load().code(), StatusCode::out_of_memory);
  EXPECT_TRUE(asked_.empty());
}

}  // namespace
}  // namespace strobe::runtime
