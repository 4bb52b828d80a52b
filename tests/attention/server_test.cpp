// SPDX-License-Identifier: Apache-2.0
// A simulated server: sequences come, grow, fork and are evicted while their pages are shared and used again, and every
// step is one call that mixes prompts, chunks of them and single tokens. STROBE_SERVER_STEPS: how many steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "matches_reference.h"
#include "random.h"
#include "reference/bound/arithmetic.h"
#include "seeds.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kPages = 96, kPageSize = 4, kMaxPages = 12, kMostTokens = kMaxPages * kPageSize;
constexpr std::int64_t kMostSequences = 12;
constexpr std::int64_t kHeadsQ = 4, kHeadsKv = 2, kHeadDim = 16;
constexpr std::int64_t kKeyRow = kHeadsKv * kHeadDim, kQueryRow = kHeadsQ * kHeadDim;
constexpr float kUnused = std::numeric_limits<float>::quiet_NaN();

struct Served {
  std::vector<std::int32_t> pages;
  std::vector<float> k, v;  // what the pages hold, [tokens, heads_kv, head_dim]

  std::int64_t tokens() const { return static_cast<std::int64_t>(k.size()) / kKeyRow; }
};

class Server {
 public:
  explicit Server(std::uint64_t seed)
      : random_(seed), users_(kPages, 0), k_(kPages * kPageSize * kKeyRow, kUnused), v_(k_) {}

  void step() {
    if (served_.empty() || random_.chance(0.3)) served_.emplace_back();
    if (random_.chance(0.15)) fork(random_.integer(0, last()));
    while (last() >= kMostSequences || random_.chance(0.15)) {
      evict(random_.integer(0, last()));
      if (served_.empty()) return;
    }
    attend();
  }

  std::int64_t evictions() const { return evictions_; }
  std::int64_t forks() const { return forks_; }

 private:
  std::int64_t last() const { return static_cast<std::int64_t>(served_.size()) - 1; }

  void fork(std::int64_t index) {
    const Served copy = served_[index];
    for (const std::int32_t page : copy.pages) ++users_[page];
    served_.push_back(copy);
    ++forks_;
  }

  void evict(std::int64_t index) {
    for (const std::int32_t page : served_[index].pages) release(page);
    served_.erase(served_.begin() + index);
    ++evictions_;
  }

  void release(std::int32_t page) {
    if (--users_[page] > 0) return;
    for (std::vector<float>* pool : {&k_, &v_}) {
      std::fill_n(pool->begin() + page * kPageSize * kKeyRow, kPageSize * kKeyRow, kUnused);
    }
  }

  /// A page of nobody's; -1 where there is none.
  std::int32_t free_page() {
    const auto first = static_cast<std::size_t>(random_.integer(0, kPages - 1));
    for (std::size_t i = 0; i < users_.size(); ++i) {
      const std::size_t page = (first + i) % users_.size();
      if (users_[page] > 0) continue;
      users_[page] = 1;
      return static_cast<std::int32_t>(page);
    }
    return -1;
  }

