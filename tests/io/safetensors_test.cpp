// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace strobe::io {
namespace {

/// Eight bytes of little-endian length, the header (padded, so that the data is aligned), the data.
std::string file_of(std::string header, const std::string& data) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string bytes;
  for (unsigned i = 0; i < 8; ++i) bytes += static_cast<char>((header.size() >> (8 * i)) & 0xFFU);
  return bytes + header + data;
}

class Safetensors : public testing::Test {
 protected:
  Safetensors()
      : path_(std::filesystem::path(testing::TempDir()) / fmt::format("{}-{}.safetensors", name(), ::getpid())) {}
  ~Safetensors() override { std::filesystem::remove(path_); }

  Result<SafetensorsFile> open(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    return SafetensorsFile::open(path_);
  }

  /// The message that a file of these bytes is rejected with, without the file's name.
  std::string rejection(const std::string& bytes) const {
    const Result<SafetensorsFile> file = open(bytes);
    if (file.ok()) return "accepted";
    EXPECT_EQ(file.status().code(), StatusCode::invalid_argument);
    const std::string name = fmt::format("'{}' ", path_.string());
    EXPECT_TRUE(file.status().message().starts_with(name)) << file.status().message();
    return file.status().message().substr(name.size());
  }

  std::filesystem::path path_;

 private:
  static std::string name() { return testing::UnitTest::GetInstance()->current_test_info()->name(); }
};

TEST_F(Safetensors, ReadsEveryDtype) {
  const float values[] = {1.0F, -2.5F, 0.0F, 3.0F};
  std::string data(reinterpret_cast<const char*>(values), sizeof(values));
  data += std::string("\x00\x3c\x00\xc0", 4) + std::string("\x80\x3f\x00\xc0", 4) + std::string("\x07\x00\x00\x00", 4);
  const auto file = open(file_of(R"({"__metadata__":{"format":"pt"},)"
                                 R"("f":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                                 R"("h":{"dtype":"F16","shape":[2],"data_offsets":[16,20]},)"
                                 R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[20,24]},)"
                                 R"("i":{"dtype":"I32","shape":[1],"data_offsets":[24,28]}})",
                                 data));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->names(), (std::vector<std::string>{"b", "f", "h", "i"}));

  const auto f = file->read("f");
  ASSERT_TRUE(f.ok()) << f.status().message();
  EXPECT_EQ(f->dtype, DType::float32);
  EXPECT_EQ(f->shape, (std::vector<std::int64_t>{2, 2}));
  ASSERT_EQ(f->bytes.size(), sizeof(values));
  EXPECT_EQ(std::memcmp(f->bytes.data(), values, sizeof(values)), 0);

  const auto h = file->read("h");
  ASSERT_TRUE(h.ok()) << h.status().message();
  EXPECT_EQ(h->dtype, DType::float16);
  EXPECT_EQ(to_float(reinterpret_cast<const float16*>(h->bytes.data())[1]), -2.0F);

  const auto b = file->read("b");
  ASSERT_TRUE(b.ok()) << b.status().message();
  EXPECT_EQ(b->dtype, DType::bfloat16);
  EXPECT_EQ(to_float(reinterpret_cast<const bfloat16*>(b->bytes.data())[0]), 1.0F);

  const auto i = file->read("i");
  ASSERT_TRUE(i.ok()) << i.status().message();
  EXPECT_EQ(i->dtype, DType::int32);
  EXPECT_EQ(i->shape, std::vector<std::int64_t>{1});
  EXPECT_EQ(i->bytes.size(), 4U);
  EXPECT_EQ(static_cast<int>(i->bytes[0]), 7);
}

TEST_F(Safetensors, ReadsOnFromAFileThatHasGone) {
  auto file = open(file_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcd"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const SafetensorsFile moved = std::move(*file);
  std::filesystem::remove(path_);
  EXPECT_EQ(static_cast<char>(moved.read("x")->bytes[3]), 'd');
}

TEST_F(Safetensors, SaysThatItWasCutShort) {
  const std::string header = R"({"x":{"dtype":"F32","shape":[4096],"data_offsets":[0,16384]}})";
  const auto file = open(file_of(header, std::string(16384, 'x')));
  ASSERT_TRUE(file.ok()) << file.status().message();
  std::filesystem::resize_file(path_, 100);
  const auto tensor = file->read("x");
  EXPECT_EQ(tensor.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(tensor.status().message(),
            fmt::format("'{}' ends at byte 100: it was cut short while it was read", path_.string()));
}

TEST_F(Safetensors, AcceptsEmptyTensorsAndEmptyFiles) {
  const auto file = open(file_of(R"({"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]}})", ""));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->read("e")->shape, (std::vector<std::int64_t>{0, 3}));
  EXPECT_TRUE(open(file_of("{}", "")).ok());
}

