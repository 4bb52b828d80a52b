// SPDX-License-Identifier: Apache-2.0
// Few queries against many keys, as in decoding: a chunk of keys with every query row of some heads, and the merge of
// chunks. What takes time is reading K and V, so both are read once, where they lie, with their columns across the
// lanes; the heads of a task take turns at the same keys, as heads lie side by side in memory.
#if defined(STROBE_CPU_FEW_QUERIES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_FEW_QUERIES_INL_H_
#undef STROBE_CPU_FEW_QUERIES_INL_H_
#else
#define STROBE_CPU_FEW_QUERIES_INL_H_
#endif

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "cpu/kernels/convert-inl.h"
#include "cpu/kernels/few_queries_block-inl.h"
#include "cpu/kernels/few_queries_products-inl.h"
#include "cpu/kernels/few_queries_steps-inl.h"
#include "cpu/kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

static_assert(kFewQueriesKeys % kLanes == 0);

class FewQueriesChunk : FewQueriesBlock {
 public:
  FewQueriesChunk(const FewQueriesTask& task, std::byte* scratch)
      : FewQueriesBlock(task, scratch),
        panel_rows_(first_.row_invariant ? (rows_ <= kRowGroup ? 0 : rows_) : panel_rows(rows_)),
        in_place_(first_.qv_columns == 0 && used_in_place(first_, rows_, panel_rows_)) {}

  void run() {
    for (std::int64_t row = 0; row < rows_; ++row) {
      scratch_.visible_begin[row] = first_.visible.begin(row / first_.q.group);
      scratch_.visible_end[row] = first_.visible.end(row / first_.q.group);
    }
    std::fill_n(scratch_.top, scratch_.m_padded, -kInfinity);
    for (std::int64_t head = 0; head < heads(); ++head) begin(head);
    // Intervals of visible keys move right with the row.
    const std::int64_t from = round_down(std::max(task_.key_begin, scratch_.visible_begin[0]), kFewQueriesKeys);
    const std::int64_t to = std::min(task_.key_end, scratch_.visible_end[rows_ - 1]);
    for (std::int64_t key = from; key < to; key += kFewQueriesKeys) block(key, std::min(kFewQueriesKeys, to - key));
  }

 private:
  void begin(std::int64_t head) {
    const ForwardTask& task = head_task(head);
    const FewQueriesState of_head = state(head);
    std::fill_n(of_head.row_max, round_up(rows_, kLanes), -kInfinity);
    std::fill_n(of_head.row_sum, rows_, 0.0F);
    std::fill_n(of_head.output, rows_ * scratch_.columns_v, 0.0F);
    load_queries(task, task.q, task.head_dim, scratch_.columns, queries(head));
    if (task.qv_columns > 0) load_queries(task, task.qv, task.qv_columns, scratch_.columns_v, query_values(head));
  }

  /// The rows of q or qv, `padded` columns each.
  void load_queries(const ForwardTask& task, const ConstRows& rows, std::int64_t columns, std::int64_t padded,
                    float* to) const {
    const float factor = task.query_factor;
    if (panel_rows_ > 0) {
      pack_panels<kLanes>(task.dtype, {rows, 0, panel_rows_, columns}, round_up(panel_rows_, kLanes), padded, factor,
                          scratch_.widened, to);
    }
    const Source from{rows, panel_rows_, rows_ - panel_rows_, columns};
    to += round_up(panel_rows_, kLanes) * padded;
    for (std::int64_t row = 0; row < from.count; ++row, to += padded) {
      switch (task.dtype) {
        case DType::float16: load_source_row<float16>(from, row, padded, factor, to); break;
        case DType::bfloat16: load_source_row<bfloat16>(from, row, padded, factor, to); break;
        default: load_source_row<float>(from, row, padded, factor, to); break;
      }
    }
  }

  /// Keys [key, key + count) with every head: all products with K, then all probabilities, then all products with V.
  /// Heads take turns every few keys: they lie side by side in memory, so that rows are read as they lie.
  void block(std::int64_t key, std::int64_t count) {
    for (std::int64_t head = 0; head < heads(); ++head) find_visible(head, key, count);
    if (in_place_ && every_row_sees(key, count)) {
      const std::optional<StepPlaces> keys = places_of(first_.k, key, count, first_.visible.keys);
      const std::optional<StepPlaces> values = places_of(first_.v, key, count, first_.visible.keys);
      if (keys && values) return block_in_place(key, count, *keys, *values);
    }
    const std::int64_t step = first_.row_invariant && rows_ == 1 ? kFewQueriesKeys : kStep;  // one row: more sums
    for_each_step(count, step, [&](std::int64_t head, std::int64_t first, std::int64_t last) {
      first = std::max(first, round_down(any_begin(head), step));
      last = std::min(last, any_end(head));
      if (first < last) multiply_keys(head, key, first, last);
    });
    for (std::int64_t head = 0; head < heads(); ++head) softmax(head, key, count);
    if (first_.row_invariant) std::fill_n(scratch_.block_output, heads() * rows_ * scratch_.columns_v, 0.0F);
    for_each_step(count, kStep, [&](std::int64_t head, std::int64_t first, std::int64_t last) {
      first = std::max(first, any_begin(head));
      last = std::min(last, any_end(head));
      if (first < last) multiply_values(head, key, first, last);
    });
    if (!first_.row_invariant) return;
    for (std::int64_t head = 0; head < heads(); ++head) add_block(head);
  }

