// SPDX-License-Identifier: Apache-2.0
// Latent rows on GPUs, 576 columns that are key and, but for the last 64, value: as whole rows, and by qv, as
// strobe.mla calls them. Row-invariant decodes have the bits of a prompt's chunk; graphs read their lengths when they
// are launched.
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "attention/cache_copy.h"
#include "attention/case_tensors.h"
#include "captured_graph.h"
#include "device_cache.h"
#include "device_case.h"
#include "gpu_test.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kLatent = 512;
constexpr std::int64_t kRope = 64;

void advance(ConstTensorView& view, std::int64_t elements) {
  view.data = static_cast<const std::byte*>(view.data) + elements * static_cast<std::int64_t>(size_of(view.dtype));
}

/// A call whose K has whole rows, with V as their first columns; where it has qv, Q and K have the last columns alone.
ForwardArguments latent(ForwardArguments rows) {
  const auto last = static_cast<std::size_t>(rows.k.rank - 1);
  rows.v = rows.k;
  rows.v.shape[last] = kLatent;
  if (!rows.qv.given()) return rows;
  advance(rows.k, kLatent);
  rows.k.shape[last] = rows.q.shape[3] = kRope;
  return rows;
}

/// The last query of some sequences of a call of several, with outputs of its own; `chunk` must outlive it.
class LastQueries {
 public:
  LastQueries(const ForwardArguments& chunk, std::int64_t first, std::int64_t count)
      : chunk_(chunk), first_(first), arguments_(chunk) {
    const std::int64_t last = chunk.q.shape[1] - 1;
    for (ConstTensorView* const view : {&arguments_.q, &arguments_.qv}) {
      if (!view->given()) continue;
      advance(*view, first * view->strides[0] + last * view->strides[1]);
      view->shape[0] = count;
      view->shape[1] = 1;
    }
    for (ConstTensorView* const view : {&arguments_.k, &arguments_.v, &arguments_.sequences.seqused_k}) {
      advance(*view, first * view->strides[0]);
      view->shape[0] = count;
    }
    const std::int64_t heads = chunk.o.shape[2];
    o_.assign(static_cast<std::size_t>(count * heads * kLatent) * size_of(chunk.o.dtype), std::byte{0xFF});
    lse_.assign(static_cast<std::size_t>(count * heads), 0.0F);
    arguments_.o.data = o_.data();
    arguments_.o.shape = {count, 1, heads, kLatent};
    arguments_.o.strides = {heads * kLatent, heads * kLatent, kLatent, 1};
    arguments_.lse = tensor(lse_.data(), {count, heads, 1});
  }

  const ForwardArguments& arguments() const { return arguments_; }

  void expect_the_bits_of_the_chunk() const {
    const std::int64_t heads = chunk_.o.shape[2];
    const std::int64_t last = chunk_.q.shape[1] - 1;
    const std::size_t bytes = kLatent * size_of(chunk_.o.dtype);
    for (std::int64_t row = 0; row < static_cast<std::int64_t>(lse_.size()); ++row) {
      const std::int64_t sequence = first_ + row / heads;
      const std::int64_t head = row % heads;
      ConstTensorView o = chunk_.o;
      advance(o, sequence * o.strides[0] + last * o.strides[1] + head * o.strides[2]);
      EXPECT_EQ(std::memcmp(o.data, o_.data() + static_cast<std::size_t>(row) * bytes, bytes), 0)
          << "o of sequence " << sequence << ", head " << head;
      ConstTensorView lse = chunk_.lse;
      advance(lse, sequence * lse.strides[0] + head * lse.strides[1] + last * lse.strides[2]);
      EXPECT_EQ(std::memcmp(lse.data, &lse_[static_cast<std::size_t>(row)], sizeof(float)), 0)
          << "lse of sequence " << sequence << ", head " << head;
      if (testing::Test::HasFailure()) return;
    }
  }

 private:
  const ForwardArguments& chunk_;
  std::int64_t first_;
  ForwardArguments arguments_;
  std::vector<std::byte> o_;
  std::vector<float> lse_;
};

class GpuLatentRows : public FamilyTest {
 protected:
  static AttentionCase latent_case(bool qv, std::int64_t queries, std::int64_t keys) {
    AttentionCase attention = plain_case(queries, kLatent + kRope, CausalMask::bottom_right);
    attention.batch = 3;
    attention.heads_q = 16;
    attention.heads_kv = 1;
    attention.head_dim_v = kLatent;
    attention.k.rows = keys;
    attention.has_qv = qv;
    attention.wants_lse = true;
    return attention;
  }

