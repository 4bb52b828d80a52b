// SPDX-License-Identifier: Apache-2.0
#include "sm90/order_simulation.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "call/arithmetic.h"
#include "call/visible_keys.h"
#include "gpu/plan/backward_plan.h"

namespace strobe::sm90 {
namespace {

constexpr double kHeldShare = 0.8;  // of L2
constexpr std::int64_t kMostEvents = 200'000;
constexpr std::int64_t kMostChunks = 64;
constexpr std::int64_t kFewestChunks = 8;

/// What several blocks of queries of one query head have seen: simulated together.
struct Chunk {
  double start = -1.0;  // of the last item that passed over it
  double end = -1.0;
  int dispatched = 0;        // items that will pass over it
  int passed = 0;            // those that have begun to
  double last_use = -1e30;   // by bytes that have come into L2 until then
  std::vector<int> waiting;  // CTAs
};

/// An item on a CTA.
struct Running {
  int first_chunk = 0, past_chunk = 0, direction = 1;
  int first_head = 0, heads = 0;  // query heads, over all sequences
  int block = 0;                  // of keys
  int at_head = 0, at_chunk = 0;  // what is next
  std::vector<int> turns;         // in order: how many items pass over each chunk before
};

class Simulation {
 public:
  Simulation(const AttentionProblem& problem, const DeviceShape& shape, const BackwardPlan& plan, double query_bytes)
      : plan_(plan),
        visible_(visible_keys(problem)),
        queries_(problem.seqlen_q),
        block_m_(plan.config.block_m),
        m_blocks_(gpu::backward_blocks(problem.seqlen_q, block_m_)),
        n_blocks_(static_cast<int>(gpu::backward_blocks(problem.seqlen_k, block_n(plan.config)))),
        sequences_(std::max<std::int64_t>(1, problem.batch)),
        heads_(static_cast<int>(sequences_ * plan.params.heads_kv * plan.params.key_parts)),
        held_bytes_(kHeldShare * static_cast<double>(shape.l2_bytes)),
        workers_(static_cast<std::size_t>(shape.multiprocessors)) {
    chunks_ = std::min(m_blocks_, kMostChunks);
    while (chunks_ > kFewestChunks && events() > kMostEvents) chunks_ = ceil_div<std::int64_t>(chunks_, 2);
    chunk_blocks_ = ceil_div(m_blocks_, chunks_);
    chunk_bytes_ = query_bytes * static_cast<double>(chunk_blocks_ * block_m_);
  }

  bool is_small() const { return events() <= kMostEvents && queries_ > 0; }

  SimulatedOrder run() {
    state_.resize(static_cast<std::size_t>(sequences_ * plan_.params.heads * chunks_));
    for (int worker = 0; worker < static_cast<int>(workers_.size()); ++worker) take_item(0.0, worker);
    while (!queue_.empty()) {
      const auto [time, worker] = queue_.top();
      queue_.pop();
      advance(time, worker);
    }
    return {.steps = last_, .read_rows = read_rows_};
  }

 private:
  std::int64_t events() const { return std::int64_t{heads_} * n_blocks_ * plan_.params.part_heads * chunks_; }

  Chunk& chunk_of(const Running& item, int head, int chunk) {
    return state_[static_cast<std::size_t>((item.first_head + head) * chunks_ + chunk)];
  }

  /// Blocks of queries that see a block of keys: [first, past).
  std::pair<std::int64_t, std::int64_t> blocks_of(int block) const {
    const std::int64_t key = std::int64_t{block} * block_n(plan_.config);
    const std::int64_t last = std::min(key + block_n(plan_.config), visible_.keys) - 1;
    return {visible_.first_position(key, queries_) / block_m_,
            ceil_div<std::int64_t>(visible_.last_position(last, queries_), block_m_)};
  }

  /// The next item in order to this CTA, which is free.
  void take_item(double time, int worker) {
    last_ = std::max(last_, time);
    if (next_ == std::int64_t{heads_} * n_blocks_) return;
    Running& item = workers_[static_cast<std::size_t>(worker)];
    item = item_of(next_++);
    if (plan_.config.ordered) {
      for (int head = 0; head < item.heads; ++head) {
        for (int chunk = item.first_chunk; chunk < item.past_chunk; ++chunk) {
          item.turns.push_back(chunk_of(item, head, chunk).dispatched++);
        }
      }
    }
    queue_.emplace(time + item_overhead(plan_.config, plan_.config.shares_keys), worker);
  }

