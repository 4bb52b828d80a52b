// SPDX-License-Identifier: Apache-2.0
// strobe run: files in, files out, compared with float64; and everything that can be wrong with a file.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "files.h"
#include "io/npy.h"
#include "io/quantized.h"
#include "program.h"
#include "reference/bound/arithmetic.h"
#include "reference/bound/reference.h"
#include "runtime/temporary_folder.h"

namespace strobe::test {
namespace {

/// Two sequences of 33 queries and 47 keys, four query heads on two key heads, head_dim 20 and 12.
struct Inputs {
  explicit Inputs(DType dtype)
      : q(normal_tensor(dtype, {2, 33, 4, 20}, 1)),
        k(normal_tensor(dtype, {2, 47, 2, 20}, 2)),
        v(normal_tensor(dtype, {2, 47, 2, 12}, 3)),
        d_o(normal_tensor(dtype, {2, 33, 4, 12}, 4)) {}

  io::HostTensor q, k, v, d_o;
};

class Run : public ::testing::Test {
 protected:
  /// Writes the inputs and returns the flags that name them.
  std::vector<std::string> write(const Inputs& inputs) {
    EXPECT_TRUE(io::write_npy(folder_ / "q.npy", inputs.q).ok());
    EXPECT_TRUE(io::write_npy(folder_ / "k.npy", inputs.k).ok());
    EXPECT_TRUE(io::write_npy(folder_ / "v.npy", inputs.v).ok());
    EXPECT_TRUE(io::write_npy(folder_ / "do.npy", inputs.d_o).ok());
    return {"run", "--q", folder_ / "q.npy", "--k", folder_ / "k.npy", "--v", folder_ / "v.npy", "--out", out_};
  }

  io::HostTensor result(const std::string& name) {
    Result<io::HostTensor> tensor = io::read_npy(out_ + "/" + name + ".npy");
    EXPECT_TRUE(tensor.ok()) << tensor.status().message();
    return tensor.ok() ? std::move(*tensor) : io::HostTensor{};
  }

  bool wrote(const std::string& name) { return std::filesystem::exists(out_ + "/" + name + ".npy"); }

