// SPDX-License-Identifier: Apache-2.0
// Kernels compiled by the NVRTC that the build uses, without a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/kernel_store.h"
#include "runtime/pack/ptxas_report.h"

namespace strobe::sm90 {

class CompiledKernels : public testing::Test {
 protected:
  void SetUp() override {
    const char* const path = std::getenv("STROBE_NVRTC");
    if (path == nullptr) GTEST_SKIP() << "this build has no NVRTC";
    Result<std::unique_ptr<const runtime::Nvrtc>> opened = runtime::Nvrtc::open(path);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    nvrtc_ = std::move(*opened);
  }

  /// And ptxas keeps WGMMAs in flight.
  void expect_compiles(const runtime::Variant& variant) const { compile(variant, kAnyBytes); }

  /// And nothing is kept in local memory, either.
  void expect_compiles_without_spills(const runtime::Variant& variant) const { compile(variant, 0); }

  /// But for so many bytes of registers.
  void expect_compiles_with_spills_to(int most_bytes, const runtime::Variant& variant) const {
    compile(variant, most_bytes);
  }

 private:
  static constexpr int kAnyBytes = 1 << 20;

  void compile(const runtime::Variant& variant, int most_spilled) const {
    std::string log;
    const Result<std::string> image = runtime::kernel_store().compile(variant, *nvrtc_, &log);
    ASSERT_TRUE(image.ok()) << image.status().message();
    const std::optional<runtime::PtxasReport> report = runtime::parse_ptxas_log(log);
    ASSERT_TRUE(report.has_value()) << log;
    EXPECT_FALSE(report->wgmma_serialized) << variant.expression << '\n' << log;
    EXPECT_LE(report->spill_bytes, most_spilled) << variant.expression << '\n' << log;
  }

  std::unique_ptr<const runtime::Nvrtc> nvrtc_;
};

}  // namespace strobe::sm90
