// SPDX-License-Identifier: Apache-2.0
// The pack is compiled by NVRTC of CUDA 12. Here one kernel of each kind is compiled by that of CUDA 13, as users have
// it; scripts/gpu/compile_pack.py compiles all of them with any NVRTC.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "runtime/embedded.h"
#include "runtime/kernel_store.h"
#include "runtime/pack/common_variants.h"
#include "runtime/pack/ptxas_report.h"

namespace strobe::runtime {
namespace {

TEST(NewerNvrtc, CompilesEveryKindOfKernel) {
  const char* const path = std::getenv("STROBE_NVRTC_NEWER");
  if (path == nullptr) GTEST_SKIP() << "this build has one NVRTC";
  const auto nvrtc = Nvrtc::open(path);
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.status().message();
  const KernelStore store(*Archive::parse(embedded_sources()), {}, DiskCache(),
                          [&](const CubinTarget&) { return nvrtc->get(); });
  std::set<std::string> kinds;
  for (const CommonVariant& kernel : common_variants()) {
    const Variant& variant = kernel.variant;
    const std::string function = variant.expression.substr(0, variant.expression.find('<'));
    if (!kinds.insert(function + variant.architecture).second) continue;
    std::string log;
    const Result<std::string> image = store.compile(variant, **nvrtc, &log);
    ASSERT_TRUE(image.ok()) << image.status().message();
    const std::optional<PtxasReport> report = parse_ptxas_log(log);
    ASSERT_TRUE(report.has_value()) << log;
    EXPECT_EQ(report->spill_bytes + report->stack_bytes, 0) << variant.name;
    EXPECT_FALSE(report->wgmma_serialized) << variant.name << "\n" << log;
  }
  EXPECT_GE(kinds.size(), 8U);
}

}  // namespace
}  // namespace strobe::runtime
