// SPDX-License-Identifier: Apache-2.0
// The walks behind `strobe bench --io`: they compute attention, in the orders whose traffic they count, through no more
// fast memory than they are given.
#include "bench/io_walk.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "cli/files.h"
#include "reference/bound/reference.h"
#include "strobe/block_mask.h"

namespace strobe::test {
namespace {

using bench::BlockMask;
using bench::IoProblem;
using bench::Order;
using bench::Walk;

constexpr std::array kOrders{Order::standard, Order::flash_attention, Order::flash_attention_2};

BlockMask make_mask(std::int64_t seqlen, std::int64_t block_size) {
  const std::int64_t blocks = (seqlen + block_size - 1) / block_size;
  return {block_size, blocks, std::vector<std::uint8_t>(static_cast<std::size_t>(blocks * blocks))};
}

BlockMask butterfly(std::int64_t seqlen, std::int64_t block_size) {
  BlockMask mask = make_mask(seqlen, block_size);
  EXPECT_TRUE(butterfly_block_mask(tensor(mask.visible.data(), {mask.blocks, mask.blocks})).ok());
  return mask;
}

BlockMask local(std::int64_t seqlen, std::int64_t block_size, std::int64_t side) {
  BlockMask mask = make_mask(seqlen, block_size);
  EXPECT_TRUE(local_block_mask(tensor(mask.visible.data(), {mask.blocks, mask.blocks}), side, side).ok());
  return mask;
}

/// Inputs, one set for the reference and one for the walks.
class Attention {
 public:
  explicit Attention(const IoProblem& problem) : problem_(problem), slow_(make_slow_memory(problem, true)) {
    std::uint64_t seed = 1;
    for (io::HostTensor* const each : {&q_, &k_, &v_, &d_o_}) {
      *each = normal_tensor(DType::float32, {1, problem.seqlen, 1, problem.head_dim}, seed++);
    }
    o_ = dq_ = dk_ = dv_ = q_;
    lse_ = normal_tensor(DType::float32, {1, 1, problem.seqlen}, seed);
    slow_.q.values = reference::elements(view(q_));
    slow_.k.values = reference::elements(view(k_));
    slow_.v.values = reference::elements(view(v_));
    slow_.d_o.values = reference::elements(view(d_o_));
  }

  bench::SlowMemory& slow() { return slow_; }

  reference::ForwardResult forward() {
    return reference::forward(
        {.q = view(q_), .k = view(k_), .v = view(v_), .o = view(o_), .lse = view(lse_), .modifiers = modifiers()});
  }
  reference::BackwardResult backward() {
    return reference::backward({.q = view(q_),
                                .k = view(k_),
                                .v = view(v_),
                                .o = view(o_),
                                .lse = view(lse_),
                                .d_o = view(d_o_),
                                .dq = view(dq_),
                                .dk = view(dk_),
                                .dv = view(dv_),
                                .modifiers = modifiers()});
  }

 private:
  ScoreModifiers modifiers() {
    BlockMask& mask = problem_.mask;
    if (mask.block_size == 0) return {};
    return {.block_mask = tensor(mask.visible.data(), {1, 1, mask.blocks, mask.blocks}), .block_size = mask.block_size};
  }

