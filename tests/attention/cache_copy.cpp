// SPDX-License-Identifier: Apache-2.0
#include "cache_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>

#include "call/arithmetic.h"
#include "reference/bound/arithmetic.h"
#include "reference/bound/reference.h"
#include "reference/tensors.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

// NaN in every floating-point dtype.
constexpr std::byte kUnusedByte{0xFF};

std::vector<std::int32_t> shuffled(std::int64_t count, Random& random) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  for (std::int64_t i = count - 1; i > 0; --i) std::swap(numbers[i], numbers[random.integer(0, i)]);
  return numbers;
}

std::int64_t random_divisor(std::int64_t number, Random& random) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) divisors.push_back(divisor);
  }
  return divisors.empty() ? 1 : divisors[random.integer(0, static_cast<std::int64_t>(divisors.size()) - 1)];
}

std::vector<std::byte> element_bytes(const ConstTensorView& view) {
  const std::int64_t columns = view.shape[view.rank - 1];
  const auto bytes = static_cast<std::int64_t>(size_of(view.dtype));
  std::vector<std::byte> result;
  for (std::int64_t row = 0; row * columns < reference::element_count(view); ++row) {
    std::int64_t offset = 0;
    std::int64_t rest = row;
    for (int axis = view.rank - 2; axis >= 0; --axis) {
      offset += rest % view.shape[axis] * view.strides[axis];
      rest /= view.shape[axis];
    }
    const auto* data = static_cast<const std::byte*>(view.data) + offset * bytes;
    result.insert(result.end(), data, data + columns * bytes);
  }
  return result;
}

/// What a plan says of the order in which it sums over keys.
std::string order_of_sums(const Plan& plan) {
  const std::string text = plan.explain();
  std::istringstream lines(text);
  std::string order;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("pages ") && !line.starts_with("workspace ")) order += line + '\n';
  }
  return order;
}

void expect_within(const ConstTensorView& actual, const reference::BoundedTensor& expected) {
  const reference::WorstElement worst = reference::worst_element(actual, expected);
  EXPECT_LE(worst.ratio, 1.0) << reference::describe(worst, actual);
}

}  // namespace

CacheCopy::CacheCopy(const ForwardArguments& from, CacheKind kind, Random& random, std::int64_t page_size)
    : from_(from), arguments_(from) {
  for (const reference::SequenceRows& rows : reference::sequence_rows(from.q, from.k, from.sequences)) {
    first_key_.push_back(rows.first_k);
    length_.push_back(rows.seqlen_k);
  }
  batch_ = static_cast<std::int64_t>(length_.size());
  const bool packed = from.sequences.cu_seqlens_k.given();
  choose_places(kind, random, page_size);
  arguments_.k = copy(from.k, packed, random.chance(0.5), k_);
  arguments_.v = copy(from.v, packed, random.chance(0.5), v_);
  arguments_.o = output_like(from.o, o_);
  arguments_.lse = output_like(from.lse, lse_);
  arguments_.max_logits = output_like(from.max_logits, max_logits_);
  Sequences& sequences = arguments_.sequences;
  sequences.cu_seqlens_k = {};
  sequences.max_seqlen_k = -1;
  if (!leftpad_.empty()) sequences.leftpad_k = tensor(leftpad_.data(), {batch_});
  sequences.seqused_k = tensor(used_.data(), {batch_});
  if (kind == CacheKind::pages) {
    arguments_.page_table = tensor(table_.data(), {batch_, max_pages_});
  } else {
    sequences.cache_batch_idx = tensor(entry_of_.data(), {batch_});
  }
}

void CacheCopy::choose_places(CacheKind kind, Random& random, std::int64_t page_size) {
  const Sequences& sequences = from_.sequences;
  const bool packed = sequences.cu_seqlens_k.given();
  rows_ = from_.k.shape[packed ? 0 : 1];
  if (packed && sequences.max_seqlen_k >= 0) rows_ = std::min(rows_, sequences.max_seqlen_k);
  // Bias and block masks have seqlen_k's extent.
  const bool same_seqlen = from_.modifiers.bias.given() || from_.modifiers.block_mask.given();
  if (!same_seqlen) rows_ += random.integer(0, 20);
  size_ = rows_;
  if (kind == CacheKind::pages) {
    size_ = same_seqlen ? random_divisor(rows_, random)
                        : random.one_of<std::int64_t>({1, random.integer(1, 40), 16, 64, random.integer(1, 200)});
    if (page_size != 0) size_ = page_size;
    max_pages_ = ceil_div(rows_, size_);
    rows_ = max_pages_ * size_;
  }
  const bool padded = random.chance(0.5);
  for (std::int64_t b = 0; b < batch_; ++b) {
    const std::int64_t padding = padded ? random.integer(0, rows_ - length_[b]) : 0;
    if (padded) leftpad_.push_back(static_cast<std::int32_t>(padding));
    used_.push_back(static_cast<std::int32_t>(padding + length_[b]));
  }
  if (kind == CacheKind::entries) {
    count_ = batch_ + random.integer(0, 2);
    entry_of_ = shuffled(count_, random);
    return;
  }
  const std::int64_t free_pages = random.integer(1, 5);
  count_ = batch_ * max_pages_ + free_pages;
  table_ = shuffled(count_, random);
  for (std::int64_t b = 0; b < batch_; ++b) {
    for (std::int64_t entry = ceil_div<std::int64_t>(used_[b], size_); entry < max_pages_; ++entry) {
      table_[b * max_pages_ + entry] =
          random.one_of({-1, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()});
    }
  }
}

