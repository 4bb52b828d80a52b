// SPDX-License-Identifier: Apache-2.0
// The file readers and writers without memory.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "every_allocation.h"
#include "io/npy.h"
#include "io/safetensors.h"
#include "runtime/temporary_folder.h"

namespace strobe::test {
namespace {

class Readers : public testing::TestWithParam<Failure> {
 protected:
  /// Fails every allocation of `call`; `path` is the file that the message names where it can.
  template <class Call>
  void attack(const std::filesystem::path& path, const Call& call) {
    ASSERT_TRUE(call().ok());
    for (const std::string& message : fail_every_allocation(GetParam(), call, [] { return true; })) {
      EXPECT_TRUE(message == "out of memory" || message == "'" + path.string() + "': out of memory") << message;
    }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << "a file is left behind";
  }

  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Failures, Readers, testing::Values(Failure::once, Failure::from_then),
                         [](const auto& failure) { return failure.param == Failure::once ? "Once" : "FromThen"; });

TEST_P(Readers, Npy) {
  const std::filesystem::path path = folder_ / "tensor.npy";
  const io::HostTensor tensor = io::make_tensor(DType::float32, {3, 2});
  attack(path, [&] { return io::write_npy(path, tensor); });
  attack(path, [&] { return io::read_npy(path).status(); });
}

TEST_P(Readers, Safetensors) {
  const std::filesystem::path path = folder_ / "tensors.safetensors";
  const std::string header = R"({"a tensor of a long name":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::ofstream(path) << static_cast<char>(header.size()) << std::string(7, '\0') << header << std::string(8, 'x');
  attack(path, [&] { return io::SafetensorsFile::open(path).status(); });
  const Result<io::SafetensorsFile> file = io::SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  attack(path, [&] { return file->read("a tensor of a long name").status(); });
}

}  // namespace
}  // namespace strobe::test