  TemporaryFolder folder_;
  std::string out_ = folder_ / "made/for/it";
};

TEST_F(Run, ForwardAndBackwardMatchFloat64) {
  const AttentionOptions options{
      .scale = 0.3F, .causal = CausalMask::bottom_right, .window = {20, -1}, .softcap = 15.0F};
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    Inputs inputs(dtype);
    const Outcome outcome =
        run_program(write(inputs) + std::vector<std::string>{"--do", folder_ / "do.npy", "--causal", "--window", "20",
                                                             "-1", "--softcap", "15", "--scale", "0.3"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    io::HostTensor o = result("o"), lse = result("lse"), dq = result("dq"), dk = result("dk"), dv = result("dv");
    EXPECT_EQ(o.dtype, dtype);
    EXPECT_EQ(o.shape, (std::vector<std::int64_t>{2, 33, 4, 12}));
    EXPECT_EQ(lse.dtype, DType::float32);
    EXPECT_EQ(lse.shape, (std::vector<std::int64_t>{2, 4, 33}));

    const ForwardArguments forward{
        .q = view(inputs.q), .k = view(inputs.k), .v = view(inputs.v), .o = view(o), .lse = view(lse)};
    const Result<Plan> plan = make_plan(forward, options);
    ASSERT_TRUE(plan.ok());
    const reference::ArithmeticModel model = reference::arithmetic_of(*plan);
    const reference::ForwardResult expected = reference::forward(forward, options, model);
    expect_within_bound(o, expected.o, "O");
    expect_within_bound(lse, expected.lse, "LSE");
    const BackwardArguments backward{.q = view(inputs.q),
                                     .k = view(inputs.k),
                                     .v = view(inputs.v),
                                     .o = view(o),
                                     .lse = view(lse),
                                     .d_o = view(inputs.d_o),
                                     .dq = view(dq),
                                     .dk = view(dk),
                                     .dv = view(dv)};
    const reference::BackwardResult gradients = reference::backward(backward, options, model);
    expect_within_bound(dq, gradients.dq, "dQ");
    expect_within_bound(dk, gradients.dk, "dK");
    expect_within_bound(dv, gradients.dv, "dV");
  }
}

TEST_F(Run, WritesOnlyTheForwardWithoutDo) {
  const Outcome outcome = run_program(write(Inputs(DType::float32)));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(wrote("o") && wrote("lse"));
  EXPECT_FALSE(wrote("dq") || wrote("dk") || wrote("dv"));
}

TEST_F(Run, ConvertsInputsAsIfTheyHadBeenSavedSo) {
  ASSERT_EQ(run_program(write(Inputs(DType::float32)) + std::vector<std::string>{"--dtype", "bfloat16"}).exit_code, 0);
  const io::HostTensor converted = result("o");
  ASSERT_EQ(run_program(write(Inputs(DType::bfloat16))).exit_code, 0);
  EXPECT_EQ(converted.dtype, DType::bfloat16);
  EXPECT_EQ(converted.bytes, result("o").bytes);
}

/// A safetensors file of these tensors.
std::string safetensors_of(const std::vector<std::pair<std::string, const io::HostTensor*>>& tensors) {
  const std::map<DType, const char*> names = {
      {DType::float32, "F32"}, {DType::float16, "F16"}, {DType::int8, "I8"}, {DType::float8_e4m3, "F8_E4M3"}};
  nlohmann::json entries;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size());
    entries[name] = {
        {"dtype", names.at(tensor->dtype)}, {"shape", tensor->shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string header = entries.dump();
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>((header.size() >> (8 * i)) & 0xFFU);
  return length + header + data;
}

TEST_F(Run, ReadsSafetensorsLikeNpy) {
  const Inputs inputs(DType::float16);
  ASSERT_EQ(run_program(write(inputs) + std::vector<std::string>{"--causal-top-left"}).exit_code, 0);
  const io::HostTensor from_npy = result("o");

  const std::string file = safetensors_of({{"q", &inputs.q}, {"k", &inputs.k}, {"v", &inputs.v}});
  write_bytes(folder_ / "qkv.safetensors", file);

  const Outcome outcome =
      run_program({"run", "--input", folder_ / "qkv.safetensors", "--causal-top-left", "--out", out_});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(result("o").bytes, from_npy.bytes);

  write_bytes(folder_ / "qkv.safetensors", file.substr(0, 100));
  expect_rejection(run_program({"run", "--input", folder_ / "qkv.safetensors", "--out", out_}), 2, "qkv.safetensors");
}

TEST_F(Run, ComputesOnQuantisedTensors) {
  const Inputs inputs(DType::float32);
  for (const DType element : {DType::int8, DType::float8_e4m3}) {
    const auto x = io::quantized(view(inputs.q), view(inputs.k), view(inputs.v), {.element = element, .seed = 9});
    ASSERT_TRUE(x.ok()) << x.status().message();
    write_bytes(folder_ / "qkv.safetensors", safetensors_of({{"q", &x->q8},
                                                             {"k", &x->k8},
                                                             {"v", &x->v8},
                                                             {"q_descale", &x->q_descale},
                                                             {"k_descale", &x->k_descale},
                                                             {"v_descale", &x->v_descale},
                                                             {"q_shift", &x->q_shift}}));
    const Outcome outcome = run_program(
        {"run", "--input", folder_ / "qkv.safetensors", "--v-rotation", "9", "--dtype", "float16", "--out", out_});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    io::HostTensor o = io::make_tensor(DType::float16, {2, 33, 4, 12});
    ForwardArguments arguments = x->arguments();
    arguments.o = view(o);
    ASSERT_TRUE(forward(arguments).ok());
    EXPECT_EQ(result("o").dtype, DType::float16);
    EXPECT_EQ(result("o").bytes, o.bytes);
  }
}

TEST_F(Run, RejectsBadFilesInOneLine) {
  const std::vector<std::string> flags = write(Inputs(DType::float32));
  const std::string q = folder_ / "q.npy";
  const std::string good = read_bytes(q);
  const auto expect_bad_q = [&](const std::string& bytes, const std::string& words) {
    write_bytes(q, bytes);
    expect_rejection(run_program(flags), 2, words);
  };
  expect_bad_q(good.substr(0, good.size() - 1), "q.npy");
  expect_bad_q(good.substr(0, 20), "header");
  expect_bad_q("garbage", "not a .npy file");
  expect_bad_q(npy_bytes(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1, 1, 1), }", std::string(8, ' ')),
               "float32");
  expect_bad_q(npy_bytes(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }", std::string(8, ' ')),
               "[batch, seqlen, heads, head_dim]");
  expect_bad_q(npy_bytes(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1, 1, 2), }", std::string(8, ' ')),
               "int32");
  std::filesystem::remove(q);
  expect_rejection(run_program(flags), 2, "No such file");
  EXPECT_FALSE(wrote("o"));
}

TEST_F(Run, RejectsWrongFlagsInOneLine) {
  const std::vector<std::string> flags = write(Inputs(DType::float32));
  expect_rejection(run_program({"run"}), 2, "--input");
  expect_rejection(run_program({"run", "--q", folder_ / "q.npy"}), 2, "--q requires --k");
  expect_rejection(run_program({"run", "--q", folder_ / "q.npy", "--k", folder_ / "k.npy"}), 2, "--k requires --v");
  expect_rejection(run_program({"run", "--v", folder_ / "v.npy"}), 2, "--v requires --q");
  expect_rejection(run_program(flags + std::vector<std::string>{"--input", "x"}), 2, "--input");
  expect_rejection(run_program(flags + std::vector<std::string>{"--threads", "-3"}), 2, "--threads");
  for (const char* const flag : {"--do", "--bias", "--sink", "--block-mask", "--score", "--mask-text"}) {
    expect_rejection(run_program(flags + std::vector<std::string>{flag, ""}), 2,
                     std::string(flag) + ": '' is no value");
  }
  EXPECT_FALSE(wrote("o"));
}

TEST_F(Run, ReportsWhatTheLibraryRejects) {
  const std::vector<std::string> flags = write(Inputs(DType::float32));
  expect_rejection(run_program(flags + std::vector<std::string>{"--engine", "gpu"}), 3, "CUDA");
  expect_rejection(run_program(flags + std::vector<std::string>{"--softcap", "-1"}), 2, "softcap");
  // q's head_dim, where d_o needs v's.
  expect_rejection(run_program(flags + std::vector<std::string>{"--do", folder_ / "q.npy"}), 2, "d_o");
  EXPECT_FALSE(wrote("o"));
}

TEST_F(Run, ReportsAFolderThatCannotBeMade) {
  std::vector<std::string> flags = write(Inputs(DType::float32));
  flags.back() = folder_ / "q.npy";
  const Outcome outcome = run_program(flags);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("cannot make the directory"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace strobe::test