TEST_F(Safetensors, SaysWhatItCannotRead) {
  const auto file = open(file_of(R"({"odd":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},)"
                                 R"("long":{"dtype":"I64","shape":[1],"data_offsets":[5,13]},)"
                                 R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[13,17]},)"
                                 R"("byte":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                                 std::string(17, 'x')));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto message = [&](const char* name) { return file->read(name).status().message(); };
  EXPECT_TRUE(file->read("odd").ok());
  EXPECT_NE(message("long").find("is I64; F32, F16, BF16, I32, F8_E4M3 and I8 are accepted"), std::string::npos);
  EXPECT_NE(message("scalar").find("has rank 0; 1 to 4 is accepted"), std::string::npos);
  EXPECT_NE(message("none").find("has no tensor 'none'; it has byte, long, odd, scalar"), std::string::npos);
  EXPECT_EQ(file->read("long").status().code(), StatusCode::unsupported);
  EXPECT_EQ(file->read("none").status().code(), StatusCode::invalid_argument);
}

TEST_F(Safetensors, RejectsWhatIsNoFile) {
  const auto missing = SafetensorsFile::open(path_);
  EXPECT_EQ(missing.status().message(), fmt::format("'{}' cannot be read: No such file or directory", path_.string()));
  const auto folder = SafetensorsFile::open(testing::TempDir());
  EXPECT_NE(folder.status().message().find("cannot be read: it is not a regular file"), std::string::npos);
}

TEST_F(Safetensors, RejectsDamagedHeaders) {
  EXPECT_EQ(rejection(""), "is not a safetensors file: it has 0 bytes, less than the header's length takes");
  EXPECT_EQ(rejection("1234567"), "is not a safetensors file: it has 7 bytes, less than the header's length takes");
  EXPECT_EQ(rejection(std::string(8, '\xff')),
            "claims a header of 18446744073709551615 bytes; the format allows 100000000");
  EXPECT_EQ(rejection(file_of("{}", "").substr(0, 9)), "is truncated: its header has 8 bytes, of which 1 are there");
  EXPECT_EQ(rejection(file_of("[]", "")), "is not a safetensors file: its header does not start with '{'");
  EXPECT_EQ(rejection(file_of("", "")), "is not a safetensors file: its header does not start with '{'");
  EXPECT_EQ(rejection(file_of("{\"x\":", "")), "has a header that is not a JSON object");
  EXPECT_EQ(rejection(file_of("{\"\xff\":1}", "")), "has a header that is not a JSON object");
}

TEST_F(Safetensors, RejectsDamagedEntries) {
  const auto entry = [&](const std::string& fields) {
    return rejection(file_of("{\"x\":" + fields + "}", "01234567"));
  };
  const std::string tensor = "has a tensor 'x' ";
  EXPECT_EQ(entry("3"), tensor + "without dtype, shape and data_offsets");
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[2]})"), tensor + "without dtype, shape and data_offsets");
  EXPECT_EQ(entry(R"({"dtype":32,"shape":[2],"data_offsets":[0,8]})"), tensor + "whose dtype is not a string");
  EXPECT_EQ(entry(R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})"),
            tensor + "of dtype 'F31', which the format does not know");
  const std::string bad_shape = tensor + "whose shape is not a list of sizes from 0 to 2^63 - 1";
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), bad_shape);
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), bad_shape);
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), bad_shape);
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]})"), bad_shape);
  const std::string bad_offsets = tensor + "whose data_offsets are not [begin, end] with begin <= end";
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8]})"), bad_offsets);
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), bad_offsets);
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[-1,8]})"), bad_offsets);
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"),
            tensor + "that ends at byte 12 of 8 bytes of data: the file is truncated or damaged");
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,9223372036854775807]})"),
            tensor + "that ends at byte 9223372036854775807 of 8 bytes of data: the file is truncated or damaged");
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
            tensor + "with 8 bytes of data, which is not what F32 of shape [3] takes");
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,8]})"),
            tensor +
                "with 8 bytes of data, which is not what F32 of shape [4611686018427387904, 4611686018427387904] "
                "takes");
}

TEST_F(Safetensors, RejectsTensorsThatDoNotFillTheData) {
  const std::string x = R"("x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_EQ(rejection(file_of("{" + x + R"(,"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "012")),
            "has tensors that overlap at byte 1 of the data");
  EXPECT_EQ(rejection(file_of("{" + x + R"(,"y":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})", "0123")),
            "has a hole between its tensors at byte 2 of the data");
  EXPECT_EQ(rejection(file_of("{" + x + "}", "01234")), "has 3 bytes that belong to no tensor at its end");
  EXPECT_EQ(rejection(file_of("{" + x + "," + x + "}", "01")), "names tensor 'x' twice");
}

}  // namespace
}  // namespace strobe::io
