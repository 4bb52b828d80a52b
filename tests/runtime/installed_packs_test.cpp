// SPDX-License-Identifier: Apache-2.0
// Packs beside the library: whole ones are used, others are named with the reason.
#include "runtime/installed_packs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "temporary_folder.h"

namespace strobe::runtime {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

std::string image(const std::string& key) {
  return KernelImage::serialize(key, {.cubin = "code", .lowered_name = "kernel", .log = ""}, 1.0);
}

std::string pack_of(const std::string& key) {
  return KernelPack::make(std::array{NvrtcVersion{12, 9}}, {{key, image(key)}});
}

class InstalledPacksTest : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  /// Why the only pack of the place is not used.
  static std::string reason(const std::string& place) {
    const std::vector<InstalledPack> packs = packs_in(place);
    return packs.size() == 1 ? packs[0].reason : "there is not one pack";
  }

  test::TemporaryFolder folder_;
};

TEST_F(InstalledPacksTest, AreTheArchivesOfAFolder) {
  write("b.archive", pack_of("second"));
  write("a.archive", pack_of("first"));
  write("notes.txt", "no pack");
  const std::vector<InstalledPack> packs = packs_in(folder_ / ".");
  ASSERT_THAT(packs, SizeIs(2));
  EXPECT_TRUE(packs[0].pack.find("first").has_value());
  EXPECT_FALSE(packs[0].pack.find("second").has_value());
  EXPECT_TRUE(packs[1].pack.find("second").has_value());
  EXPECT_THAT(packs[0].pack.versions(), ElementsAre(NvrtcVersion{12, 9}));
  EXPECT_EQ(packs[0].pack.size(), 1U);
}

TEST_F(InstalledPacksTest, AFileIsOnePack) {
  EXPECT_TRUE(packs_in(write("kernels", pack_of("key"))).at(0).pack.find("key").has_value());
}

TEST_F(InstalledPacksTest, OthersAreNamedWithTheReason) {
  EXPECT_EQ(reason(folder_ / "missing"), "No such file or directory");
  EXPECT_EQ(reason(write("empty", "")), "the kernel archive is damaged");
  EXPECT_EQ(reason(write("cut", pack_of("key").substr(0, 200))), "the kernel archive is damaged");
  EXPECT_EQ(reason(write("images", make_archive({{"key", image("key")}}))), "it does not say which NVRTC made it");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(reason(folder_ / "pipe"), "it is no file");
  EXPECT_THAT(packs_in(""), IsEmpty());
}

TEST_F(InstalledPacksTest, ADamagedKernelIsNotTaken) {
  std::string bytes = pack_of("key");
  bytes[bytes.find("code")] = 'x';
  EXPECT_FALSE(packs_in(write("kernels", bytes)).at(0).pack.find("key").has_value());
}

TEST_F(InstalledPacksTest, TheVariableNamesThePlace) {
  ::setenv("STROBE_KERNELS", "/some/where", 1);
  EXPECT_EQ(packs_place(), "/some/where");
  ::unsetenv("STROBE_KERNELS");
}

TEST_F(InstalledPacksTest, WithoutItTheFolderIsBesideTheLibrary) {
  namespace fs = std::filesystem;
  const fs::path place = fs::canonical("/proc/self/exe").parent_path() / "strobe_kernels";
  fs::create_directory(place);
  EXPECT_EQ(fs::path(packs_place()), place);
  fs::remove(place);
  EXPECT_EQ(packs_place(), "");
}

}  // namespace
}  // namespace strobe::runtime