  /// As kernels/sm90/backward/work.h has it.
  Running item_of(std::int64_t number) const {
    const backward::Params& params = plan_.params;
    const backward::Config& config = plan_.config;
    const std::int64_t section = number / (std::int64_t{params.section_heads} * n_blocks_);
    const auto first = static_cast<int>(section * params.section_heads);
    const auto within = static_cast<int>(number - std::int64_t{first} * n_blocks_);
    const int count = std::min(params.section_heads, heads_ - first);
    const int key_heads = heads_ / params.key_parts;
    const int flat = first + within % count;
    const int part = flat / key_heads;
    const int block = within / count;
    const bool descends =
        config.ordered &&
        (config.alternates ? ((heads_ - 1) / params.section_heads - section) % 2 != 0 : !config.rule.mask_right);
    Running item;
    item.block = descends ? n_blocks_ - 1 - block : block;
    item.first_head = flat % key_heads * params.heads_per_kv + part * params.part_heads;
    item.heads = std::min(params.part_heads, params.heads_per_kv - part * params.part_heads);
    item.direction = descends || !config.ordered ? 1 : -1;
    const auto [first_block, past_block] = blocks_of(item.block);
    item.first_chunk = static_cast<int>(first_block / chunk_blocks_);
    item.past_chunk = static_cast<int>(ceil_div(std::max(past_block, first_block), chunk_blocks_));
    item.at_chunk = item.direction > 0 ? item.first_chunk : item.past_chunk - 1;
    return item;
  }

  /// The next chunk of a CTA's item, or the next item.
  void advance(double time, int worker) {
    Running& item = workers_[static_cast<std::size_t>(worker)];
    if (item.at_head == item.heads || item.first_chunk >= item.past_chunk) return take_item(time, worker);
    Chunk& chunk = chunk_of(item, item.at_head, item.at_chunk);
    if (plan_.config.ordered) {
      const int width = item.past_chunk - item.first_chunk;
      const int turn = item.turns[static_cast<std::size_t>(item.at_head * width + item.at_chunk - item.first_chunk)];
      if (chunk.passed < turn) {
        chunk.waiting.push_back(worker);
        return;
      }
      time = std::max(time, chunk.start + 1.0);
    }
    queue_.emplace(pass(time, item, chunk), worker);
    for (const int other : std::exchange(chunk.waiting, {})) queue_.emplace(time + 1.0, other);
    item.at_chunk += item.direction;
    if (item.at_chunk >= item.first_chunk && item.at_chunk < item.past_chunk) return;
    item.at_chunk = item.direction > 0 ? item.first_chunk : item.past_chunk - 1;
    ++item.at_head;
  }

  /// An item's steps over a chunk from `time` on; when they end.
  double pass(double time, const Running& item, Chunk& chunk) {
    const auto [first_block, past_block] = blocks_of(item.block);
    const std::int64_t begin = std::max(first_block, item.at_chunk * chunk_blocks_);
    const std::int64_t past = std::min(past_block, (item.at_chunk + 1) * chunk_blocks_);
    if (come_bytes_ - chunk.last_use > held_bytes_) {
      come_bytes_ += chunk_bytes_;
      read_rows_ += static_cast<double>(chunk_blocks_ * block_m_);
    }
    chunk.last_use = come_bytes_;
    double end = time + static_cast<double>(past - begin);
    if (plan_.config.ordered) end = std::max(end, chunk.end + 1.0);
    chunk.start = time;
    chunk.end = end;
    ++chunk.passed;
    return end;
  }

  using Event = std::pair<double, int>;  // when, and which CTA

  const BackwardPlan& plan_;
  VisibleKeys visible_;
  std::int64_t queries_;
  int block_m_;
  std::int64_t m_blocks_;
  int n_blocks_;
  std::int64_t sequences_;
  int heads_;  // key heads of all sequences, each part of one counted
  double held_bytes_;
  std::int64_t chunks_ = 1, chunk_blocks_ = 1;
  double chunk_bytes_ = 0.0;
  std::vector<Running> workers_;
  std::vector<Chunk> state_;  // of each query head
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  std::int64_t next_ = 0;
  double last_ = 0.0;
  double come_bytes_ = 0.0;
  double read_rows_ = 0.0;
};

}  // namespace

std::optional<SimulatedOrder> simulate_order(const AttentionProblem& problem, const DeviceShape& shape,
                                             const BackwardPlan& plan, double query_bytes) {
  Simulation simulation(problem, shape, plan, query_bytes);
  if (!simulation.is_small()) return std::nullopt;
  return simulation.run();
}

}  // namespace strobe::sm90
