// SPDX-License-Identifier: Apache-2.0
// strobe::sparse_forward on a GPU over rows in formats and of other dtypes than q: attention over what decode_rows()
// makes of them in q's dtype, within the bounds that it has over such rows.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "attention/seeds.h"
#include "call/row_format.h"
#include "captured_graph.h"
#include "device_copies.h"
#include "gpu_test.h"
#include "sparse/sparse_case.h"
#include "sparse_parts.h"
#include "tested_engine.h"

namespace strobe::test {
namespace {

/// The rows of a source's k or v in q's dtype.
class RoundedRows {
 public:
  RoundedRows(const ConstTensorView& rows, const RowFormat& given, DType dtype) : view_(rows) {
    if (!rows.given() || (!given.given() && rows.dtype == dtype)) return;
    const auto last = static_cast<std::size_t>(rows.rank - 1);
    const RowFormat format = given.given() ? given : plain_rows(rows.dtype, rows.shape[last]);
    const bool packed = rows.rank == 3;
    const std::int64_t pages = packed ? 1 : rows.shape[0];
    const std::size_t at = packed ? 0 : 1;
    ConstTensorView cache = rows;
    cache.dtype = DType::uint8;
    cache.rank = 4;
    cache.shape = {pages, rows.shape[at], rows.shape[at + 1], format.row_bytes};
    const auto size = static_cast<std::int64_t>(size_of(rows.dtype));
    const std::int64_t page_stride = packed ? rows.shape[0] * rows.strides[0] : rows.strides[0];
    cache.strides = {size * page_stride, size * rows.strides[at], size * rows.strides[at + 1], 1};
    const std::int64_t columns = format.columns();
    bytes_.resize(static_cast<std::size_t>(pages * rows.shape[at] * rows.shape[at + 1] * columns) * size_of(dtype));
    TensorView to = tensor(static_cast<float*>(nullptr), {pages, rows.shape[at], rows.shape[at + 1], columns});
    to.dtype = dtype;
    to.data = bytes_.data();
    const Status status = decode_rows(cache, to, format);
    EXPECT_TRUE(status.ok()) << status.message();
    view_ = to;
    if (packed) {
      view_.rank = 3;
      view_.shape = {to.shape[1], to.shape[2], to.shape[3]};
      view_.strides = {to.strides[1], to.strides[2], 1};
    }
  }

  const ConstTensorView& view() const { return view_; }

 private:
  std::vector<std::byte> bytes_;
  ConstTensorView view_;
};

/// The sources of a case as GPUs read them.
struct RoundedSources {
  explicit RoundedSources(const SparseCase& one) : sources(one.arguments().sources) {
    for (SparseSource& source : sources) {
      rows.push_back(std::make_unique<RoundedRows>(source.k, source.k_format, one.shape.dtype));
      source.k = rows.back()->view();
      rows.push_back(std::make_unique<RoundedRows>(source.v, source.v_format, one.shape.dtype));
      source.v = rows.back()->view();
      source.k_format = source.v_format = {};
    }
  }

  std::vector<std::unique_ptr<RoundedRows>> rows;
  std::array<SparseSource, kMaxSparseSources> sources;
};

class GpuSparseFormats : public FamilyTest {
 protected:
  struct Place {
    DeviceCopies& copies;
    TensorView operator()(const GuardedTensor& tensor) const { return copies.place(tensor); }
    ConstTensorView operator()(const ConstTensorView& view, const std::vector<std::uint8_t>& bytes) const {
      return copies.place(view, bytes);
    }
  };

  void expect(SparseCase& one) const {
    SparseParts(one, RoundedSources(one).sources, reference::arithmetic_of(tested_kernels(), one.shape.dtype))
        .expect(one.o, one.lse);
    EXPECT_TRUE(one.o.guards_intact());
    EXPECT_TRUE(one.lse.guards_intact());
  }

  std::string explanation(SparseCase& one) {
    DeviceCopies copies(device());
    const Result<std::string> text =
        explain_sparse_forward(one.placed(Place{copies}), one.shape.options, tested_execution(stream().get()));
    EXPECT_TRUE(text.ok()) << text.status().message();
    return text.ok() ? *text : "";
  }

  void run(SparseCase& one, std::uint64_t seed) {
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe(one.shape));
    const TestedVariants variants(number_from("STROBE_DEBUG_KERNELS", 0) != 0);
    DeviceCopies copies(device());
    const SparseForwardArguments arguments = one.placed(Place{copies});
    const auto enqueue = [&] {
      const Status status = sparse_forward(arguments, one.shape.options, tested_execution(stream().get()));
      ASSERT_TRUE(status.ok()) << status.message();
      copies.download({&one.o, &one.lse});
    };
    enqueue();
    if (HasFatalFailure()) return;
    expect(one);
    const std::vector<std::byte> first = one.o.element_bytes();
    enqueue();
    EXPECT_EQ(one.o.element_bytes(), first) << "another run gave other bits";
  }