  /// Appends up to `count` tokens and returns how many fit. A page that others share is copied first.
  std::int64_t grow(Served& one, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = one.tokens();
      if (row == kMostTokens) return i;
      if (row % kPageSize == 0) {
        const std::int32_t page = free_page();
        if (page < 0) return i;
        one.pages.push_back(page);
      } else if (users_[one.pages.back()] > 1) {
        const std::int32_t page = free_page();
        if (page < 0) return i;
        for (std::vector<float>* pool : {&k_, &v_}) {
          std::copy_n(pool->begin() + one.pages.back() * kPageSize * kKeyRow, row % kPageSize * kKeyRow,
                      pool->begin() + page * kPageSize * kKeyRow);
        }
        release(one.pages.back());
        one.pages.back() = page;
      }
      const std::int64_t at = (one.pages.back() * kPageSize + row % kPageSize) * kKeyRow;
      for (std::int64_t c = 0; c < kKeyRow; ++c) {
        one.k.push_back(k_[at + c] = static_cast<float>(random_.normal()));
        one.v.push_back(v_[at + c] = static_cast<float>(random_.normal()));
      }
    }
    return count;
  }

  /// New tokens for some sequences, and their attention in one call.
  void attend() {
    std::vector<std::int32_t> starts_q{0}, starts_k{0}, used, table;
    std::vector<float> k, v;
    for (Served& one : served_) {
      const bool prompt = one.tokens() == 0;
      if (!prompt && random_.chance(0.4)) continue;
      const std::int64_t tokens = grow(one, prompt || random_.chance(0.2) ? random_.integer(1, 20) : 1);
      starts_q.push_back(starts_q.back() + static_cast<std::int32_t>(tokens));
      starts_k.push_back(starts_k.back() + static_cast<std::int32_t>(one.tokens()));
      used.push_back(static_cast<std::int32_t>(one.tokens()));
      table.insert(table.end(), one.pages.begin(), one.pages.end());
      table.resize(used.size() * kMaxPages, static_cast<std::int32_t>(random_.integer(-5, 2 * kPages)));
      k.insert(k.end(), one.k.begin(), one.k.end());
      v.insert(v.end(), one.v.begin(), one.v.end());
    }
    const auto batch = static_cast<std::int64_t>(used.size());
    const std::int64_t total_q = starts_q.back();
    std::vector<float> q(total_q * kQueryRow), o(q.size(), kUnused), lse(total_q * kHeadsQ, kUnused);
    for (float& x : q) x = static_cast<float>(random_.normal());

    ForwardArguments paged;
    paged.q = tensor(q.data(), {total_q, kHeadsQ, kHeadDim});
    paged.k = tensor(k_.data(), {kPages, kPageSize, kHeadsKv, kHeadDim});
    paged.v = tensor(v_.data(), {kPages, kPageSize, kHeadsKv, kHeadDim});
    paged.o = tensor(o.data(), {total_q, kHeadsQ, kHeadDim});
    paged.lse = tensor(lse.data(), {kHeadsQ, total_q});
    paged.sequences.cu_seqlens_q = tensor(starts_q.data(), {batch + 1});
    paged.sequences.seqused_k = tensor(used.data(), {batch});
    paged.page_table = tensor(table.data(), {batch, kMaxPages});
    const AttentionOptions options{.causal = CausalMask::bottom_right,
                                   .window = {.left = random_.chance(0.3) ? random_.integer(0, 30) : -1}};
    const Result<Plan> plan = make_plan(paged, options, {.threads = 1});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Status status = plan->run(paged, {.threads = 1});
    ASSERT_TRUE(status.ok()) << status.message();

    ForwardArguments packed = paged;
    packed.k = tensor(k.data(), {starts_k.back(), kHeadsKv, kHeadDim});
    packed.v = tensor(v.data(), {starts_k.back(), kHeadsKv, kHeadDim});
    packed.page_table = {};
    packed.sequences.seqused_k = {};
    packed.sequences.cu_seqlens_k = tensor(starts_k.data(), {batch + 1});
    const reference::ForwardResult expected = reference::forward(packed, options, reference::arithmetic_of(*plan), 1);
    expect_within(paged.o, expected.o);
    expect_within(paged.lse, expected.lse);
  }

  static void expect_within(const ConstTensorView& actual, const reference::BoundedTensor& expected) {
    const reference::WorstElement worst = reference::worst_element(actual, expected);
    EXPECT_LE(worst.ratio, 1.0) << reference::describe(worst, actual);
  }

  Random random_;
  std::vector<Served> served_;
  std::vector<std::int32_t> users_;  // sequences that a page belongs to
  std::vector<float> k_, v_;         // the pools
  std::int64_t evictions_ = 0;
  std::int64_t forks_ = 0;
};

TEST(Server, MatchesTheReference) {
  const auto steps = static_cast<int>(number_from("STROBE_SERVER_STEPS", 300));
  Server server(number_from("STROBE_SEED", 1));
  for (int step = 0; step < steps; ++step) {
    server.step();
    ASSERT_FALSE(HasFailure()) << "in step " << step;
  }
  EXPECT_GT(server.evictions(), steps / 20);
  EXPECT_GT(server.forks(), steps / 20);
}

}  // namespace
}  // namespace strobe::test
