// SPDX-License-Identifier: Apache-2.0
// A file is whole or not there, and nothing that others put into its folder is written through.
#include "io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>

#include "cli/files.h"
#include "runtime/temporary_folder.h"

namespace strobe::test {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

class AtomicFile : public testing::Test {
 protected:
  auto files() const { return std::distance(fs::directory_iterator(folder_.path()), {}); }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "result";
};

TEST_F(AtomicFile, IsThereOnceItIsCommitted) {
  write_bytes(path_, "old");
  auto file = io::AtomicFile::create(path_);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE(file->write(bytes_of("new")).ok());
  ASSERT_TRUE(file->close().ok());
  EXPECT_EQ(read_bytes(path_), "old");
  io::AtomicFile moved = std::move(*file);
  ASSERT_TRUE(moved.commit().ok());
  EXPECT_EQ(read_bytes(path_), "new");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFile, IsGoneWithoutCommit) {
  write_bytes(path_, "old");
  {
    auto file = io::AtomicFile::create(path_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE(file->write(bytes_of("new")).ok());
    EXPECT_EQ(files(), 2);
  }
  EXPECT_EQ(read_bytes(path_), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFile, HasAnotherTemporaryNameEachTime) {
  const auto names = [&] {
    const auto file = io::AtomicFile::create(path_);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return fs::directory_iterator(folder_.path())->path();
  };
  EXPECT_NE(names(), names());
}

TEST_F(AtomicFile, ReplacesALinkAndNotWhatItNames) {
  const std::string precious = folder_ / "precious";
  write_bytes(precious, "kept");
  fs::create_symlink(precious, path_);
  ASSERT_TRUE(io::write_file(path_, {bytes_of("new")}).ok());
  EXPECT_EQ(read_bytes(precious), "kept");
  EXPECT_EQ(read_bytes(path_), "new");
  EXPECT_FALSE(fs::is_symlink(path_));
}

TEST_F(AtomicFile, LeavesWhatIsNoFile) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink(pipe, path_);
  for (const std::string& path : {pipe, path_, folder_.path().string(), folder_ / "x/"}) {
    const Status status = io::write_file(path, {bytes_of("new")});
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << path;
    EXPECT_NE(status.message().find("cannot write '" + path + "': "), std::string::npos) << status.message();
  }
  EXPECT_EQ(files(), 2);
}

TEST_F(AtomicFile, SaysThatTheDiskIsFull) {
  // A process may write no file beyond this size; writes fail as they do on a full disk.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = io::write_file(path_, {bytes_of(std::string(5000, 'x'))});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), StatusCode::device_error);
  EXPECT_EQ(status.message(), "cannot write '" + path_ + "': File too large");
  EXPECT_EQ(files(), 0);
}

}  // namespace
}  // namespace strobe::test