  IoProblem problem_;
  bench::SlowMemory slow_;
  io::HostTensor q_, k_, v_, d_o_, o_, lse_, dq_, dk_, dv_;
};

/// The reference's bound is for float32; that of float64 is 2^-29 of it, and walk and reference may each use it up.
void expect_equal(const bench::SlowMatrix& actual, const reference::BoundedTensor& expected, const std::string& name) {
  ASSERT_EQ(actual.values.size(), expected.value.size()) << name;
  for (std::size_t i = 0; i < actual.values.size(); ++i) {
    ASSERT_LE(std::abs(actual.values[i] - expected.value[i]), 0x1p-28 * expected.bound[i]) << name << " at " << i;
  }
}

/// Both passes, in values and in space.
void expect_attention(Order order, const IoProblem& problem) {
  SCOPED_TRACE("order " + std::to_string(static_cast<int>(order)) + ", seqlen " + std::to_string(problem.seqlen) +
               ", head_dim " + std::to_string(problem.head_dim) + ", M " + std::to_string(problem.fast_memory));
  Attention attention(problem);
  bench::SlowMemory& slow = attention.slow();
  const Result<Walk> forward = walk_forward(order, problem, slow);
  ASSERT_TRUE(forward.ok()) << forward.status().message();
  const Result<Walk> backward = walk_backward(order, problem, slow);
  ASSERT_TRUE(backward.ok()) << backward.status().message();
  expect_equal(slow.o, attention.forward().o, "O");
  const reference::BackwardResult expected = attention.backward();
  expect_equal(slow.dq, expected.dq, "dQ");
  expect_equal(slow.dk, expected.dk, "dK");
  expect_equal(slow.dv, expected.dv, "dV");
  if (order == Order::flash_attention_2) expect_equal(slow.lse, attention.forward().lse, "LSE");

  bench::SlowMemory extents = make_slow_memory(problem, false);
  EXPECT_EQ(walk_forward(order, problem, extents)->traffic.elements(), forward->traffic.elements());
  EXPECT_EQ(walk_backward(order, problem, extents)->traffic.elements(), backward->traffic.elements());
  EXPECT_LE(forward->peak, problem.fast_memory);
  EXPECT_LE(backward->peak, problem.fast_memory);
}

TEST(IoWalk, ComputesAttentionInEveryOrder) {
  for (const Order order : kOrders) {
    for (const std::int64_t fast_memory : {110, 200, 333, 1024, 4000, 100000}) {
      expect_attention(order, {.seqlen = 37, .head_dim = 8, .fast_memory = fast_memory});
      expect_attention(order, {.seqlen = 64, .head_dim = 5, .fast_memory = fast_memory});
    }
    expect_attention(order, {.seqlen = 1, .head_dim = 3, .fast_memory = 64});
  }
}

TEST(IoWalk, ComputesBlockSparseAttention) {
  for (const std::int64_t fast_memory : {300, 2048, 6000, 20000}) {
    const Order order = Order::flash_attention_2;
    expect_attention(order, {.seqlen = 300, .head_dim = 8, .fast_memory = fast_memory, .mask = butterfly(300, 64)});
    expect_attention(order, {.seqlen = 256, .head_dim = 6, .fast_memory = fast_memory, .mask = local(256, 64, 1)});
  }
}

struct Count {
  std::int64_t outer, inner, loads, stores;
};

void expect_count(const Result<Walk>& walk, const Count& expected) {
  ASSERT_TRUE(walk.ok()) << walk.status().message();
  EXPECT_EQ(walk->outer, expected.outer);
  EXPECT_EQ(walk->inner, expected.inner);
  EXPECT_EQ(walk->traffic.loads, expected.loads);
  EXPECT_EQ(walk->traffic.stores, expected.stores);
}

// 8 positions of head_dim 2: a matrix has 16 elements, a vector 8, S has 64.
TEST(IoWalk, CountsTheForwardsOfEightPositions) {
  const IoProblem problem{.seqlen = 8, .head_dim = 2, .fast_memory = 32};
  bench::SlowMemory slow = make_slow_memory(problem, false);
  // One block of 8 queries in each product: Q, K and S; S and P; V, P and O.
  expect_count(walk_forward(Order::standard, problem, slow), {8, 1, 16 + 16 + 64 + 64 + 16, 64 + 64 + 16});
  // O, l and m are set to zero; two blocks of 4 keys, and Q, O, l, m for each of them.
  expect_count(walk_forward(Order::flash_attention, problem, slow), {4, 1, 32 + 2 * 48, 32 + 2 * 32});
  // Two blocks of 4 queries, and K and V for each of them; O and LSE once.
  expect_count(walk_forward(Order::flash_attention_2, problem, slow), {4, 1, 16 + 2 * 32, 16 + 8});
}

TEST(IoWalk, CountsTheBackwardsOfEightPositions) {
  const IoProblem problem{.seqlen = 8, .head_dim = 2, .fast_memory = 64};
  bench::SlowMemory slow = make_slow_memory(problem, false);
  // dV: dO, P. dP: dO, V. delta: O, dO. dS: P, dP, delta. dQ: dS, K. dK: dS, Q.
  expect_count(walk_backward(Order::standard, problem, slow),
               {8, 2, 80 + 32 + 32 + 136 + 80 + 80, 16 + 64 + 8 + 64 + 16 + 16});
  // Two blocks of 4 keys: K and V once, Q, O, dO, dQ, l and m for each block; dQ starts at zero.
  expect_count(walk_backward(Order::flash_attention, problem, slow), {4, 1, 32 + 2 * 80, 16 + 2 * 16 + 32});
  // delta first; then Q, dO, dQ, LSE and delta for each block.
  expect_count(walk_backward(Order::flash_attention_2, problem, slow), {4, 2, 32 + 32 + 2 * 64, 16 + 8 + 2 * 16 + 32});
}

TEST(IoWalk, SkipsHiddenBlocks) {
  const IoProblem diagonal{.seqlen = 8, .head_dim = 2, .fast_memory = 32, .mask = local(8, 2, 0)};
  bench::SlowMemory slow = make_slow_memory(diagonal, false);
  EXPECT_EQ(diagonal.mask.density(), 0.25);
  expect_count(walk_forward(Order::flash_attention_2, diagonal, slow), {4, 1, 16 + 32, 16 + 8});
}

TEST(IoWalk, MovesEverythingOnceWhenAllOfItFits) {
  const IoProblem problem{.seqlen = 32, .head_dim = 32, .fast_memory = 1 << 20};
  bench::SlowMemory slow = make_slow_memory(problem, false);
  EXPECT_EQ(walk_forward(Order::flash_attention_2, problem, slow)->traffic.elements(), 4 * 32 * 32 + 32);
}

TEST(IoWalk, RejectsAFastMemoryThatHoldsNoRow) {
  const IoProblem problem{.seqlen = 64, .head_dim = 64, .fast_memory = 258};
  bench::SlowMemory slow = make_slow_memory(problem, false);
  EXPECT_TRUE(walk_forward(Order::standard, problem, slow).ok());
  EXPECT_EQ(walk_forward(Order::flash_attention_2, problem, slow).status().message(),
            "the fast memory has 258 elements: with head_dim 64 it must have at least 259");
}

TEST(Tile, ThrowsWhenTheFastMemoryIsFull) {
  bench::FastMemory memory(10, true);
  const bench::Tile first(memory, 2, 3);
  EXPECT_THROW(bench::Tile(memory, 1, 5), std::length_error);
  EXPECT_EQ(memory.peak(), 6);
}

}  // namespace
}  // namespace strobe::test
