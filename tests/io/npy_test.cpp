// SPDX-License-Identifier: Apache-2.0
// .npy files: what is read, what is rejected and in which words, and that a write is whole or not there.
#include "io/npy.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/files.h"
#include "runtime/temporary_folder.h"

namespace strobe::test {
namespace {

constexpr const char* kFloats = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";

class Npy : public ::testing::Test {
 protected:
  Result<io::HostTensor> read(std::string_view bytes) {
    write_bytes(path_, bytes);
    return io::read_npy(path_);
  }

  /// Expects a message that names the file and holds `words`.
  void expect_rejected(std::string_view bytes, const std::string& words) {
    const Result<io::HostTensor> tensor = read(bytes);
    ASSERT_FALSE(tensor.ok()) << words;
    EXPECT_EQ(tensor.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(tensor.status().message().find(words), std::string::npos) << tensor.status().message();
    EXPECT_NE(tensor.status().message().find(path_), std::string::npos) << tensor.status().message();
    EXPECT_EQ(tensor.status().message().find('\n'), std::string::npos);
  }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "tensor.npy";
};

TEST_F(Npy, ReadsBackWhatItWrote) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16, DType::float8_e4m3, DType::int8}) {
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{5}, {2, 3}, {2, 0, 4}, {1, 2, 3, 4}, {3, 1, 1, 7}}) {
      const io::HostTensor tensor = normal_tensor(dtype, shape, 1);
      ASSERT_TRUE(io::write_npy(path_, tensor).ok());
      const Result<io::HostTensor> read = io::read_npy(path_);
      ASSERT_TRUE(read.ok()) << read.status().message();
      EXPECT_EQ(read->dtype, dtype);
      EXPECT_EQ(read->shape, shape);
      EXPECT_EQ(read->bytes, tensor.bytes);
    }
  }
}

/// A pipe with a writer that gives `bytes` and goes away.
class Feeder {
 public:
  Feeder(const std::string& path, std::string bytes) {
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    writer_ = std::thread([path, bytes = std::move(bytes)] { std::ofstream(path, std::ios::binary) << bytes; });
  }
  ~Feeder() { writer_.join(); }
  Feeder(const Feeder&) = delete;
  Feeder& operator=(const Feeder&) = delete;

 private:
  std::thread writer_;
};

TEST_F(Npy, ReadsPipes) {
  const io::HostTensor tensor = normal_tensor(DType::float32, {3, 5000, 4}, 1);  // more than a pipe holds
  ASSERT_TRUE(io::write_npy(path_, tensor).ok());
  const std::string pipe = folder_ / "pipe";
  const Feeder feeder(pipe, read_bytes(path_));
  const Result<io::HostTensor> read = io::read_npy(pipe);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->shape, tensor.shape);
  EXPECT_EQ(read->bytes, tensor.bytes);
}

TEST_F(Npy, PipesHoldOneWholeArray) {
  ASSERT_TRUE(io::write_npy(path_, normal_tensor(DType::float32, {2}, 1)).ok());
  const std::string whole = read_bytes(path_);
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "ends at byte 0"},
      {whole.substr(0, 40), "ends at byte 40"},
      {whole.substr(0, whole.size() - 1), "ends at byte 135"},
      {whole + "x", "goes on after the 8 bytes of its float32 of shape (2)"},
      {"no array at all", "does not start with"}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string pipe = folder_ / ("pipe" + std::to_string(i));
    const Feeder feeder(pipe, cases[i].first);
    const Result<io::HostTensor> read = io::read_npy(pipe);
    ASSERT_FALSE(read.ok()) << cases[i].second;
    EXPECT_EQ(read.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(read.status().message().find(cases[i].second), std::string::npos) << read.status().message();
  }
}

TEST_F(Npy, ReadsScalarsAsOneElement) {
  const std::string header = "{'descr': '<i8', 'fortran_order': False, 'shape': (), }";
  const Result<io::HostTensor> tensor = read(npy_bytes(1, header, std::string("\x05\0\0\0\0\0\0\0", 8)));
  ASSERT_TRUE(tensor.ok()) << tensor.status().message();
  EXPECT_EQ(tensor->dtype, DType::int64);
  EXPECT_EQ(tensor->shape, std::vector<std::int64_t>{1});
  EXPECT_EQ(tensor->bytes[0], std::byte{5});
}

// What numpy.save gives for numpy.zeros((2, 3), numpy.float16), byte for byte.
TEST_F(Npy, WritesTheBytesThatNumpyWrites) {
  ASSERT_TRUE(io::write_npy(path_, io::make_tensor(DType::float16, {2, 3})).ok());
  std::string header = "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }";
  header.append(117 - header.size(), ' ');
  EXPECT_EQ(read_bytes(path_), npy_bytes(1, header + '\n', std::string(12, '\0')));
}

