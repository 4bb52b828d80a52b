// SPDX-License-Identifier: Apache-2.0
#include "simulated_server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "matches_reference.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kPages = 96, kMaxPages = 12, kMostSequences = 12;
constexpr std::int64_t kHeadsQ = 4, kHeadsKv = 2;
constexpr std::byte kUnused{0xFF};

template <class T>
void add_bytes(const T& value, std::vector<std::byte>& bytes) {
  const auto* const first = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof(T));
}

void expect_step_within(const ConstTensorView& actual, const reference::BoundedTensor& expected) {
  const reference::WorstElement worst = reference::worst_element(actual, expected);
  EXPECT_LE(worst.ratio, 1.0) << reference::describe(worst, actual);
}

}  // namespace

Numbers::Numbers(DType dtype, std::int64_t count)
    : dtype_(dtype), bytes_(static_cast<std::size_t>(count) * size_of(dtype), kUnused) {}

void Numbers::push_back(double value) {
  const auto number = static_cast<float>(value);
  switch (dtype_) {
    case DType::float16: return add_bytes(to_float16(number), bytes_);
    case DType::bfloat16: return add_bytes(to_bfloat16(number), bytes_);
    default: return add_bytes(number, bytes_);
  }
}

void Numbers::push_back(const Numbers& from, std::int64_t first, std::int64_t count) {
  const auto width = static_cast<std::int64_t>(size_of(dtype_));
  bytes_.insert(bytes_.end(), from.bytes_.begin() + first * width, from.bytes_.begin() + (first + count) * width);
}

void Numbers::copy(std::int64_t from, std::int64_t to, std::int64_t count) {
  const auto width = static_cast<std::int64_t>(size_of(dtype_));
  std::memmove(bytes_.data() + to * width, bytes_.data() + from * width, static_cast<std::size_t>(count * width));
}

void Numbers::poison(std::int64_t first, std::int64_t count) {
  const auto width = static_cast<std::int64_t>(size_of(dtype_));
  std::fill_n(bytes_.begin() + first * width, count * width, kUnused);
}

TensorView Numbers::view(std::initializer_list<std::int64_t> shape) {
  TensorView view{.data = bytes_.data(), .dtype = dtype_, .device = {}, .rank = static_cast<int>(shape.size())};
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    view.shape[axis] = shape.begin()[axis];
    view.strides[axis] = stride;
    stride *= view.shape[axis];
  }
  return view;
}

/// What a step's calls read, sequence by sequence.
struct SimulatedServer::Step {
  explicit Step(DType dtype)
      : q(dtype), k_new(dtype), v_new(dtype), k(dtype), v(dtype), o(dtype), lse(DType::float32) {}

  std::vector<std::int32_t> starts{0}, starts_k{0}, before, used, table;
  Numbers q, k_new, v_new;
  Numbers k, v;  // of all tokens, packed: for the reference
  Numbers o, lse;
};

SimulatedServer::SimulatedServer(const ServerShape& shape, std::uint64_t seed)
    : shape_(shape),
      key_row_(kHeadsKv * shape.head_dim),
      most_tokens_(kMaxPages * shape.page_size),
      random_(seed),
      users_(kPages, 0),
      k_(shape.dtype, kPages * shape.page_size * key_row_),
      v_(k_) {}

void SimulatedServer::run_steps(int steps) {
  for (int i = 0; i < steps; ++i) {
    step();
    ASSERT_FALSE(testing::Test::HasFailure()) << "in step " << i;
  }
  EXPECT_GT(evictions_, steps / 20);
  EXPECT_GT(forks_, steps / 20);
}

void SimulatedServer::step() {
  if (served_.empty() || random_.chance(0.3)) served_.push_back({{}, Numbers(shape_.dtype), Numbers(shape_.dtype)});
  if (random_.chance(0.15)) fork(random_.integer(0, last()));
  while (last() >= kMostSequences || random_.chance(0.15)) {
    evict(random_.integer(0, last()));
    if (served_.empty()) return;
  }
  attend();
}

void SimulatedServer::fork(std::int64_t index) {
  const Served copy = served_[static_cast<std::size_t>(index)];
  for (const std::int32_t page : copy.pages) ++users_[static_cast<std::size_t>(page)];
  served_.push_back(copy);
  ++forks_;
}

void SimulatedServer::evict(std::int64_t index) {
  for (const std::int32_t page : served_[static_cast<std::size_t>(index)].pages) release(page);
  served_.erase(served_.begin() + index);
  ++evictions_;
}

void SimulatedServer::release(std::int32_t page) {
  if (--users_[static_cast<std::size_t>(page)] > 0) return;
  const std::int64_t elements = shape_.page_size * key_row_;
  for (Numbers* const pool : {&k_, &v_}) pool->poison(page * elements, elements);
}

/// A page of nobody's; -1 where there is none.
std::int32_t SimulatedServer::free_page() {
  const auto first = static_cast<std::size_t>(random_.integer(0, kPages - 1));
  for (std::size_t i = 0; i < users_.size(); ++i) {
    const std::size_t page = (first + i) % users_.size();
    if (users_[page] > 0) continue;
    users_[page] = 1;
    return static_cast<std::int32_t>(page);
  }
  return -1;
}

