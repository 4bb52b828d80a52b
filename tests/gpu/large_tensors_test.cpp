// SPDX-License-Identifier: Apache-2.0
// Both passes over tensors of more than 2^31 elements and a workspace to match: a batch, or packed sequences, of copies
// of one small case, whose gradients are compared at both ends and where offsets outgrow 32 bits.
#include <algorithm>
#include <vector>

#include "attention/matches_reference.h"
#include "device_case.h"
#include "gpu/call/override.h"
#include "gpu/device_memory.h"
#include "gpu_test.h"
#include "reference/bound/arithmetic.h"
#include "sm90/backward_plan.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kRows = 100;
constexpr std::int64_t kColumns = 16384;  // of all heads
constexpr std::int64_t kCopies = 1320;
static_assert(kCopies * kRows * kColumns > std::int64_t{1} << 31U);

AttentionCase small_case(std::int64_t head_dim) {
  AttentionCase attention = plain_case(kRows, head_dim, CausalMask::bottom_right);
  attention.batch = 1;
  attention.heads_q = attention.heads_kv = kColumns / head_dim;
  attention.has_d_lse = false;
  return attention;
}

class GpuLargeTensors : public GpuTest {
 protected:
  void expect_copies_match(const AttentionCase& attention, bool packed);

 private:
  std::byte* allocate(std::size_t bytes);
  TensorView outputs(const GuardedTensor& of, bool packed);
  TensorView inputs(const GuardedTensor& from, bool packed);
  TensorView cu_seqlens();

  std::vector<gpu::DeviceMemory> memories_;
};

std::byte* GpuLargeTensors::allocate(std::size_t bytes) {
  Result<gpu::DeviceMemory> memory = gpu::DeviceMemory::allocate(device(), bytes);
  EXPECT_TRUE(memory.ok()) << memory.status().message();
  if (!memory.ok()) return nullptr;
  memories_.push_back(std::move(*memory));
  return memories_.back().data();
}

/// Room for kCopies of a tensor [1, rows, heads, head_dim] or [1, heads, rows] of the small case.
TensorView GpuLargeTensors::outputs(const GuardedTensor& of, bool packed) {
  TensorView view = of.view();
  const bool is_lse = view.rank == 3;
  view.data = allocate(kCopies * of.size() * size_of(view.dtype));
  view.device = {DeviceType::cuda, device().index};
  view.shape[0] = kCopies;
  if (!packed) return view;
  view.rank -= 1;
  view.shape = is_lse ? decltype(view.shape){view.shape[1], kCopies * kRows}
                      : decltype(view.shape){kCopies * kRows, view.shape[2], view.shape[3]};
  view.strides =
      is_lse ? decltype(view.strides){kCopies * kRows, 1} : decltype(view.strides){view.strides[1], view.strides[2], 1};
  return view;
}

/// kCopies of what a tensor of the small case holds.
TensorView GpuLargeTensors::inputs(const GuardedTensor& from, bool packed) {
  const TensorView view = outputs(from, packed);
  const std::size_t bytes = from.size() * size_of(view.dtype);
  const runtime::Driver& driver = *device().driver;
  const runtime::ContextScope context(device());
  const auto address = reinterpret_cast<runtime::CUdeviceptr>(view.data);
  EXPECT_EQ(driver.MemcpyHtoD(address, from.element_bytes().data(), bytes), runtime::CUDA_SUCCESS);
  EXPECT_EQ(driver.CtxSynchronize(), runtime::CUDA_SUCCESS);
  for (std::size_t copies = 1; copies < kCopies; copies *= 2) {
    const std::size_t more = std::min<std::size_t>(copies, kCopies - copies);
    EXPECT_EQ(driver.MemcpyAsync(address + copies * bytes, address, more * bytes, stream().get()),
              runtime::CUDA_SUCCESS);
  }
  return view;
}

TensorView GpuLargeTensors::cu_seqlens() {
  std::vector<std::int32_t> ends;
  for (std::int32_t sequence = 0; sequence <= kCopies; ++sequence) ends.push_back(sequence * kRows);
  TensorView view =
      tensor(reinterpret_cast<std::int32_t*>(allocate(ends.size() * sizeof(std::int32_t))), {kCopies + 1});
  view.device = {DeviceType::cuda, device().index};
  EXPECT_TRUE(memories_.back().upload(ends.data()).ok());
  return view;
}

void GpuLargeTensors::expect_copies_match(const AttentionCase& attention, bool packed) {
  SCOPED_TRACE(describe(attention) + (packed ? ", packed" : ", batched"));
  CaseTensors one(attention);
  BackwardArguments arguments{.q = inputs(one.q, packed),
                              .k = inputs(one.k, packed),
                              .v = inputs(one.v, packed),
                              .d_o = inputs(one.d_o, packed),
                              .dq = outputs(one.dq, packed),
                              .dk = outputs(one.dk, packed),
                              .dv = outputs(one.dv, packed)};
  const TensorView o = outputs(one.o, packed);
  const TensorView lse = outputs(one.lse, packed);
  arguments.o = o;
  arguments.lse = lse;
  if (packed) {
    const TensorView ends = cu_seqlens();
    arguments.sequences = {.cu_seqlens_q = ends, .cu_seqlens_k = ends, .max_seqlen_q = kRows, .max_seqlen_k = kRows};
  }
  if (HasFailure()) return;
  const Execution execution{.stream = stream().get()};
  const Status forward_status = forward(
      {.q = arguments.q, .k = arguments.k, .v = arguments.v, .o = o, .lse = lse, .sequences = arguments.sequences},
      attention.options, execution);
  ASSERT_TRUE(forward_status.ok()) << forward_status.message();
  const Result<Plan> plan = make_plan(arguments, attention.options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_GT(plan->workspace_size(), std::size_t{1} << 31U);
  const Status status = plan->run(arguments, execution);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(stream().synchronize().ok());

  const std::int64_t across = (std::int64_t{1} << 31U) / (kRows * kColumns);  // the copy that has element 2^31
  const runtime::ContextScope context(device());
  for (const std::int64_t copy : {std::int64_t{0}, across / 2, across, kCopies - 1}) {
    SCOPED_TRACE("copy " + std::to_string(copy));
    for (const auto& [large, small] :
         {std::pair{&arguments.dq, &one.dq}, std::pair{&arguments.dk, &one.dk}, std::pair{&arguments.dv, &one.dv}}) {
      const std::size_t bytes = small->element_bytes().size();
      const auto from = reinterpret_cast<runtime::CUdeviceptr>(large->data) + copy * bytes;
      ASSERT_EQ(device().driver->MemcpyDtoH(small->view().data, from, bytes), runtime::CUDA_SUCCESS);
    }
    expect_backward_matches(one, attention, reference::arithmetic_of("sm90", attention.dtype));
  }
  memories_.clear();
}

TEST_F(GpuLargeTensors, GradientsOfSums) {
  for (const bool packed : {false, true}) expect_copies_match(small_case(128), packed);
}

TEST_F(GpuLargeTensors, GradientsByRoles) {
  // All dS in one launch: more than 2^31 bytes of it.
  const gpu::Override<sm90::ScoreGradientLimits> override(
      [](sm90::ScoreGradientLimits& limits) { limits.bytes = std::size_t{1} << 33U; });
  for (const bool packed : {false, true}) expect_copies_match(small_case(256), packed);
}

}  // namespace
}  // namespace strobe::test
