// SPDX-License-Identifier: Apache-2.0
// The pack takes only kernels that keep to registers and let WGMMAs overlap.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/pack/build_pack.h"
#include "temporary_folder.h"
#include "test_kernels.h"

namespace strobe::runtime {
namespace {

// Holds 96 values through a barrier with 32 registers per thread.
constexpr const char* kSpilling = R"(
  __global__ void __launch_bounds__(1024, 2) kernel(float* values) {
    float held[96];
    #pragma unroll
    for (int i = 0; i < 96; ++i) held[i] = values[i * 1024 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 96; ++i) values[i * 1024 + threadIdx.x] = held[95 - i] * held[i];
  })";

// Indexes an array by numbers that only the run knows.
constexpr const char* kLocalArray = R"(
  __global__ void kernel(float* values, const int* places) {
    float held[64] = {};
    for (int i = 0; i < 64; ++i) held[places[i]] += values[i];
    for (int i = 0; i < 64; ++i) values[i] = held[i];
  })";

// Reads the accumulators of a WGMMA before waiting for it.
constexpr const char* kSerialized = R"(
  __global__ void __launch_bounds__(128, 1) kernel(float* out, unsigned long long a, unsigned long long b) {
    float d[4] = {};
    for (int i = 0; i < 4; ++i) {
      asm volatile("wgmma.fence.sync.aligned;");
      asm volatile(
          "{ wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0; }"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
      asm volatile("wgmma.commit_group.sync.aligned;");
      out[threadIdx.x] = d[0];
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;");
    out[threadIdx.x + 128] = d[1] + d[2] + d[3];
  })";

class PackTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!nvrtc().ok()) GTEST_SKIP() << nvrtc().status().message();
  }

  Result<Pack> build(const std::string& text, const std::vector<CommonVariant>& variants) {
    const std::string sources = test::test_sources(text);
    const KernelStore store(*Archive::parse(sources), {}, DiskCache::open(folder_ / "kernels"), nvrtc);
    const Nvrtc* const one[] = {*nvrtc()};
    return build_pack(store, one, variants);
  }

  static CommonVariant plain_kernel() {
    return {.variant = {.name = "kernel", .include = "test/change.h", .expression = "kernel", .architecture = "sm_90a"},
            .dynamic_shared_bytes = 0};
  }

  void expect_rejected(const std::string& text, const std::string& reason) {
    testing::internal::CaptureStderr();
    const Result<Pack> pack = build(text, {plain_kernel()});
    const std::string printed = testing::internal::GetCapturedStderr();
    EXPECT_FALSE(pack.ok());
    EXPECT_NE(printed.find(reason), std::string::npos) << printed;
  }

  test::TemporaryFolder folder_;
};

TEST_F(PackTest, HoldsEveryVariantAndWhatItUses) {
  const std::vector<CommonVariant> variants = {{test::add_variant(1)}, {test::add_variant(2)}, {test::add_variant(3)}};
  const Result<Pack> pack = build(test::kKernelText, variants);
  ASSERT_TRUE(pack.ok()) << pack.status().message();
  ASSERT_EQ(pack->kernels.size(), 3U);
  for (const PackedKernel& kernel : pack->kernels) {
    EXPECT_GT(kernel.report.registers, 0);
    EXPECT_EQ(kernel.report.spill_bytes, 0);
    EXPECT_GT(kernel.cubin_bytes, 0U);
    EXPECT_GT(kernel.compile_ms, 0.0);
  }
  const std::string sources = test::test_sources();
  const KernelStore store(*Archive::parse(sources), {KernelPack(*Archive::parse(pack->archive))}, DiskCache(),
                          [](const CubinTarget&) {
                            return Result<const Nvrtc*>(Status(StatusCode::unsupported, "the pack should have had it"));
                          });
  for (const CommonVariant& variant : variants) EXPECT_TRUE(store.find(variant.variant).ok());
}

