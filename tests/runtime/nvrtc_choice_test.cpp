// SPDX-License-Identifier: Apache-2.0
// Which NVRTC compiles for which driver and device.
#include "runtime/nvrtc_choice.h"

#include <gtest/gtest.h>

namespace strobe::runtime {
namespace {

constexpr NvrtcVersion kCuda12{12, NvrtcVersion::kAnyMinor};
constexpr NvrtcVersion kCuda13{13, NvrtcVersion::kAnyMinor};

NvrtcCandidate candidate(NvrtcVersion version) {
  std::vector<int> architectures = {80, 86, 89, 90};
  if (version >= NvrtcVersion{12, 8}) architectures.insert(architectures.end(), {100, 120});
  return {.path = "libnvrtc " + to_string(version), .version = version, .architectures = architectures};
}

/// The version that is chosen; 0.0 where none is.
NvrtcVersion chosen(const std::vector<NvrtcVersion>& versions, const CubinTarget& target) {
  std::vector<NvrtcCandidate> candidates;
  for (const NvrtcVersion version : versions) candidates.push_back(candidate(version));
  const std::optional<std::size_t> index = choose_nvrtc(candidates, target);
  return index.has_value() ? versions[*index] : NvrtcVersion{};
}

TEST(NvrtcChoice, TakesTheFirstThatMakesFastKernels) {
  const CubinTarget target{.newest = kCuda13, .architecture = "sm_90a"};
  EXPECT_EQ(chosen({{13, 0}, {12, 9}}, target), (NvrtcVersion{13, 0}));
  EXPECT_EQ(chosen({{12, 9}, {13, 0}}, target), (NvrtcVersion{12, 9}));
  EXPECT_EQ(chosen({{12, 4}, {12, 9}, {13, 0}}, target), (NvrtcVersion{12, 9}));
}

TEST(NvrtcChoice, TakesTheNewestWhereNoneMakesThem) {
  const CubinTarget target{.newest = kCuda12, .architecture = "sm_90a"};
  EXPECT_EQ(chosen({{12, 4}, {12, 8}, {12, 6}}, target), (NvrtcVersion{12, 8}));
}

TEST(NvrtcChoice, NeverTakesALaterMajorThanTheDrivers) {
  const CubinTarget target{.newest = kCuda12, .architecture = "sm_90a"};
  EXPECT_EQ(chosen({{13, 0}, {12, 6}}, target), (NvrtcVersion{12, 6}));
  EXPECT_EQ(chosen({{13, 0}}, target), NvrtcVersion{});
  EXPECT_EQ(rejection(candidate({13, 0}), target), "its kernels need a driver for CUDA 13");
}

TEST(NvrtcChoice, StaysBelowWhatTheDriverHasRejected) {
  const CubinTarget target{.newest = {12, 6}, .architecture = "sm_80"};
  EXPECT_EQ(chosen({{12, 9}, {12, 4}}, target), (NvrtcVersion{12, 4}));
  EXPECT_EQ(rejection(candidate({12, 9}), target), "the driver rejects kernels of versions after 12.6");
}

TEST(NvrtcChoice, KnowsTheArchitectures) {
  const CubinTarget target{.newest = kCuda13, .architecture = "sm_120"};
  EXPECT_EQ(chosen({{12, 6}, {12, 8}}, target), (NvrtcVersion{12, 8}));
  EXPECT_EQ(rejection(candidate({12, 6}), target), "it does not compile for sm_120");
  EXPECT_EQ(architecture_number("sm_90a"), 90);
  EXPECT_EQ(architecture_number(""), 0);
}

}  // namespace
}  // namespace strobe::runtime