/// Makes room for up to `count` more tokens, draws them, and returns how many fit. A page that others share is copied
/// first.
std::int64_t SimulatedServer::grow(Served& one, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = tokens(one);
    if (row == most_tokens_) return i;
    if (row % shape_.page_size == 0) {
      const std::int32_t page = free_page();
      if (page < 0) return i;
      one.pages.push_back(page);
    } else if (users_[static_cast<std::size_t>(one.pages.back())] > 1) {
      const std::int32_t page = free_page();
      if (page < 0) return i;
      const std::int64_t elements = shape_.page_size * key_row_;
      for (Numbers* const pool : {&k_, &v_}) {
        pool->copy(one.pages.back() * elements, page * elements, row % shape_.page_size * key_row_);
      }
      release(one.pages.back());
      one.pages.back() = page;
    }
    for (std::int64_t c = 0; c < key_row_; ++c) {
      one.k.push_back(random_.normal());
      one.v.push_back(random_.normal());
    }
  }
  return count;
}

/// New tokens for some sequences, and their attention in one call.
void SimulatedServer::attend() {
  Step step(shape_.dtype);
  for (Served& one : served_) {
    const std::int64_t before = tokens(one);
    if (before > 0 && random_.chance(0.4)) continue;
    const std::int64_t count = grow(one, before == 0 || random_.chance(0.2) ? random_.integer(1, 20) : 1);
    step.starts.push_back(step.starts.back() + static_cast<std::int32_t>(count));
    step.starts_k.push_back(step.starts_k.back() + static_cast<std::int32_t>(tokens(one)));
    step.before.push_back(static_cast<std::int32_t>(before));
    step.used.push_back(static_cast<std::int32_t>(tokens(one)));
    step.table.insert(step.table.end(), one.pages.begin(), one.pages.end());
    step.table.resize(step.used.size() * kMaxPages, static_cast<std::int32_t>(random_.integer(-5, 2 * kPages)));
    step.k_new.push_back(one.k, before * key_row_, count * key_row_);
    step.v_new.push_back(one.v, before * key_row_, count * key_row_);
    step.k.push_back(one.k, 0, one.k.size());
    step.v.push_back(one.v, 0, one.v.size());
  }
  const auto batch = static_cast<std::int64_t>(step.used.size());
  const std::int64_t total = step.starts.back();
  for (std::int64_t i = 0; i < total * kHeadsQ * shape_.head_dim; ++i) step.q.push_back(random_.normal());
  step.o = Numbers(shape_.dtype, step.q.size());
  step.lse = Numbers(DType::float32, total * kHeadsQ);

  ServerCall call;
  ForwardArguments& forward = call.forward;
  forward.q = step.q.view({total, kHeadsQ, shape_.head_dim});
  forward.k = k_.view({kPages, shape_.page_size, kHeadsKv, shape_.head_dim});
  forward.v = v_.view({kPages, shape_.page_size, kHeadsKv, shape_.head_dim});
  forward.o = step.o.view({total, kHeadsQ, shape_.head_dim});
  forward.lse = step.lse.view({kHeadsQ, total});
  forward.sequences.cu_seqlens_q = tensor(step.starts.data(), {batch + 1});
  forward.sequences.seqused_k = tensor(step.used.data(), {batch});
  forward.page_table = tensor(step.table.data(), {batch, kMaxPages});
  AppendArguments& append = call.append;
  append.k_cache = k_.view({kPages, shape_.page_size, kHeadsKv, shape_.head_dim});
  append.v_cache = v_.view({kPages, shape_.page_size, kHeadsKv, shape_.head_dim});
  append.k_new = step.k_new.view({total, kHeadsKv, shape_.head_dim});
  append.v_new = step.v_new.view({total, kHeadsKv, shape_.head_dim});
  append.cu_seqlens_new = forward.sequences.cu_seqlens_q;
  append.cache_seqlens = tensor(step.before.data(), {batch});
  append.page_table = forward.page_table;
  call.options = {.causal = CausalMask::bottom_right,
                  .window = {.left = random_.chance(0.3) ? random_.integer(0, 30) : -1}};
  const reference::ArithmeticModel model = run(call);
  if (!testing::Test::HasFailure()) expect_matches(step, call, model);
}

void SimulatedServer::expect_matches(Step& step, const ServerCall& call,
                                     const reference::ArithmeticModel& model) const {
  const std::int64_t tokens = step.starts_k.back();
  ForwardArguments packed = call.forward;
  packed.k = step.k.view({tokens, kHeadsKv, shape_.head_dim});
  packed.v = step.v.view({tokens, kHeadsKv, shape_.head_dim});
  packed.page_table = {};
  packed.sequences.seqused_k = {};
  packed.sequences.cu_seqlens_k = tensor(step.starts_k.data(), {static_cast<std::int64_t>(step.starts_k.size())});
  const reference::ForwardResult expected = reference::forward(packed, call.options, model, 1);
  expect_step_within(call.forward.o, expected.o);
  expect_step_within(call.forward.lse, expected.lse);
}

}  // namespace strobe::test