  void expect_lists_of_the_launch(const SparseShape& shape);
};

INSTANTIATE_TEST_SUITE_P(, GpuSparseFormats, kFamilies, family_name);

TEST_P(GpuSparseFormats, RandomCallsMatchReference) {
  for (const std::uint64_t seed : chosen_seeds(60)) {
    SparseCase one(random_gpu_format_shape(seed), seed);
    run(one, seed);
    if (HasFailure()) return;
  }
}

TEST_P(GpuSparseFormats, RandomCallsOfWideHeadsMatchReference) {
  for (const std::uint64_t seed : chosen_seeds(40)) {
    SparseCase one(random_gpu_format_shape(seed, true), seed);
    run(one, seed);
    if (HasFailure()) return;
  }
}

/// Lists of rows of a model, which producers convert on Hopper: for one tile of heads, and for two, which a pair of
/// CTAs has.
SparseShape listed_rows_shape(const RowFormat& format, std::int64_t heads, std::int64_t topk) {
  SparseShape shape;
  shape.dtype = DType::bfloat16;
  shape.head_dim = format.columns();
  shape.head_dim_v = format.head_dim_v;
  shape.group = heads;
  shape.contiguous = true;
  shape.sources = {SourceShape{.layout = KeyLayout::pages,
                               .k_format = format,
                               .v_apart = false,
                               .topk = topk,
                               .page_size = 64,
                               .max_keys = topk * 6 / 5,
                               .lengths = true}};
  return shape;
}

/// Each ready-made format of a model, in pages, with many heads, as it is decoded; on Hopper by producers.
TEST_P(GpuSparseFormats, RowsOfModelsMatchReference) {
  for (const RowFormat& format : {mla_bfloat16_rows(), deepseek_v32_rows(), deepseek_v4_rows(), deepseek_v41_rows(),
                                  deepseek_v41_four_bit_rows()}) {
    SparseShape shape = listed_rows_shape(format, 16, 200);
    shape.sink = true;
    SparseCase one(shape, 3);
    run(one, 3);
    if (HasFailure()) return;
    const bool in_place =
        explanation(one).find("converted to bfloat16 as the forward reads them\n") != std::string::npos;
    EXPECT_EQ(in_place, tested_family() == Family::sm90);
  }
}

/// Tiles that follow one another in a CTA, lists of several blocks, and lists that name nothing.
TEST_P(GpuSparseFormats, ManyQueriesOfRowsOfModelsMatchReference) {
  for (const RowFormat& format : {deepseek_v32_rows(), deepseek_v4_rows()}) {
    for (const std::int64_t heads : {64, 128}) {
      SparseShape shape = listed_rows_shape(format, heads, 70);
      shape.dtype = DType::float16;
      shape.batch = 1;
      shape.max_queries = 140;  // more than multiprocessors
      shape.sources[0].layout = KeyLayout::pool;
      shape.sources[0].page_size = 16;
      SparseCase one(shape, 17);
      run(one, 17);
      if (HasFailure()) return;
      if (tested_family() == Family::sm90) {
        const std::string plan = explanation(one);
        EXPECT_NE(plan.find("as the forward reads them\n"), std::string::npos) << plan;
        EXPECT_EQ(plan.find("pairs ") != std::string::npos, heads == 128) << plan;
      }
    }
  }
}

/// Lists of few queries are shared out among CTAs.
TEST_P(GpuSparseFormats, LongListsOfRowsOfModelsMatchReference) {
  for (const RowFormat& format : {deepseek_v32_rows(), deepseek_v41_rows()}) {
    for (const std::int64_t heads : {64, 128}) {
      SparseShape shape = listed_rows_shape(format, heads, 1500);
      shape.batch = 2;
      shape.max_queries = 1;
      SparseCase one(shape, 19);
      run(one, 19);
      if (HasFailure()) return;
      if (tested_family() == Family::sm90) {
        EXPECT_NE(explanation(one).find("split keys "), std::string::npos) << explanation(one);
      }
    }
  }
}

/// A plan reads no row: the cache is described alone.
TEST_P(GpuSparseFormats, TailsFarBehindTheirRowsAreConvertedBefore) {
  SparseCase one(listed_rows_shape(deepseek_v4_rows(), 16, 200), 3);
  DeviceCopies copies(device());
  SparseForwardArguments arguments = one.placed(Place{copies});
  ConstTensorView& cache = arguments.sources[0].k;
  cache.shape[1] = std::int64_t{4} << 20;  // rows of a page
  cache.strides[0] = cache.shape[1] * cache.shape[3];
  const Result<std::string> text =
      explain_sparse_forward(arguments, one.shape.options, tested_execution(stream().get()));
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_NE(text->find("in the workspace first: a page's tails lie 2 GiB or more behind its rows"), std::string::npos)
      << *text;
}

/// Plans are kept: a cache whose V is part of K has another place in the workspace than one whose V is apart.
TEST_P(GpuSparseFormats, ValuesMayLieApartInTheNextCall) {
  for (const bool apart : {false, true, false}) {
    SparseShape shape;
    shape.dtype = DType::float16;
    shape.head_dim = shape.head_dim_v = 64;
    shape.contiguous = true;
    shape.sources[0].v_apart = apart;
    shape.sources[0].k_format = eight_bit_rows(RowElement::int8, 64);
    if (apart) {
      shape.sources[0].v_format = eight_bit_rows(RowElement::float8_e4m3, 64);
    } else {
      shape.sources[0].k_format.head_dim_v = 64;
    }
    SparseCase one(shape, 11);
    run(one, 11);
    if (HasFailure()) return;
  }
}

/// A captured call reads the rows that its lists name when it is launched.
void GpuSparseFormats::expect_lists_of_the_launch(const SparseShape& shape) {
  SparseCase one(shape, 21);
  SCOPED_TRACE(describe(shape));
  DeviceCopies copies(device());
  const SparseForwardArguments arguments = one.placed(Place{copies});
  const auto enqueue = [&] {
    const Status status = sparse_forward(arguments, shape.options, tested_execution(stream().get()));
    ASSERT_TRUE(status.ok()) << status.message();
  };
  enqueue();
  copies.download({&one.o, &one.lse});
  expect(one);
  const CapturedGraph graph(device(), stream(), enqueue);
  GuardedTensor& names = one.tensors[0]->indices;
  for (std::int64_t i = 0; i < names.size(); i += 2) names.set(i, -1);
  copies.upload(names);
  one.o.poison();
  copies.upload(one.o);
  ASSERT_TRUE(graph.launch());
  copies.download({&one.o, &one.lse});
  expect(one);
}

TEST_P(GpuSparseFormats, CapturedCallsReadTheListsOfTheirLaunch) {
  SparseShape shape;
  shape.dtype = DType::bfloat16;
  shape.head_dim = shape.head_dim_v = 128;
  shape.contiguous = true;
  shape.sources[0].layout = KeyLayout::pages;
  shape.sources[0].v_apart = false;
  shape.sources[0].k_format = eight_bit_rows(RowElement::float8_e4m3, 128);
  shape.sources[0].k_format.head_dim_v = 128;
  expect_lists_of_the_launch(shape);
}

/// Of 576 columns: on Hopper producers read the lists.
TEST_P(GpuSparseFormats, CapturedCallsOfLatentRowsReadTheListsOfTheirLaunch) {
  for (const RowFormat& format : {mla_bfloat16_rows(), deepseek_v32_rows()}) {
    expect_lists_of_the_launch(listed_rows_shape(format, 16, 200));
    if (HasFailure()) return;
  }
}

TEST_P(GpuSparseFormats, FormatsThatItLacksAreSaidAndNothingIsWritten) {
  const auto expect_said = [&](const RowFormat& format, const char* message) {
    SparseShape shape;
    shape.dtype = DType::bfloat16;
    shape.head_dim = shape.head_dim_v = format.columns();
    shape.contiguous = true;
    shape.sources[0].v_apart = false;
    shape.sources[0].k_format = format;
    SparseCase one(shape, 5);
    DeviceCopies copies(device());
    const Status status = sparse_forward(one.placed(Place{copies}), shape.options, tested_execution(stream().get()));
    EXPECT_EQ(status.code(), StatusCode::unsupported);
    EXPECT_EQ(status.message(), message);
    EXPECT_TRUE(one.o.untouched());
  };
  RowFormat format = eight_bit_rows(RowElement::int8, 36);
  format.head_dim_v = 36;
  expect_said(format,
              "sources[0].k_format.parts[0] has 36 columns: the gpu engine takes multiples of 8; the cpu engine takes "
              "any");
  format = eight_bit_rows(RowElement::int8, 40);
  format.head_dim_v = 40;
  format.parts[0].scale_columns = 20;
  format.row_bytes = 48;
  expect_said(format,
              "sources[0].k_format.parts[0] has scales of 20 columns: the gpu engine takes multiples of 8; the cpu "
              "engine takes any");
}

}  // namespace
}  // namespace strobe::test
