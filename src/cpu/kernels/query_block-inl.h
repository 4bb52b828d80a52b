// SPDX-License-Identifier: Apache-2.0
// A block of query rows: how it is cut into panels, and which keys they see.
#if defined(STROBE_CPU_QUERY_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_QUERY_BLOCK_INL_H_
#undef STROBE_CPU_QUERY_BLOCK_INL_H_
#else
#define STROBE_CPU_QUERY_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/kernels/scores-inl.h"
#include "cpu/kernels/scratch.h"
#include "cpu/kernels/task.h"
#include "cpu/kernels/traits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

class QueryBlock {
 protected:
  /// Rows of the block that one row of the block mask covers, and the lanes that hold them: whole panels of their own.
  struct Part {
    std::int64_t row;   // in the call
    std::int64_t rows;  // that exist
    std::int64_t lane;
  };

  /// Keys of a tile that a panel computes: those that any of its rows sees, in whole strips.
  struct PanelKeys {
    std::int64_t first = 0;
    std::int64_t last = 0;  // not after first: none
    bool masked = false;    // whether any is hidden from a row
  };

  QueryBlock(const ForwardTask& task, std::byte* scratch)
      : task_(task),
        scratch_(scratch, task.head_dim, task.head_dim_v, task.qv_columns, task.stored.given(), task.tiles,
                 kernel_traits()),
        rows_(task.row_end - task.row_begin) {}

  /// Where the tile of the first visible key begins.
  std::int64_t first_tile() const { return round_down(task_.visible.begin(first_position()), task_.tiles.block_n); }
  std::int64_t first_position() const { return row_place(task_.row_begin, task_.q.group).position; }

  std::int64_t parts() const { return ceil_div(rows_, task_.tiles.part_m); }
  /// In whole vectors; parts before the last in whole panels.
  std::int64_t lanes() const {
    const Part last = part(parts() - 1);
    return last.lane + round_up(last.rows, kLanes);
  }
  Part part(std::int64_t index) const {
    const std::int64_t rows = task_.tiles.part_m;
    const std::int64_t first = index * rows;
    return {task_.row_begin + first, std::min(rows, rows_ - first), index * round_up(rows, kPanel)};
  }

  /// Calls visit(key_begin, key_end) for every tile of keys that any row sees.
  template <class Visit>
  void for_each_tile(const Visit& visit) const {
    // The intervals of visible keys move right with the row: the block's is from its first row's to its last row's.
    const std::int64_t last = scratch_.visible_end[lanes() - 1];
    for (std::int64_t key = first_tile(); key < last; key += task_.tiles.block_n) {
      if (!any_part_sees(key)) continue;
      visit(key, std::min(key + task_.tiles.block_n, task_.visible.keys));
    }
  }

  /// Calls visit(rest) for every panel that sees the tile at `key_begin`: the first of the rows `rest`.
  template <class Visit>
  void for_each_panel(std::int64_t key_begin, const Visit& visit) const {
    for (std::int64_t index = 0; index < parts(); ++index) {
      const Part all = part(index);
      if (!sees(all, key_begin)) continue;
      for (std::int64_t row = 0; row < all.rows; row += kPanel) {
        visit(Part{all.row + row, all.rows - row, all.lane + row});
      }
    }
  }

  bool sees(const Part& part, std::int64_t key) const { return task_.blocks.visible(part.row / task_.q.group, key); }
  bool any_part_sees(std::int64_t key) const {
    for (std::int64_t index = 0; index < parts(); ++index) {
      if (sees(part(index), key)) return true;
    }
    return false;
  }

  /// Whether a key of [key_begin, key_end) is hidden from a row.
  bool hides_any(std::int64_t key_begin, std::int64_t key_end) const {
    return scratch_.visible_begin[lanes() - 1] > key_begin || scratch_.visible_end[0] < key_end ||
           task_.tree.reaches(key_end);
  }

  PanelKeys panel_keys(const Part& rest, std::int64_t key_begin, std::int64_t count) const {
    const std::int64_t last_lane = panel_vectors(rest.rows) * kLanes - 1;
    const std::int64_t* begin = scratch_.visible_begin + rest.lane;
    const std::int64_t* end = scratch_.visible_end + rest.lane;
    const std::int64_t first = std::clamp<std::int64_t>(begin[0] - key_begin, 0, count);
    const std::int64_t last = std::clamp<std::int64_t>(end[last_lane] - key_begin, 0, count);
    if (first >= last) return {};
    PanelKeys keys{.first = round_down(first, kStrip), .last = round_up(last, kStrip)};
    keys.masked = begin[last_lane] - key_begin > keys.first || end[0] - key_begin < keys.last ||
                  task_.tree.reaches(key_begin + keys.last);
    return keys;
  }

  /// The keys, counted from `key_begin`, that the lanes of vector `n` of a panel see.
  LaneInterval visible_keys(const Part& rest, int n, std::int64_t key_begin) const {
    const std::int64_t lane = rest.lane + n * kLanes;
    LaneInterval visible(scratch_.visible_begin + lane, scratch_.visible_end + lane, key_begin);
    visible.cut(task_.tree, rest.row + n * kLanes, task_.q.group, key_begin);
    return visible;
  }

  /// Elements of hidden keys in a panel [key][lane] to `value`.
  void hide(const Part& rest, std::int64_t key_begin, const PanelKeys& keys, float* elements, float value) const {
    hide_scores(elements, panel_vectors(rest.rows), keys.first, keys.last, scratch_.visible_begin + rest.lane,
                scratch_.visible_end + rest.lane, key_begin, task_, rest.row, value);
  }

  const ForwardTask& task_;
  const ForwardScratch scratch_;  // its visible_begin and visible_end are filled by begin()
  const std::int64_t rows_;
};

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_QUERY_BLOCK_INL_H_
