// SPDX-License-Identifier: Apache-2.0
// Offsets are 64-bit: tensors whose rows lie further apart than 2^31 elements give the same bits as contiguous ones.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <vector>

#include "matches_reference.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kSeqlen = 20;
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kHeadDim = 16;
constexpr std::int64_t kBatchStride = std::int64_t{1} << 32U;  // elements
constexpr std::int64_t kRowStride = std::int64_t{1} << 27U;    // the last row lies 2.5e9 elements from the first

// Address space that takes memory only where it is written; each tensor has its own place in every row.
class SparseMemory {
 public:
  SparseMemory() : start_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0)) {}
  ~SparseMemory() {
    if (given()) munmap(start_, kBytes);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  bool given() const { return start_ != MAP_FAILED; }

  /// `like`'s shape with strides beyond 32 bits.
  TensorView take(const TensorView& like) {
    TensorView view = like;
    view.data = static_cast<float*>(start_) + 1024 * taken_++;
    view.strides = like.rank == 4 ? std::array<std::int64_t, 4>{kBatchStride, kRowStride, kHeadDim, 1}
                                  : std::array<std::int64_t, 4>{kBatchStride, kRowStride, 1, 0};
    return view;
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{kBatch} * kBatchStride * sizeof(float);
  static constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* start_;
  std::int64_t taken_ = 0;
};

std::int64_t offset_of(const TensorView& view, std::int64_t index) {
  std::int64_t offset = 0;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    offset += index % view.shape[axis] * view.strides[axis];
    index /= view.shape[axis];
  }
  return offset;
}

void copy_to(const TensorView& to, const GuardedTensor& from) {
  for (std::int64_t index = 0; index < from.size(); ++index) {
    static_cast<float*>(to.data)[offset_of(to, index)] = static_cast<float>(from.get(index));
  }
}

void expect_same(const TensorView& far, const GuardedTensor& near, const char* name) {
  for (std::int64_t index = 0; index < near.size(); ++index) {
    ASSERT_EQ(static_cast<const float*>(far.data)[offset_of(far, index)], static_cast<float>(near.get(index)))
        << name << " element " << index;
  }
}

TEST(LargeStrides, GiveTheBitsOfContiguousTensors) {
  SparseMemory memory;
  if (!memory.given()) GTEST_SKIP() << "this machine does not lend 32 GiB of address space";
  AttentionCase attention{.batch = kBatch, .heads_q = kHeads, .heads_kv = kHeads};
  attention.head_dim = attention.head_dim_v = kHeadDim;
  attention.q.rows = attention.k.rows = kSeqlen;
  CaseTensors near(attention);
  ASSERT_TRUE(forward(near.forward_arguments()).ok());
  ASSERT_TRUE(backward(near.backward_arguments()).ok());

  BackwardArguments far;
  const auto take_copy = [&memory](const GuardedTensor& tensor) {
    const TensorView view = memory.take(tensor.view());
    copy_to(view, tensor);
    return view;
  };
  far.q = take_copy(near.q);
  far.k = take_copy(near.k);
  far.v = take_copy(near.v);
  far.d_o = take_copy(near.d_o);
  far.d_lse = take_copy(near.d_lse);
  far.dq = memory.take(near.dq.view());
  far.dk = memory.take(near.dk.view());
  far.dv = memory.take(near.dv.view());
  const TensorView far_o = memory.take(near.o.view());
  const TensorView far_lse = memory.take(near.lse.view());
  far.o = far_o;
  far.lse = far_lse;
  ForwardArguments far_forward;
  far_forward.q = far.q;
  far_forward.k = far.k;
  far_forward.v = far.v;
  far_forward.o = far_o;
  far_forward.lse = far_lse;
  const Status forward_status = forward(far_forward);
  ASSERT_TRUE(forward_status.ok()) << forward_status.message();
  const Status backward_status = backward(far);
  ASSERT_TRUE(backward_status.ok()) << backward_status.message();
  expect_same(far_o, near.o, "o");
  expect_same(far_lse, near.lse, "lse");
  expect_same(far.dq, near.dq, "dq");
  expect_same(far.dk, near.dk, "dk");
  expect_same(far.dv, near.dv, "dv");
}

}  // namespace
}  // namespace strobe::test
