// SPDX-License-Identifier: Apache-2.0
// What one block of keys gives to the gradient of the bias.
#if defined(STROBE_CPU_BIAS_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BIAS_GRADIENT_INL_H_
#undef STROBE_CPU_BIAS_GRADIENT_INL_H_
#else
#define STROBE_CPU_BIAS_GRADIENT_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "cpu/kernels/task.h"
#include "cpu/kernels/turn.h"
#include "cpu/kernels/vector-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// Tasks that share elements of the gradient add to them in turn; one that has its elements alone writes them all,
/// zeros where nothing contributes.
class BiasGradient {
 public:
  /// `d_scores` is a panel [row][key lanes] of dS before the softcap's slope.
  BiasGradient(const BiasTurn& turn, std::int64_t key_begin, std::int64_t count, const float* d_scores)
      : turn_(turn), key_begin_(key_begin), count_(count), d_scores_(d_scores) {}

  void set_rows(const GroupRows<float*>& rows) { rows_ = rows; }
  bool wanted() const { return rows_.data != nullptr; }
  bool writes_all() const { return wanted() && turn_.alone; }

  /// Waits until the rows before row_end are done by the task before this one, in blocks of `block_rows`. Heads of a
  /// position share the elements of a bias that serves all heads, and may lie in the next blocks, too.
  void wait(std::int64_t row_end, std::int64_t group, std::int64_t block_rows) const {
    wait_for((round_up(row_end, group) - 1) / block_rows + 1);
  }

  /// `blocks` blocks of rows are done.
  void pass(std::int64_t blocks) const {
    if (turn_.own == nullptr) return;
    store_and_notify(*turn_.own, static_cast<std::int32_t>(blocks));
  }

  /// All blocks are done. A task that skipped some, which a mask hides from its heads, has not waited for them: the
  /// next one must not find them passed on while a task before this one still adds to them.
  void pass_all() const {
    constexpr std::int32_t kAll = std::numeric_limits<std::int32_t>::max();
    wait_for(kAll);
    pass(kAll);
  }

  /// Fetches what store() will write while a product runs: hardware does not follow from row to row.
  void prefetch(std::int64_t key, std::int64_t row_begin, std::int64_t row_end) const {
    if (!wanted()) return;
    constexpr std::int64_t kLine = 16;  // floats
    for (std::int64_t row = row_begin; row < row_end; ++row) {
      for (std::int64_t i = 0; i < std::min(kPanel, count_ - key); i += kLine) hwy::Prefetch(at(row, key + i));
    }
  }

  /// The panel of kWidth keys at `key`: rows [first, last) of the block of `rows` rows at row_begin have dS.
  template <std::int64_t kWidth = kPanel>
  void store(std::int64_t key, std::int64_t row_begin, std::int64_t first, std::int64_t last, std::int64_t rows) const {
    const std::int64_t keys = std::min(kWidth, count_ - key);
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* from = d_scores_ + row * kWidth;
      if (row >= first && row < last) {
        turn_.alone ? static_cast<void>(std::copy_n(from, keys, at(row_begin + row, key)))
                    : add(from, keys, at(row_begin + row, key));
      } else if (turn_.alone) {
        std::fill_n(at(row_begin + row, key), keys, 0.0F);
      }
    }
  }

  /// Nothing of these rows sees these keys.
  void store_zeros(std::int64_t key, std::int64_t keys, std::int64_t row_begin, std::int64_t row_end) const {
    for (std::int64_t row = row_begin; row < row_end; ++row) std::fill_n(at(row, key), keys, 0.0F);
  }

 private:
  /// Until the task before this one has passed on so many blocks.
  void wait_for(std::int64_t blocks) const {
    const std::atomic<std::int32_t>* before = turn_.before;
    if (!wanted() || before == nullptr) return;
    for (std::int32_t now = before->load(std::memory_order_acquire); now < blocks;
         now = before->load(std::memory_order_acquire)) {
      before->wait(now, std::memory_order_acquire);
    }
  }

  static void add(const float* HWY_RESTRICT from, std::int64_t count, float* HWY_RESTRICT to) {
    const Floats d;
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      hn::StoreU(hn::Add(hn::LoadU(d, to + i), hn::LoadU(d, from + i)), d, to + i);
    for (; i < count; ++i) to[i] += from[i];
  }

  float* at(std::int64_t row, std::int64_t key) const { return rows_.data + rows_.offset(row) + key_begin_ + key; }

  BiasTurn turn_;
  GroupRows<float*> rows_;
  std::int64_t key_begin_;
  std::int64_t count_;
  const float* d_scores_;
};

/// Calls visit(row_begin, row_end) for the blocks of one head's query rows that see keys of the task. A gradient that
/// the task writes alone is zero for the others.
template <class Visit>
void for_each_row_block(const BackwardTask& task, const BackwardQueries& queries, const BiasGradient& gradient,
                        const Visit& visit) {
  const std::int64_t group = queries.q.group;
  const std::int64_t positions = queries.rows / group;
  const std::int64_t block = task.tiles.block_m;
  const std::int64_t first = round_down(task.visible.first_position(task.key_begin, positions) * group, block);
  const std::int64_t last = task.visible.last_position(task.key_end - 1, positions) * group;
  const bool all_rows = gradient.writes_all();
  for (std::int64_t row = all_rows ? 0 : first; row < (all_rows ? queries.rows : last); row += block) {
    const std::int64_t end = std::min(row + block, queries.rows);
    if (row >= first && row < last && queries.blocks.visible(row / group, task.key_begin)) {
      visit(row, end);
    } else if (all_rows) {
      gradient.store_zeros(0, task.key_end - task.key_begin, row, end);
    }
  }
}

/// Calls visit(row_begin, row_end, is_last_head) for the same of every head of the task, whose turn `queries` and
/// `gradient` follow; `dq_block` is the floats that a block of rows takes in the dQ sums.
template <class Visit>
void for_each_query_block(const BackwardTask& task, BackwardQueries& queries, BiasGradient& gradient,
                          std::int64_t dq_block, const Visit& visit) {
  for (std::int64_t head = 0; head < task.heads; ++head) {
    if (head > 0) queries.next_head(task.dtype, task.tiles.block_m, dq_block);
    gradient.set_rows(queries.d_bias);
    const bool is_last = head == task.heads - 1;
    for_each_row_block(task, queries, gradient,
                       [&](std::int64_t row_begin, std::int64_t row_end) { visit(row_begin, row_end, is_last); });
  }
  gradient.pass_all();
}

/// A block of rows that a text hides from every key of the task: others wait for its turns all the same.
inline void pass_hidden_block(const BackwardTask& task, const BackwardQueries& queries, const BiasGradient& gradient,
                              std::int64_t row_begin, std::int64_t row_end, bool is_last_head) {
  const std::int64_t block = row_begin / task.tiles.block_m;
  gradient.wait(row_end, queries.q.group, task.tiles.block_m);
  if (gradient.writes_all()) gradient.store_zeros(0, task.key_end - task.key_begin, row_begin, row_end);
  if (is_last_head) gradient.pass(block + 1);
  const auto own = static_cast<std::int32_t>(task.key_begin / task.tiles.block_n);
  wait_for_turn(queries.turn[block], own);
  pass_turn(queries.turn[block], own, queries.blocks, row_begin / queries.q.group, task.tiles.block_n,
            task.visible.keys);
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_BIAS_GRADIENT_INL_H_
