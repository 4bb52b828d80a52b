// SPDX-License-Identifier: Apache-2.0
// What may happen to a cache folder and its files: the cache then gives the right bytes or none.
#include "runtime/disk_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>

#include "child_process.h"
#include "runtime/archive.h"
#include "temporary_folder.h"

namespace strobe::runtime {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

constexpr uid_t kNobody = 65534;

std::string kernel(const std::string& text) { return make_archive({{"cubin", text}}); }

void write_file(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

class DiskCacheTest : public testing::Test {
 protected:
  fs::path entry() const { return fs::path(folder_) / "key.kernel"; }

  TemporaryFolder parent_;
  std::string folder_ = parent_ / "kernels";
  const std::string bytes_ = kernel(std::string(10'000, 'k'));
};

TEST_F(DiskCacheTest, KeepsWhatIsStored) {
  ASSERT_TRUE(DiskCache::open(folder_).store("key", bytes_));
  const DiskCache cache = DiskCache::open(folder_);
  EXPECT_EQ(cache.load("key"), bytes_);
  EXPECT_EQ(cache.load("another"), std::nullopt);
  ASSERT_TRUE(cache.store("key", kernel("new")));
  EXPECT_EQ(cache.load("key"), kernel("new"));
}

TEST_F(DiskCacheTest, LeavesNothingBehindButTheEntry) {
  ASSERT_TRUE(DiskCache::open(folder_).store("key", bytes_));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(DiskCacheTest, OneProcessAtATimeHasTheClaimOnAKey) {
  const DiskCache cache = DiskCache::open(folder_);
  int ready[2];
  int end[2];
  ASSERT_EQ(::pipe(ready) | ::pipe(end), 0);
  const pid_t other = test::start_child([&] {
    const FileDescriptor claim = DiskCache::open(folder_).claim("key");
    char byte = 0;
    const bool told = ::write(ready[1], &byte, 1) == 1 && ::read(end[0], &byte, 1) == 1;
    return told && DiskCache::open(folder_).store("key", bytes_) ? 0 : 1;
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_TRUE(cache.claim("another").is_open());  // nobody has that one
  ASSERT_EQ(::write(end[1], &byte, 1), 1);
  const FileDescriptor claim = cache.claim("key");  // the other has it, or has ended
  EXPECT_EQ(cache.load("key"), bytes_);
  EXPECT_EQ(test::wait_for(other), 0);
}

TEST_F(DiskCacheTest, AClaimEndsWithItsProcess) {
  const DiskCache cache = DiskCache::open(folder_);
  const pid_t other = test::start_child([&] {
    const FileDescriptor claim = DiskCache::open(folder_).claim("key");
    return ::raise(SIGKILL);
  });
  EXPECT_EQ(test::wait_for(other), -1);
  EXPECT_TRUE(cache.claim("key").is_open());
}

TEST_F(DiskCacheTest, NobodyWaitsForACacheThatCannotBeUsed) { EXPECT_FALSE(DiskCache().claim("key").is_open()); }

TEST_F(DiskCacheTest, IsTheOwnersAlone) {
  ASSERT_TRUE(DiskCache::open(folder_).store("key", bytes_));
  EXPECT_EQ(fs::status(folder_).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(entry()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(DiskCacheTest, MakesTheFoldersAboveIt) {
  EXPECT_TRUE(DiskCache::open(parent_ / "a/b/kernels").store("key", bytes_));
}

TEST_F(DiskCacheTest, WithoutAFolderKeepsNothing) {
  const DiskCache cache = DiskCache::open("");
  EXPECT_FALSE(cache.usable());
  EXPECT_FALSE(cache.store("key", bytes_));
  EXPECT_EQ(cache.load("key"), std::nullopt);
}

TEST_F(DiskCacheTest, RejectsAFolderThatOthersHaveAccessTo) {
  for (const mode_t mode : {0770U, 0701U, 0755U, 0777U}) {
    fs::create_directory(folder_);
    ASSERT_EQ(::chmod(folder_.c_str(), mode), 0);
    EXPECT_FALSE(DiskCache::open(folder_).usable()) << std::oct << mode;
  }
}

TEST_F(DiskCacheTest, RejectsALinkInTheFoldersPlace) {
  ASSERT_TRUE(DiskCache::open(parent_ / "real").usable());
  fs::create_directory_symlink(parent_ / "real", folder_);
  EXPECT_FALSE(DiskCache::open(folder_).usable());
}

TEST_F(DiskCacheTest, RejectsAFileInTheFoldersPlace) {
  write_file(folder_, "");
  EXPECT_FALSE(DiskCache::open(folder_).usable());
  EXPECT_FALSE(DiskCache::open(folder_ + "/below").usable());
}

TEST_F(DiskCacheTest, RejectsAnotherUsersFolder) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  fs::create_directory(folder_);
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
  ASSERT_EQ(::chown(folder_.c_str(), kNobody, kNobody), 0);
  const DiskCache cache = DiskCache::open(folder_);
  EXPECT_FALSE(cache.usable());
  EXPECT_NE(cache.reason().find("another user"), std::string::npos) << cache.reason();
}

TEST_F(DiskCacheTest, RejectsAnotherUsersFile) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const DiskCache cache = DiskCache::open(folder_);
  ASSERT_TRUE(cache.store("key", bytes_));
  ASSERT_EQ(::chown(entry().c_str(), kNobody, kNobody), 0);
  EXPECT_EQ(cache.load("key"), std::nullopt);
}

TEST_F(DiskCacheTest, DropsATruncatedFile) {
  const DiskCache cache = DiskCache::open(folder_);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{40}, bytes_.size() - 1}) {
    ASSERT_TRUE(cache.store("key", bytes_));
    fs::resize_file(entry(), size);
    EXPECT_EQ(cache.load("key"), std::nullopt) << size;
    EXPECT_FALSE(fs::exists(entry())) << size;
  }
}

TEST_F(DiskCacheTest, DropsAFileWithAFlippedBit) {
  const DiskCache cache = DiskCache::open(folder_);
  for (std::size_t byte = 0; byte < bytes_.size(); byte += 97) {
    std::string damaged = bytes_;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 0x10);
    write_file(entry(), damaged);
    EXPECT_EQ(cache.load("key"), std::nullopt) << byte;
  }
  EXPECT_TRUE(cache.store("key", bytes_));
  EXPECT_EQ(cache.load("key"), bytes_);
}

TEST_F(DiskCacheTest, DoesNotFollowALinkInAnEntrysPlace) {
  const DiskCache cache = DiskCache::open(folder_);
  write_file(parent_ / "elsewhere", bytes_);
  fs::create_symlink(parent_ / "elsewhere", entry());
  EXPECT_EQ(cache.load("key"), std::nullopt);
  ASSERT_TRUE(cache.store("key", kernel("new")));  // takes the link's place and leaves its target alone
  EXPECT_EQ(cache.load("key"), kernel("new"));
  EXPECT_EQ(fs::file_size(parent_ / "elsewhere"), bytes_.size());
}

TEST_F(DiskCacheTest, LivesWithAFolderOrAPipeInAnEntrysPlace) {
  const DiskCache cache = DiskCache::open(folder_);
  fs::create_directory(entry());
  EXPECT_EQ(cache.load("key"), std::nullopt);
  EXPECT_FALSE(cache.store("key", bytes_));
  fs::remove(entry());
  ASSERT_EQ(::mkfifo(entry().c_str(), 0600), 0);
  EXPECT_EQ(cache.load("key"), std::nullopt);
  EXPECT_TRUE(cache.store("key", bytes_));
}

TEST_F(DiskCacheTest, LivesWithAFolderThatIsGone) {
  const DiskCache cache = DiskCache::open(folder_);
  fs::remove_all(folder_);
  EXPECT_FALSE(cache.store("key", bytes_));
  EXPECT_EQ(cache.load("key"), std::nullopt);
}

// A limit on file size stands in for a full disk: the write stops half-way just the same.
TEST_F(DiskCacheTest, PublishesNothingOnAFullDisk) {
  const DiskCache cache = DiskCache::open(folder_);
  const pid_t child = test::start_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return cache.store("key", bytes_) ? 1 : 0;
  });
  EXPECT_EQ(test::wait_for(child), 0);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(DiskCacheTest, ReadsAndDoesNotWriteAReadOnlyFolder) {
  ASSERT_TRUE(DiskCache::open(folder_).store("key", bytes_));
  if (::geteuid() == 0) {  // root may write everywhere: give it all to a user who may not
    for (const fs::path& path : {parent_.path(), fs::path(folder_), entry()}) {
      ASSERT_EQ(::chown(path.c_str(), kNobody, kNobody), 0);
    }
  }
  ASSERT_EQ(::chmod(folder_.c_str(), 0500), 0);
  const pid_t child = test::start_child([&] {
    if (::geteuid() == 0 && ::seteuid(kNobody) != 0) return 2;
    const DiskCache cache = DiskCache::open(folder_);
    return cache.load("key") == bytes_ && !cache.store("other", bytes_) ? 0 : 1;
  });
  EXPECT_EQ(test::wait_for(child), 0);
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
}

// Writers of two contents, one process that damages the file all the time, readers: each reads one whole content.
TEST_F(DiskCacheTest, SixteenProcessesRaceForOneEntry) {
  const DiskCache cache = DiskCache::open(folder_);
  const std::string other = kernel(std::string(20'000, 'o'));
  constexpr int kRounds = 200;
  std::vector<pid_t> children;
  for (int child = 0; child < 16; ++child) {
    children.push_back(test::start_child([&, child] {
      for (int round = 0; round < kRounds; ++round) {
        if (child == 0) {
          std::error_code ignored;
          fs::resize_file(entry(), 100, ignored);
        } else if (child % 2 == 0) {
          if (!cache.store("key", child % 4 == 0 ? bytes_ : other)) return 1;
        } else {
          const std::optional<std::string> read = cache.load("key");
          if (read.has_value() && *read != bytes_ && *read != other) return 2;
        }
      }
      return 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(test::wait_for(child), 0);
}

TEST_F(DiskCacheTest, OneProcessAtATimeKeepsItToItself) {
  const DiskCache cache = DiskCache::open(folder_);
  std::vector<pid_t> children;
  for (int child = 0; child < 4; ++child) {
    children.push_back(test::start_child([&] {
      const DiskCache own = DiskCache::open(folder_);
      own.keep_to_this_process();
      const bool alone = ::mkdir((parent_ / "inside").c_str(), 0700) == 0;
      ::usleep(20'000);
      return alone && ::rmdir((parent_ / "inside").c_str()) == 0 ? 0 : 1;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(test::wait_for(child), 0);
}

class DefaultFolder : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"STROBE_CACHE_DIR", "XDG_CACHE_HOME"}) ::unsetenv(name);
    ::setenv("HOME", "/home/someone", 1);
  }
};

TEST_F(DefaultFolder, FollowsTheEnvironment) {
  EXPECT_EQ(DiskCache::default_folder(), "/home/someone/.cache/strobe/kernels");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(DiskCache::default_folder(), "/home/someone/.cache/strobe/kernels");
  ::setenv("XDG_CACHE_HOME", "/var/xdg", 1);
  EXPECT_EQ(DiskCache::default_folder(), "/var/xdg/strobe/kernels");
  ::setenv("STROBE_CACHE_DIR", "/var/strobe", 1);
  EXPECT_EQ(DiskCache::default_folder(), "/var/strobe/kernels");
}

}  // namespace
}  // namespace strobe::runtime