  /// A block that every row sees, of rows that are used where they lie.
  void block_in_place(std::int64_t key, std::int64_t count, const StepPlaces& keys, const StepPlaces& values) {
    switch (first_.dtype) {
      case DType::float16: return block_in_place_of<float16>(key, count, keys, values);
      case DType::bfloat16: return block_in_place_of<bfloat16>(key, count, keys, values);
      default: return block_in_place_of<float>(key, count, keys, values);
    }
  }

  template <class T>
  void block_in_place_of(std::int64_t key, std::int64_t count, const StepPlaces& keys, const StepPlaces& values) {
    std::array<HeadRows<T>, kFewQueriesHeads> rows;
    const std::span<const HeadRows<T>> used(rows.data(), task_.heads.size());
    const auto row = [&](std::int64_t head) -> HeadRows<T>& { return rows[static_cast<std::size_t>(head)]; };
    with_step_rows(panel_rows_ > 0 ? 0 : rows_, [&](auto own) {
      for (std::int64_t head = 0; head < heads(); ++head) {
        row(head) = {static_cast<const T*>(head_task(head).k.data), queries(head), scores(head)};
      }
      multiply_steps<own>(used, keys, {rows_, panel_rows_, scratch_.columns});
      for (std::int64_t head = 0; head < heads(); ++head) {
        softmax(head, key, count);
        row(head) = {static_cast<const T*>(head_task(head).v.data), scores(head), output_of(head)};
      }
      add_steps<own>(used, values, {rows_, 0, scratch_.columns_v});
    });
  }

  /// Calls use(head, first, last) for a few keys of the block and every head, then the next few keys.
  template <class Use>
  HWY_INLINE void for_each_step(std::int64_t count, std::int64_t step, const Use& use) {
    for (std::int64_t first = 0; first < count; first += step) {
      for (std::int64_t head = 0; head < heads(); ++head) use(head, first, std::min(first + step, count));
    }
  }

  /// S = Q K^T, with qv V^T where there is qv, over keys [first, last) of the block that begins at `key`.
  void multiply_keys(std::int64_t head, std::int64_t key, std::int64_t first, std::int64_t last) {
    const ForwardTask& task = head_task(head);
    const StoredTile stored{task.stored, task.dtype, key + first, last - first, scratch_.converted};
    prefetch_step(task, task.k, key + last, task.head_dim);
    multiply({stored.keys(task.k, task.head_dim), stored.first(), last - first, task.head_dim}, queries(head),
             scratch_.columns, scores(head) + first);
    if (task.qv_columns == 0) return;
    float* values = scratch_.value_scores + first;
    multiply({stored.values(task.v, task.qv_columns), stored.first(), last - first, task.qv_columns},
             query_values(head), scratch_.columns_v, values);
    const Floats d;
    for (std::int64_t row = 0; row < rows_; ++row) {
      float* own = scores(head) + first + row * kFewQueriesKeys;
      for (std::int64_t i = 0; i < last - first; i += kLanes) {
        hn::StoreU(hn::Add(hn::LoadU(d, own + i), hn::LoadU(d, values + row * kFewQueriesKeys + i)), d, own + i);
      }
    }
  }

  /// Products of all queries, which have `padded` columns, with rows of K or V.
  void multiply(const Source& from, const float* queries, std::int64_t padded, float* to) {
    const bool row_invariant = first_.row_invariant;
    with_rows(from, padded, panel_rows_ > 0 || row_invariant, [&](const auto& rows) {
      if constexpr (std::is_same_v<std::decay_t<decltype(rows)>, BlockRows<float>>) {
        for (std::int64_t row = 0; row < panel_rows_; row += kLanes) {
          multiply_panel_queries(queries + row * padded, from.columns, rows, from.count, to + row * kFewQueriesKeys);
        }
        if (row_invariant) {
          if (panel_rows_ > 0) return;
          return with_row_group(rows_, [&](auto own) {
            multiply_across_keys<own, own == 1 ? 4 : 1>(queries, padded, rows, from.count, to);
          });
        }
      }
      multiply_queries(queries + round_up(panel_rows_, kLanes) * padded, rows_ - panel_rows_, padded, rows, from.count,
                       to + panel_rows_ * kFewQueriesKeys);
    });
  }

  /// O += P V over the same.
  void multiply_values(std::int64_t head, std::int64_t key, std::int64_t first, std::int64_t last) {
    const ForwardTask& task = head_task(head);
    const StoredTile stored{task.stored, task.dtype, key + first, last - first, scratch_.converted};
    const ConstRows values = stored.values(task.v, task.head_dim_v);
    prefetch_step(task, task.v, key + last, task.head_dim_v);
    const bool widen = panel_rows_ > 0 && !task.row_invariant;
    with_rows({values, stored.first(), last - first, task.head_dim_v}, scratch_.columns_v, widen,
              [&](const auto& rows) { add_visible_values(head, rows, key, first, last); });
  }