TEST_F(Npy, ReadsEveryFormatVersionAndSpelling) {
  const std::string data(8, '\x01');
  for (const int version : {1, 2, 3}) EXPECT_TRUE(read(npy_bytes(version, kFloats, data)).ok()) << version;
  for (const char* const header : {"{'shape':(2,),'fortran_order':False,'descr':'<f4'}",
                                   "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (2L,)}   \n",
                                   "{'descr': '<f4', 'fortran_order': True, 'shape': (2,)}"}) {
    EXPECT_TRUE(read(npy_bytes(1, header, data)).ok()) << header;
  }
  for (const char* const descr : {"<V2", "|V2", "bfloat16"}) {
    const std::string header = std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (4,), }";
    const Result<io::HostTensor> tensor = read(npy_bytes(1, header, data));
    ASSERT_TRUE(tensor.ok()) << descr;
    EXPECT_EQ(tensor->dtype, DType::bfloat16);
  }
}

TEST_F(Npy, RejectsWhatIsNotAnArrayOfOurs) {
  const std::string data(8, '\x01');
  const auto with = [](const char* descr, const char* order, const char* shape) {
    return std::string("{'descr': '") + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  };
  expect_rejected("", "not a .npy file");
  expect_rejected("PK\x03\x04 something else", "not a .npy file");
  expect_rejected(npy_bytes(4, kFloats, data), "format version 4");
  expect_rejected(npy_bytes(1, with("<f8", "False", "(1,)"), data), "numpy.float32");
  expect_rejected(npy_bytes(1, with(">f4", "False", "(2,)"), data), "'>f4'");
  expect_rejected(npy_bytes(1, with("<u8", "False", "(1,)"), data), "'<u8'");
  expect_rejected(npy_bytes(1, with("<f4", "True", "(2, 1)"), data), "Fortran order");
  expect_rejected(npy_bytes(1, with("<f4", "False", "()"), data), "8 bytes of data");
  expect_rejected(npy_bytes(1, with("<f4", "False", "(1, 1, 1, 1, 2)"), data), "rank 5");
  expect_rejected(npy_bytes(1, with("<f4", "False", "(3,)"), data), "8 bytes of data");
  expect_rejected(npy_bytes(1, with("<f4", "False", "(1,)"), data), "8 bytes of data");
  for (const char* const shape :
       {"(4294967296, 4294967296, 4)", "(0, 9223372036854775807)", "(4294967296, 0, 4294967296)"}) {
    expect_rejected(npy_bytes(1, with("<f4", "False", shape), ""), "multiply to more than 63 bits hold");
  }
  for (const char* const header :
       {"", "{}", "[]", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", "{'descr': 3}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", "{'descr': '<f4', 'fortran_order': False, 'shape': 2}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': True}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} and more"}) {
    expect_rejected(npy_bytes(1, header, data), "dictionary");
  }
}

TEST_F(Npy, RejectsEveryTruncation) {
  const std::string whole = npy_bytes(2, kFloats, std::string(8, '\x01'));
  ASSERT_TRUE(read(whole).ok());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(read(std::string_view(whole).substr(0, length)).ok()) << length;
  }
}

TEST_F(Npy, SurvivesEveryChangedByte) {
  const std::string whole = npy_bytes(2, kFloats, std::string(8, '\x01'));
  for (std::size_t position = 0; position < whole.size(); ++position) {
    for (const char value : {'\x00', '\x7F', '\xFF', '(', '\''}) {
      std::string changed = whole;
      changed[position] = value;
      const Result<io::HostTensor> tensor = read(changed);
      EXPECT_TRUE(!tensor.ok() || tensor->bytes.size() == 8U);
    }
  }
}

TEST_F(Npy, SaysWhatTheSystemSays) {
  const Result<io::HostTensor> missing = io::read_npy(folder_ / "missing.npy");
  EXPECT_NE(missing.status().message().find("No such file"), std::string::npos) << missing.status().message();
  EXPECT_FALSE(io::read_npy(folder_.path()).ok());
  const Status unwritable = io::write_npy(folder_ / "no/such/folder/x.npy", io::make_tensor(DType::float32, {1}));
  EXPECT_NE(unwritable.message().find("No such file"), std::string::npos) << unwritable.message();
}

TEST_F(Npy, ReplacesAFileAndLeavesNoOther) {
  write_bytes(path_, "old");
  ASSERT_TRUE(io::write_npy(path_, io::make_tensor(DType::float32, {1})).ok());
  EXPECT_TRUE(io::read_npy(path_).ok());
  const std::filesystem::directory_iterator files(folder_.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

}  // namespace
}  // namespace strobe::test
