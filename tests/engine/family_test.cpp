// SPDX-License-Identifier: Apache-2.0
// A family of GPU kernels reaches the engine by being listed; the first that has a plan takes a call.
#include "gpu/family.h"

#include <gtest/gtest.h>

#include <string>

#include "gpu/choose_family.h"
#include "gpu/compile_ahead.h"
#include "gpu/plan/supported.h"

namespace strobe::gpu {
namespace {

/// A call that only explains itself.
class ExplainedCall final : public engine::PlannedCall {
 public:
  explicit ExplainedCall(const Request& request)
      : family_(request.family), text_(std::string(request.family) + ": " + request.reason) {}

  std::size_t workspace_bytes() const override { return 0; }
  DType probability_dtype() const override { return DType::float16; }
  std::string_view kernels() const override { return family_; }
  std::string explain() const override { return text_; }

 private:
  std::string_view family_;
  std::string text_;
};

/// For compute capabilities from `least` on: forwards of heads up to `widest`; calls of one query are others' where
/// there are any.
class TestFamily final : public Family {
 public:
  TestFamily(std::string_view name, int least, std::int64_t widest, std::string_view prefers_later)
      : name_(name), least_(least), widest_(widest), prefers_later_(prefers_later) {}

  std::string_view name() const override { return name_; }

  Status serves(const runtime::CudaDevice& device) const override {
    if (device.compute_major >= least_) return {};
    return unsupported("{} is for {}.0", name_, least_);
  }

  std::string_view prefers_later(const AttentionProblem& problem) const override {
    return problem.seqlen_q == 1 ? prefers_later_ : "";
  }

  engine::PlannedCallResult plan_forward(const Request& request) const override {
    if (request.problem.head_dim > widest_) return unsupported("{} lacks head_dim {}", name_, request.problem.head_dim);
    return engine::make_planned<ExplainedCall>(request);
  }

  engine::PlannedCallResult plan_backward(const Request&) const override {
    return Status(StatusCode::device_error, std::string(name_) + " is out of order");
  }

  Status list_kernels(const AttentionProblem& problem, const DeviceShape&, const Choice&,
                      PackList& list) const override {
    if (problem.head_dim > widest_) return unsupported("{} lacks head_dim {}", name_, problem.head_dim);
    list.add({.name = std::string(name_), .include = {}, .expression = std::string(name_), .architecture = {}}, 0);
    return {};
  }

  Result<std::vector<Candidate>> candidates(const AttentionProblem& problem, const DeviceShape&) const override {
    if (problem.head_dim > widest_) return unsupported("{} lacks head_dim {}", name_, problem.head_dim);
    return std::vector<Candidate>(1);
  }

 private:
  std::string_view name_;
  int least_;
  std::int64_t widest_;
  std::string_view prefers_later_;
};

AttentionProblem problem_of(std::int64_t seqlen_q, std::int64_t head_dim) {
  AttentionProblem problem;
  problem.seqlen_q = seqlen_q;
  problem.head_dim = head_dim;
  return problem;
}

engine::PlannedCallResult planned(const AttentionProblem& problem, int compute_major, std::string_view wanted = "") {
  runtime::CudaDevice device;
  device.compute_major = compute_major;
  return plan_by_family(problem, device, wanted, &Family::plan_forward);
}

std::string explained(const AttentionProblem& problem, int compute_major, std::string_view wanted = "") {
  const engine::PlannedCallResult call = planned(problem, compute_major, wanted);
  return call.ok() ? (*call)->explain() : "no plan: " + call.status().message();
}

TEST(Family, ThatIsListedFirstTakesCalls) {
  EXPECT_EQ(explained(problem_of(128, 64), 9), "new: the tensors are on a GPU of compute capability 9.0");
  EXPECT_EQ((*planned(problem_of(128, 64), 9))->kernels(), "new");
}

TEST(Family, ThatDoesNotServeTheDeviceIsNotAsked) {
  EXPECT_EQ(explained(problem_of(128, 64), 8), "old: the tensors are on a GPU of compute capability 8.0");
  EXPECT_EQ(explained(problem_of(128, 64), 7), "no plan: old is for 8.0");
}

TEST(Family, HandsOnWhatItLacks) {
  EXPECT_EQ(explained(problem_of(128, 128), 9), "old: new lacks head_dim 128");
  EXPECT_EQ(explained(problem_of(128, 256), 9), "no plan: new lacks head_dim 256");
}

TEST(Family, HandsOnWhatOthersAreFasterFor) {
  EXPECT_EQ(explained(problem_of(1, 64), 9), "old: one query");
  EXPECT_EQ(explained(problem_of(1, 256), 9), "no plan: old lacks head_dim 256");
}

TEST(Family, ThatTakesACallListsItsKernels) {
  const auto kernels = [](std::int64_t head_dim, int compute_major) {
    const auto listed = kernels_of(problem_of(128, head_dim), "a GPU", {.compute_major = compute_major});
    return listed.ok() ? listed->front().name : listed.status().message();
  };
  EXPECT_EQ(kernels(64, 9), "new");
  EXPECT_EQ(kernels(128, 9), "old");
  EXPECT_EQ(kernels(256, 9), "new lacks head_dim 256");
  EXPECT_EQ(kernels(64, 7), "old is for 8.0");
}

TEST(Family, IsTakenWhereTheCallWantsIt) {
  EXPECT_EQ(explained(problem_of(1, 64), 9, "new"), "new: wanted, on a GPU of compute capability 9.0");
  EXPECT_EQ(explained(problem_of(128, 64), 9, "old"), "old: wanted, on a GPU of compute capability 9.0");
  EXPECT_EQ(explained(problem_of(128, 64), 8, "new"), "no plan: new is for 9.0");
  EXPECT_EQ(explained(problem_of(128, 64), 9, "sm80"), "no plan: kernels is sm80: the gpu engine has new and old");
}

TEST(Family, WhoseMachineFailsEndsTheSearch) {
  runtime::CudaDevice device;
  device.compute_major = 9;
  const engine::PlannedCallResult call = plan_by_family(problem_of(128, 64), device, "", &Family::plan_backward);
  EXPECT_EQ(call.status().message(), "new is out of order");
}

}  // namespace

/// The one line that a family needs outside its own folder.
std::span<const Family* const> families() {
  static const TestFamily newer("new", 9, 64, "one query");
  static const TestFamily older("old", 8, 128, "");
  static const Family* const all[] = {&newer, &older};
  return all;
}

}  // namespace strobe::gpu