  /// Calls use() with rows as they lie, or widened to float32 where they are not whole vectors or of several pages, or
  /// where converting them for every few queries again costs more. Both give the same bits.
  template <class Use>
  HWY_INLINE void with_rows(const Source& from, std::int64_t columns, bool widen, const Use& use) {
    switch (first_.dtype) {
      case DType::float16: return with_rows_of<float16>(from, columns, widen, use);
      case DType::bfloat16: return with_rows_of<bfloat16>(from, columns, widen, use);
      default: return with_rows_of<float>(from, columns, widen, use);
    }
  }

  template <class T, class Use>
  HWY_INLINE void with_rows_of(const Source& from, std::int64_t columns, bool widen, const Use& use) {
    constexpr bool kCheap = !std::is_same_v<T, float16> || kNativeFloat16;
    const bool in_place = (std::is_same_v<T, float> || (kCheap && rows_ <= kRowGroup && !widen)) &&
                          from.rows.pages.holds_together(from.first, from.count);
    if (in_place && from.columns == columns) {
      return use(BlockRows<T>{from.row<T>(0), from.rows.position_stride});
    }
    for (std::int64_t i = 0; i < from.count; ++i) {
      load_source_row<T>(from, i, columns, 1.0F, scratch_.widened + i * columns);
    }
    use(BlockRows<float>{scratch_.widened, columns});
  }

  /// Keys that every row of a group sees are added together, the others row by row: a hidden value is never read.
  /// `values` are those of keys [first, last) of the block that begins at `key`.
  template <class T>
  HWY_INLINE void add_visible_values(std::int64_t head, const BlockRows<T>& values, std::int64_t key,
                                     std::int64_t first, std::int64_t last) {
    for_each_value_group(rows_,
                         [&](auto group, std::int64_t row) { add_group<group>(head, row, values, key, first, last); });
  }

  template <int kRows, class T>
  HWY_INLINE void add_group(std::int64_t head, std::int64_t row, const BlockRows<T>& values, std::int64_t key,
                            std::int64_t first, std::int64_t last) {
    const float* p = scores(head) + row * kFewQueriesKeys + first;
    float* output = output_of(head) + row * scratch_.columns_v;
    std::int64_t begin[kRows];  // visible keys of each row, counted from `first`
    std::int64_t end[kRows];
    for (int i = 0; i < kRows; ++i) {
      begin[i] = std::clamp(begin_of(head)[row + i], first, last) - first;
      end[i] = std::clamp(end_of(head)[row + i], first, last) - first;
    }
    if (first_.expression.has_mask()) {
      for (int i = 0; i < kRows; ++i) {
        add_weighted(p + i * kFewQueriesKeys, values, begin[i], end[i], output + i * scratch_.columns_v);
      }
      return;
    }
    const TreeMask& tree = first_.tree;
    const std::int64_t before_tree = tree.given() ? std::max<std::int64_t>(tree.begin - key - first, 0) : last - first;
    const std::int64_t all_begin = *std::max_element(begin, begin + kRows);
    const std::int64_t all_end = std::max(all_begin, std::min(*std::min_element(end, end + kRows), before_tree));
    const auto add_run = [&](int i, std::int64_t from, std::int64_t to) {
      if (from >= to) return;
      add_values<1>(p + i * kFewQueriesKeys, values, from, to, scratch_.columns_v, output + i * scratch_.columns_v);
    };
    const auto add_edge = [&](int i, std::int64_t from, std::int64_t to) {
      add_run(i, from, std::min(to, before_tree));
      const auto shows = [&](std::int64_t at) { return tree.shows((row + i) / first_.q.group, key + first + at); };
      for (std::int64_t at = std::max(from, before_tree); at < to; ++at) {
        const std::int64_t run = at;
        while (at < to && shows(at)) ++at;
        add_run(i, run, at);
      }
    };
    if (all_begin > 0) {
      for (int i = 0; i < kRows; ++i) add_edge(i, begin[i], std::min(all_begin, end[i]));
    }
    if (all_begin < all_end) add_values<kRows>(p, values, all_begin, all_end, scratch_.columns_v, output);
    if (all_end < last - first) {
      for (int i = 0; i < kRows; ++i) add_edge(i, std::max(all_end, begin[i]), end[i]);
    }
  }

  /// Of the keys [first, last) that a row sees but for a text's mask: those without a weight are not read.
  template <class T>
  HWY_INLINE void add_weighted(const float* p, const BlockRows<T>& values, std::int64_t first, std::int64_t last,
                               float* output) const {
    for (std::int64_t at = first; at < last; ++at) {
      const std::int64_t run = at;
      while (at < last && p[at] != 0.0F) ++at;
      if (run < at) add_values<1>(p, values, run, at, scratch_.columns_v, output);
    }
  }

  const std::int64_t panel_rows_;  // rows whose scores are made with queries across the lanes
  const bool in_place_;            // rows of K and V are used where they lie
};

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_FEW_QUERIES_INL_H_