TEST_F(PackTest, HasTheSameBytesEachTime) {
  const std::vector<CommonVariant> variants = {{test::add_variant(1)}, {test::add_variant(2)}};
  const Result<Pack> first = build(test::kKernelText, variants);
  const Result<Pack> second = build(test::kKernelText, variants);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->archive, second->archive);
}

TEST_F(PackTest, RejectsSpills) { expect_rejected(kSpilling, "spills registers"); }

// A kernel that only the older NVRTC makes badly is compiled by the newer one, the others by the older.
TEST_F(PackTest, LeavesToTheNewerNvrtcWhatTheOlderSpills) {
  const char* const path = std::getenv("STROBE_NVRTC_NEWER");
  if (path == nullptr) GTEST_SKIP() << "this build has one NVRTC";
  const auto newer = Nvrtc::open(path);
  ASSERT_TRUE(newer.ok()) << newer.status().message();
  const std::string sources = test::test_sources(std::string(test::kKernelText) + R"(
    template <int n>
    __global__ void indexed(float* values, const int* places) {
    #if __CUDACC_VER_MAJOR__ < 13
      float held[n] = {};
      for (int i = 0; i < n; ++i) held[places[i]] += values[i];
      for (int i = 0; i < n; ++i) values[i] = held[i];
    #endif
    })");
  const CommonVariant other{test::add_variant(1)};
  CommonVariant indexed = other;
  indexed.variant.expression = "indexed<64>";
  const KernelStore store(*Archive::parse(sources), {}, DiskCache::open(folder_ / "kernels"), nvrtc);
  const Nvrtc* const both[] = {*nvrtc(), newer->get()};
  testing::internal::CaptureStderr();
  const Result<Pack> pack = build_pack(store, both, {indexed, other});
  EXPECT_NE(testing::internal::GetCapturedStderr().find("keeps an array in local memory with NVRTC 12."),
            std::string::npos);
  ASSERT_TRUE(pack.ok()) << pack.status().message();
  ASSERT_EQ(pack->kernels.size(), 2U);
  EXPECT_EQ(pack->kernels[0].kernel.variant.expression, other.variant.expression);
  EXPECT_EQ(pack->kernels[0].nvrtc, both[0]->version());
  EXPECT_EQ(pack->kernels[1].nvrtc, both[1]->version());
  const KernelStore packed(
      *Archive::parse(sources), {KernelPack(*Archive::parse(pack->archive))}, DiskCache(),
      [](const CubinTarget&) { return Result<const Nvrtc*>(Status(StatusCode::unsupported, "not in the pack")); });
  EXPECT_EQ(KernelPack(*Archive::parse(pack->archive)).size(), 2U);
  EXPECT_TRUE(packed.find(indexed.variant).ok());
  EXPECT_TRUE(packed.find(other.variant, both[0]->version()).ok());
  EXPECT_EQ(packed.find(indexed.variant, both[0]->version()).status().message(), "not in the pack");
}

TEST_F(PackTest, RejectsArraysInLocalMemory) { expect_rejected(kLocalArray, "keeps an array in local memory"); }

TEST_F(PackTest, RejectsSerializedWgmma) { expect_rejected(kSerialized, "C75"); }

TEST_F(PackTest, RejectsWhatDoesNotCompile) { expect_rejected("nonsense", "nonsense"); }

TEST(PtxasReport, ReadsTheNumbers) {
  const std::optional<PtxasReport> report = parse_ptxas_log(
      "ptxas info    : 170 bytes gmem\n"
      "ptxas info    : Compiling entry function '_Z6kernel' for 'sm_90a'\n"
      "ptxas info    : Function properties for _Z6kernel\n"
      "ptxas         .     24 bytes stack frame, 20 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 3 barriers, 1048 bytes smem\n");
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->registers, 168);
  EXPECT_EQ(report->static_shared_bytes, 1048);
  EXPECT_EQ(report->stack_bytes, 24);
  EXPECT_EQ(report->spill_bytes, 32);
  EXPECT_FALSE(report->wgmma_serialized);
  EXPECT_FALSE(parse_ptxas_log("").has_value());
}

}  // namespace
}  // namespace strobe::runtime
