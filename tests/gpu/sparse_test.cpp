// SPDX-License-Identifier: Apache-2.0
// strobe::sparse_forward on a GPU against float64: each source's part within its bound, and what merging adds.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attention/seeds.h"
#include "checked_process.h"
#include "device_copies.h"
#include "gpu_test.h"
#include "sparse/sparse_case.h"
#include "sparse_parts.h"
#include "tested_engine.h"

namespace strobe::test {
namespace {

class GpuSparse : public FamilyTest {
 protected:
  void run(SparseCase& one, std::uint64_t seed) {
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe(one.shape));
    const TestedVariants variants(number_from("STROBE_DEBUG_KERNELS", 0) != 0);
    DeviceCopies copies(device());
    const SparseForwardArguments arguments =
        one.placed([&](const GuardedTensor& tensor) { return copies.place(tensor); });
    const auto enqueue = [&] {
      const Status status = sparse_forward(arguments, one.shape.options, tested_execution(stream().get()));
      ASSERT_TRUE(status.ok()) << status.message();
      copies.download({&one.o, &one.lse});
    };
    enqueue();
    if (HasFatalFailure()) return;
    SparseParts(one, reference::arithmetic_of(tested_kernels(), one.shape.dtype)).expect(one.o, one.lse);
    EXPECT_TRUE(one.o.guards_intact());
    EXPECT_TRUE(one.lse.guards_intact());
    const std::vector<std::byte> first = one.o.element_bytes();
    enqueue();
    EXPECT_EQ(one.o.element_bytes(), first) << "another run gave other bits";
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuSparse, kFamilies, family_name);

TEST_P(GpuSparse, RandomCallsMatchReference) {
  for (const std::uint64_t seed : chosen_seeds(60)) {
    SparseShape shape = random_gpu_shape(seed);
    SparseCase one(shape, seed);
    run(one, seed);
    if (HasFailure()) return;
  }
}

/// Rows of latent attention and their like, which are key and value in one or apart.
TEST_P(GpuSparse, RandomCallsOfWideHeadsMatchReference) {
  for (const std::uint64_t seed : chosen_seeds(40)) {
    SparseShape shape = random_gpu_shape(seed, true);
    SparseCase one(shape, seed);
    run(one, seed);
    if (HasFailure()) return;
  }
}

/// Plans are kept: of calls whose keys alone lie otherwise, too.
TEST_P(GpuSparse, KeysMayLieOtherwiseInTheNextCall) {
  for (const KeyLayout layout : {KeyLayout::batched, KeyLayout::pages, KeyLayout::pool, KeyLayout::batched}) {
    SparseShape shape;
    shape.dtype = DType::float16;
    shape.head_dim = shape.head_dim_v = 64;
    shape.contiguous = true;
    shape.sources[0].dtype = shape.dtype;
    shape.sources[0].layout = layout;
    SparseCase one(shape, 11);
    run(one, 11);
    if (HasFailure()) return;
  }
}

/// Numbers out of range name nothing: those of a list, of a page table and of a length.
TEST_P(GpuSparse, NumbersOutOfRangeNameNothing) {
  SparseShape shape;
  shape.dtype = DType::bfloat16;
  shape.head_dim = shape.head_dim_v = 64;
  shape.contiguous = true;
  shape.sources[0].dtype = shape.dtype;
  shape.sources[0].layout = KeyLayout::pages;
  shape.sources[0].lengths = true;
  SparseCase one(shape, 7);
  SparseCase wrong(shape, 7);
  GuardedTensor& names = wrong.tensors[0]->indices;
  for (std::int64_t i = 0; i < names.size(); ++i) {
    if (names.get(i) == -1) names.set(i, i % 2 == 0 ? -2'000'000'000 : 2'000'000'000);
  }
  run(one, 7);
  DeviceCopies copies(device());
  const SparseForwardArguments arguments =
      wrong.placed([&](const GuardedTensor& tensor) { return copies.place(tensor); });
  const Status status = sparse_forward(arguments, shape.options, tested_execution(stream().get()));
  ASSERT_TRUE(status.ok()) << status.message();
  copies.download({&wrong.o, &wrong.lse});
  EXPECT_EQ(wrong.o.element_bytes(), one.o.element_bytes());
}

/// Of a process that checks them, a number out of range is an error; nothing is written, and the next call is right.
TEST_P(GpuSparse, NumbersOutOfRangeAreErrorsWhereTheyAreChecked) {
  expect_passes_checked([&] {
    SparseShape shape;
    shape.dtype = DType::bfloat16;
    shape.head_dim = shape.head_dim_v = 64;
    shape.contiguous = true;
    shape.sources[0].dtype = shape.dtype;
    SparseCase one(shape, 7);
    GuardedTensor& names = one.tensors[0]->indices;
    const double name = names.get(0);
    names.set(0, 1000);
    DeviceCopies copies(device());
    const SparseForwardArguments arguments =
        one.placed([&](const GuardedTensor& tensor) { return copies.place(tensor); });
    const Status status = sparse_forward(arguments, shape.options, tested_execution(stream().get()));
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_TRUE(
        status.message().starts_with("sources[0].indices names 1000 at place 0 of query 0, head 0 of sequence "
                                     "0: it must be -1 or less than "))
        << status.message();
    copies.download({&one.o, &one.lse});
    EXPECT_TRUE(one.o.untouched());
    EXPECT_TRUE(one.lse.untouched());
    names.set(0, name);
    run(one, 7);
  });
}

}  // namespace
}  // namespace strobe::test