  /// Runs a call of whole rows as one of latent rows; its outputs are in host memory, and right where `checked`.
  void run(const ForwardArguments& rows, const AttentionOptions& options, bool checked = false) {
    const ForwardArguments host = latent(rows);
    DeviceCache call(host, device());
    call.share_rows();
    call.run(options, stream());
    if (checked && !HasFailure()) call.expect_matches(host, options);
    EXPECT_FALSE(HasFailure()) << call.explained();
  }

  /// The same call on pages has the same bits.
  void expect_the_same_in_pages(const ForwardArguments& rows, const AttentionOptions& options) {
    for (const std::int64_t page_size : {1, 16, 64}) {
      SCOPED_TRACE("pages of " + std::to_string(page_size));
      Random random(static_cast<std::uint64_t>(page_size));
      const CacheCopy pages(rows, CacheKind::pages, random, page_size);
      run(pages.arguments(), options);
      EXPECT_TRUE(pages.has_the_same_bits());
      if (HasFailure()) return;
    }
  }

  void expect_decodes_with_the_bits_of_a_chunk(bool qv);
  void expect_replays_with_new_lengths(bool qv, std::int64_t page_size);

 private:
  const TestedVariants variants_{number_from("STROBE_DEBUG_KERNELS", 0) != 0};
};

INSTANTIATE_TEST_SUITE_P(, GpuLatentRows, kFamilies, family_name);

void GpuLatentRows::expect_decodes_with_the_bits_of_a_chunk(bool qv) {
  AttentionCase attention = latent_case(qv, 5, 700);
  attention.options.row_invariant = true;
  attention.k.seqused = {700, 333, 64};
  const CaseTensors tensors(attention);
  const ForwardArguments chunk = tensors.forward_arguments();
  run(chunk, attention.options, true);
  expect_the_same_in_pages(chunk, attention.options);
  for (const auto& [first, count] : {std::pair{0, 3}, {0, 1}, {1, 1}, {2, 1}}) {
    SCOPED_TRACE(std::to_string(count) + " sequences from " + std::to_string(first));
    if (HasFailure()) return;
    const LastQueries decode(chunk, first, count);
    run(decode.arguments(), attention.options);
    decode.expect_the_bits_of_the_chunk();
    if (!HasFailure()) expect_the_same_in_pages(decode.arguments(), attention.options);
  }
}

TEST_P(GpuLatentRows, RowInvariantDecodesHaveTheBitsOfAChunk) { expect_decodes_with_the_bits_of_a_chunk(false); }

TEST_P(GpuLatentRows, RowInvariantDecodesByQueryValuesHaveTheBitsOfAChunk) {
  expect_decodes_with_the_bits_of_a_chunk(true);
}

/// Lengths of the longest, of few keys and of any number, which a captured call splits the keys by.
void GpuLatentRows::expect_replays_with_new_lengths(bool qv, std::int64_t page_size) {
  const AttentionCase attention = latent_case(qv, 1, 1500);
  SCOPED_TRACE(describe(attention) + ", pages of " + std::to_string(page_size));
  const CaseTensors tensors(attention);
  Random random(3);
  const CacheCopy pages(tensors.forward_arguments(), CacheKind::pages, random, page_size);
  ForwardArguments host = latent(pages.arguments());
  ASSERT_FALSE(host.sequences.leftpad_k.given());  // another seed would do
  std::vector<std::int32_t> lengths(3, 1500);
  host.sequences.seqused_k = tensor(lengths.data(), {3});
  DeviceCache call(host, device());
  call.share_rows();
  call.plan(attention.options);
  if (HasFailure()) return;
  EXPECT_NE(call.explained().find("split keys"), std::string::npos) << call.explained();
  call.enqueue(stream());
  const CapturedGraph graph(device(), stream(), [&] { call.enqueue(stream()); });
  for (int round = 0; round < 6 && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    for (std::int32_t& length : lengths) {
      length = static_cast<std::int32_t>(random.chance(0.3) ? random.integer(0, 3) : random.integer(0, 1500));
    }
    call.upload(host.sequences.seqused_k);
    call.poison_outputs();
    ASSERT_TRUE(graph.launch());
    call.download_outputs();
    call.expect_matches(host, attention.options);
  }
}

TEST_P(GpuLatentRows, ReplaysSplitTheKeysOfTheLengthsThatTheyRead) {
  for (const std::int64_t page_size : {64, 1}) {
    expect_replays_with_new_lengths(false, page_size);
    if (HasFailure()) return;
  }
}

TEST_P(GpuLatentRows, ReplaysByQueryValuesSplitTheKeysOfTheLengthsThatTheyRead) {
  expect_replays_with_new_lengths(true, 16);
}

}  // namespace
}  // namespace strobe::test