CacheCopy::Place CacheCopy::place(std::int64_t b, std::int64_t row) const {
  if (max_pages_ == 0) return {entry_of_[b], row};
  return {table_[b * max_pages_ + row / size_], row % size_};
}

ConstTensorView CacheCopy::copy(const ConstTensorView& rows, bool packed, bool heads_first,
                                std::vector<std::byte>& bytes) const {
  const std::int64_t heads = reference::heads_of(rows);
  const std::int64_t columns = reference::head_dim_of(rows);
  const auto element = static_cast<std::int64_t>(size_of(rows.dtype));
  ConstTensorView view = rows;
  view.rank = 4;
  view.shape = {count_, size_, heads, columns};
  view.strides = {size_ * heads * columns, heads_first ? columns : heads * columns,
                  heads_first ? size_ * columns : columns, 1};
  bytes.assign(static_cast<std::size_t>(count_ * view.strides[0] * element), kUnusedByte);
  view.data = bytes.data();
  const int row_axis = packed ? 0 : 1;
  for (std::int64_t b = 0; b < batch_; ++b) {
    for (std::int64_t key = 0; key < length_[b]; ++key) {
      const Place to = place(b, key + (leftpad_.empty() ? 0 : leftpad_[b]));
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t from = (packed ? first_key_[b] * rows.strides[0] : b * rows.strides[0]) +
                                  key * rows.strides[row_axis] + head * rows.strides[row_axis + 1];
        const std::int64_t at = to.entry * view.strides[0] + to.row * view.strides[1] + head * view.strides[2];
        std::memcpy(bytes.data() + at * element, static_cast<const std::byte*>(rows.data) + from * element,
                    static_cast<std::size_t>(columns * element));
      }
    }
  }
  return view;
}

TensorView CacheCopy::output_like(const TensorView& from, std::vector<std::byte>& bytes) const {
  if (!from.given()) return {};
  TensorView view = from;
  std::int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.strides[axis] = stride;
    stride *= view.shape[axis];
  }
  bytes.assign(static_cast<std::size_t>(stride) * size_of(from.dtype), kUnusedByte);
  view.data = bytes.data();
  return view;
}

bool CacheCopy::has_the_same_bits() const {
  const auto same = [](const TensorView& a, const TensorView& b) {
    return !b.given() || element_bytes(a) == element_bytes(b);
  };
  return same(arguments_.o, from_.o) && same(arguments_.lse, from_.lse) &&
         same(arguments_.max_logits, from_.max_logits);
}

bool CacheCopy::expect_the_same_results(const AttentionOptions& options, const Execution& execution) const {
  const Result<Plan> plan = make_plan(arguments_, options, execution);
  const Result<Plan> contiguous = make_plan(from_, options, execution);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_TRUE(contiguous.ok()) << contiguous.status().message();
  if (!plan.ok() || !contiguous.ok()) return false;
  const Status status = plan->run(arguments_, execution);
  EXPECT_TRUE(status.ok()) << status.message();
  if (order_of_sums(*plan) != order_of_sums(*contiguous)) {
    const reference::ForwardResult expected =
        reference::forward(arguments_, options, reference::arithmetic_of(*plan), 1);
    expect_within(arguments_.o, expected.o);
    if (from_.lse.given()) expect_within(arguments_.lse, expected.lse);
    if (from_.max_logits.given()) expect_within(arguments_.max_logits, expected.max_logits);
    return false;
  }
  EXPECT_EQ(element_bytes(arguments_.o), element_bytes(from_.o)) << "o";
  if (from_.lse.given()) {
    EXPECT_EQ(element_bytes(arguments_.lse), element_bytes(from_.lse)) << "lse";
  }
  if (from_.max_logits.given()) {
    EXPECT_EQ(element_bytes(arguments_.max_logits), element_bytes(from_.max_logits)) << "max_logits";
  }
  return true;
}

}  // namespace strobe::test
