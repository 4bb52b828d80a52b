// SPDX-License-Identifier: Apache-2.0
// Whose turn it is to add to the dQ sums of a block of query rows: blocks of keys add in the order of the keys.
#pragma once

#include <atomic>
#include <cstdint>

#include "cpu/kernels/task.h"

namespace strobe::cpu {

/// Waits until the block of keys `own` may add.
inline void wait_for_turn(const std::atomic<std::int32_t>& turn, std::int32_t own) {
  for (std::int32_t now = turn.load(std::memory_order_acquire); now != own;
       now = turn.load(std::memory_order_acquire)) {
    turn.wait(now, std::memory_order_acquire);
  }
}

/// Sets what others wait for, and wakes them. In the order that all threads see: libstdc++'s notify_all() looks whether
/// somebody waits, which must not come before the store, or one who has just looked at the old value sleeps for good.
inline void store_and_notify(std::atomic<std::int32_t>& value, std::int32_t next) {
  value.store(next, std::memory_order_seq_cst);
  value.notify_all();
}

/// Passes the turn on from the block of keys `own`, of `block_n` of `keys` keys. Blocks that the mask hides from
/// `position`, which stands for the block of rows, never come: the turn passes over them.
inline void pass_turn(std::atomic<std::int32_t>& turn, std::int32_t own, const BlockMask& blocks, std::int64_t position,
                      std::int64_t block_n, std::int64_t keys) {
  std::int32_t next = own + 1;
  while (next * block_n < keys && !blocks.visible(position, next * block_n)) ++next;
  store_and_notify(turn, next);
}

/// Waits until the task before this one has added to the captures' gradients.
inline void wait_for_captures(const CaptureTurn& turn) {
  if (turn.before != nullptr) wait_for_turn(*turn.before, 1);
}

/// At a task's end, whether or not it has added anything.
inline void pass_captures(const CaptureTurn& turn) {
  if (turn.own == nullptr) return;
  wait_for_captures(turn);
  store_and_notify(*turn.own, 1);
}

}  // namespace strobe::cpu
