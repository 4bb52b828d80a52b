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

#include "cpu/kernels/convert-inl.h"
#include "cpu/kernels/dropout-inl.h"
#include "cpu/kernels/few_queries.h"
#include "cpu/kernels/few_queries_merge-inl.h"
#include "cpu/kernels/few_queries_products-inl.h"
#include "cpu/kernels/pack-inl.h"
#include "cpu/kernels/row_statistics.h"
#include "cpu/kernels/terms-inl.h"
#include "cpu/kernels/traits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

static_assert(kFewQueriesKeys % kLanes == 0);

class FewQueriesChunk {
 public:
  FewQueriesChunk(const FewQueriesTask& task, std::byte* scratch)
      : task_(task),
        first_(task.heads.front()),
        rows_(first_.row_end),
        panel_rows_(first_.row_invariant ? (rows_ <= kRowGroup ? 0 : rows_) : panel_rows(rows_)),
        fetches_ahead_(!first_.row_invariant && fetches_with_reads(first_, rows_)),
        scratch_(scratch, first_.head_dim, first_.head_dim_v, first_.stored.given(), rows_,
                 static_cast<std::int64_t>(task.heads.size()), kernel_traits()) {}

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
  std::int64_t heads() const { return static_cast<std::int64_t>(task_.heads.size()); }

  FewQueriesState state(std::int64_t head) const { return {task_.states + head * task_.state_floats, rows_}; }

  const ForwardTask& head_task(std::int64_t head) const { return task_.heads[static_cast<std::size_t>(head)]; }
  const std::int64_t* begin_of(std::int64_t head) const { return scratch_.begin + head * rows_; }
  const std::int64_t* end_of(std::int64_t head) const { return scratch_.end + head * rows_; }
  float* scores(std::int64_t head) const { return scratch_.scores + head * scratch_.m_padded * kFewQueriesKeys; }
  float* queries(std::int64_t head) const { return scratch_.queries + head * scratch_.m_padded * scratch_.columns; }

  void begin(std::int64_t head) {
    const ForwardTask& task = head_task(head);
    const float factor = task.query_factor;
    const FewQueriesState of_head = state(head);
    std::fill_n(of_head.row_max, round_up(rows_, kLanes), -kInfinity);
    std::fill_n(of_head.row_sum, rows_, 0.0F);
    std::fill_n(of_head.output, rows_ * scratch_.columns_v, 0.0F);
    if (panel_rows_ > 0) {
      pack_panels<kLanes>(task.dtype, {task.q, 0, panel_rows_, task.head_dim}, round_up(panel_rows_, kLanes),
                          scratch_.columns, factor, scratch_.widened, queries(head));
    }
    const Source from{task.q, panel_rows_, rows_ - panel_rows_, task.head_dim};
    float* to = queries(head) + round_up(panel_rows_, kLanes) * scratch_.columns;
    for (std::int64_t row = 0; row < from.count; ++row) {
      load_query(task.dtype, from, row, factor, to + row * scratch_.columns);
    }
  }

  void load_query(DType dtype, const Source& from, std::int64_t row, float factor, float* to) const {
    switch (dtype) {
      case DType::float16: return load_source_row<float16>(from, row, scratch_.columns, factor, to);
      case DType::bfloat16: return load_source_row<bfloat16>(from, row, scratch_.columns, factor, to);
      default: return load_source_row<float>(from, row, scratch_.columns, factor, to);
    }
  }

  /// Keys [key, key + count) with every head: all products with K, then all probabilities, then all products with V.
  /// Heads take turns every few keys: they lie side by side in memory, so that rows are read as they lie.
  void block(std::int64_t key, std::int64_t count) {
    for (std::int64_t head = 0; head < heads(); ++head) find_visible(head, key, count);
    const std::int64_t step = first_.row_invariant && rows_ == 1 ? kFewQueriesKeys : kStep;  // one row: more sums
    for_each_step(count, step, [&](std::int64_t head, std::int64_t first, std::int64_t last) {
      first = std::max(first, round_down(any_begin(head), step));
      last = std::min(last, scratch_.any_end[head]);
      if (first < last) multiply_keys(head, key, first, last);
    });
    for (std::int64_t head = 0; head < heads(); ++head) softmax(head, key, count);
    if (first_.row_invariant) std::fill_n(scratch_.block_output, heads() * rows_ * scratch_.columns_v, 0.0F);
    for_each_step(count, kStep, [&](std::int64_t head, std::int64_t first, std::int64_t last) {
      first = std::max(first, any_begin(head));
      last = std::min(last, scratch_.any_end[head]);
      if (first < last) multiply_values(head, key, first, last);
    });
    if (!first_.row_invariant) return;
    for (std::int64_t head = 0; head < heads(); ++head) add_block(head);
  }

  /// What values of the block at hand are added to.
  float* output_of(std::int64_t head) const {
    return first_.row_invariant ? scratch_.block_output + head * rows_ * scratch_.columns_v : state(head).output;
  }

  /// O = rescale O + P V of the block, in the order of a tile's.
  void add_block(std::int64_t head) const {
    if (any_begin(head) >= scratch_.any_end[head]) return;
    const Floats d;
    float* HWY_RESTRICT output = state(head).output;
    const float* HWY_RESTRICT block = output_of(head);
    for (std::int64_t row = 0; row < rows_; ++row) {
      const Vec rescale = hn::Set(d, scratch_.block_rescale[head * rows_ + row]);
      for (std::int64_t at = row * scratch_.columns_v; at < (row + 1) * scratch_.columns_v; at += kLanes) {
        hn::StoreU(hn::MulAdd(hn::LoadU(d, output + at), rescale, hn::LoadU(d, block + at)), d, output + at);
      }
    }
  }
  std::int64_t any_begin(std::int64_t head) const { return scratch_.any_begin[head]; }

  /// Calls use(head, first, last) for a few keys of the block and every head, then the next few keys.
  template <class Use>
  HWY_INLINE void for_each_step(std::int64_t count, std::int64_t step, const Use& use) {
    for (std::int64_t first = 0; first < count; first += step) {
      for (std::int64_t head = 0; head < heads(); ++head) use(head, first, std::min(first + step, count));
    }
  }

  /// The keys of a block that each row sees, counted from `key`, and those that any does.
  void find_visible(std::int64_t head, std::int64_t key, std::int64_t count) {
    const ForwardTask& task = head_task(head);
    std::int64_t any_begin = count;
    std::int64_t any_end = 0;
    for (std::int64_t row = 0; row < rows_; ++row) {
      const bool shown = task.blocks.visible(row / task.q.group, key);
      const std::int64_t first = std::clamp<std::int64_t>(scratch_.visible_begin[row] - key, 0, count);
      const std::int64_t last = shown ? std::clamp<std::int64_t>(scratch_.visible_end[row] - key, 0, count) : 0;
      scratch_.begin[head * rows_ + row] = first;
      scratch_.end[head * rows_ + row] = std::max(first, last);
      if (first >= last) continue;
      any_begin = std::min(any_begin, first);
      any_end = std::max(any_end, last);
    }
    scratch_.any_begin[head] = any_begin;
    scratch_.any_end[head] = any_end;
  }

  /// S = Q K^T over keys [first, last) of the block that begins at `key`.
  void multiply_keys(std::int64_t head, std::int64_t key, std::int64_t first, std::int64_t last) {
    const ForwardTask& task = head_task(head);
    const StoredTile stored{task.stored, task.dtype, key + first, last - first, scratch_.converted};
    const ConstRows keys = stored.keys(task.k, task.head_dim);
    if (!fetches_ahead_) prefetch_step(task, task.k, key + last, task.head_dim);
    const bool widen = panel_rows_ > 0 || task.row_invariant;
    with_rows({keys, stored.first(), last - first, task.head_dim}, scratch_.columns, widen, [&](const auto& rows) {
      float* to = scores(head) + first;
      if constexpr (std::is_same_v<std::decay_t<decltype(rows)>, BlockRows<float>>) {
        for (std::int64_t row = 0; row < panel_rows_; row += kLanes) {
          multiply_panel_queries(queries(head) + row * scratch_.columns, task.head_dim, rows, last - first,
                                 to + row * kFewQueriesKeys);
        }
        if (task.row_invariant) {
          if (panel_rows_ > 0) return;
          return with_row_group(rows_, [&](auto own) {
            multiply_across_keys<own, own == 1 ? 4 : 1>(queries(head), scratch_.columns, rows, last - first, to);
          });
        }
      }
      multiply_queries(queries(head) + round_up(panel_rows_, kLanes) * scratch_.columns, rows_ - panel_rows_,
                       scratch_.columns, rows, last - first, to + panel_rows_ * kFewQueriesKeys);
    });
  }

  /// O += P V over the same.
  void multiply_values(std::int64_t head, std::int64_t key, std::int64_t first, std::int64_t last) {
    const ForwardTask& task = head_task(head);
    const StoredTile stored{task.stored, task.dtype, key + first, last - first, scratch_.converted};
    const ConstRows values = stored.values(task.v, task.head_dim_v);
    if (!fetches_ahead_) prefetch_step(task, task.v, key + last, task.head_dim_v);
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
      const std::int64_t ahead = fetches_ahead_ ? kStep * from.rows.position_stride : 0;
      return use(BlockRows<T>{from.row<T>(0), from.rows.position_stride, ahead});
    }
    for (std::int64_t i = 0; i < from.count; ++i) {
      load_source_row<T>(from, i, columns, 1.0F, scratch_.widened + i * columns);
    }
    use(BlockRows<float>{scratch_.widened, columns});
  }

  /// Online softmax: P in place of S over the keys that each row sees. All rows in each pass, so that the sums and
  /// maxima across the lanes of one row wait for nothing of another.
  void softmax(std::int64_t head, std::int64_t key, std::int64_t count) {
    if (any_begin(head) >= scratch_.any_end[head]) return;
    const ForwardTask& task = head_task(head);
    const FewQueriesState of_head = state(head);
    const float factor = task.terms.given() ? 1.0F : task.score_scale.scale_log2;
    for (std::int64_t row = 0; row < rows_; ++row) scratch_.top[row] = top_of_row(head, row, key, count) * factor;
    raise_maxima(of_head);
    if (task.row_invariant) std::copy_n(scratch_.rescale, rows_, scratch_.block_rescale + head * rows_);
    KeptKeys kept(scratch_.kept);
    if (task.dropout.given) kept.draw(task.dropout, task.q.group, 0, rows_, key, key + count);
    for (std::int64_t row = 0; row < rows_; ++row) {
      const std::int64_t first = begin_of(head)[row];
      const std::int64_t last = end_of(head)[row];
      if (first >= last) continue;
      const Floats d;
      float* HWY_RESTRICT scores = this->scores(head) + row * kFewQueriesKeys;
      const Vec shift = hn::Set(d, scratch_.shift[row]);
      Vec sum = hn::Zero(d);
      float in_order = 0.0F;  // the sum of a tile, key by key
      for (std::int64_t at = round_down(first, kLanes); at < last; at += kLanes) {
        Vec p = exp2(hn::MulSub(hn::Load(d, scores + at), hn::Set(d, factor), shift));
        sum = hn::Add(sum, p);
        if (task.row_invariant) {
          hn::Store(p, d, scores + at);
          for (std::int64_t i = 0; i < kLanes; ++i) in_order += scores[at + i];
        }
        if (task.dropout.given) p = hn::IfThenElseZero(kept.at(row, at), p);
        hn::Store(p, d, scores + at);
      }
      float& row_sum = of_head.row_sum[row];
      if (task.row_invariant) {
        row_sum = hn::GetLane(hn::MulAdd(hn::Set(d, row_sum), hn::Set(d, scratch_.rescale[row]), hn::Set(d, in_order)));
        continue;
      }
      row_sum = row_sum * scratch_.rescale[row] + hn::GetLane(hn::SumOfLanes(d, sum));
      if (scratch_.rescale[row] != 1.0F)
        rescale_output(scratch_.rescale[row], of_head.output + row * scratch_.columns_v);
    }
  }

  /// The largest score of a row, hidden ones made -inf; with terms the largest exponent.
  float top_of_row(std::int64_t head, std::int64_t row, std::int64_t key, std::int64_t count) {
    const Floats d;
    const ForwardTask& task = head_task(head);
    float* HWY_RESTRICT scores = this->scores(head) + row * kFewQueriesKeys;
    const std::int64_t first = begin_of(head)[row];
    const std::int64_t last = end_of(head)[row];
    if (first >= last) return -kInfinity;
    const std::int64_t from = round_down(first, kLanes);
    if (task.score_scale.capped) cap_scores<1>(scores, from, round_up(last, kLanes), task.score_scale.softcap_scale);
    if (task.terms.given()) add_terms(task, row, key, count, from, last, scores);
    if (task.tree.reaches(key + last)) {
      const std::int64_t position = row / task.q.group;
      for (std::int64_t at = std::max(first, task.tree.begin - key); at < last; ++at) {
        if (!task.tree.shows(position, key + at)) scores[at] = -kInfinity;
      }
    }
    const Vec positions = hn::Iota(d, 0.0F);
    Vec top = hn::Set(d, -kInfinity);
    for (std::int64_t at = from; at < last; at += kLanes) {
      Vec s = hn::Load(d, scores + at);
      if (at < first || at + kLanes > last) {
        const auto seen = hn::And(hn::Ge(positions, hn::Set(d, static_cast<float>(first - at))),
                                  hn::Lt(positions, hn::Set(d, static_cast<float>(last - at))));
        s = hn::IfThenElse(seen, s, hn::Set(d, -kInfinity));
        hn::Store(s, d, scores + at);
      }
      top = hn::Max(top, s);
    }
    return hn::GetLane(hn::MaxOfLanes(d, top));
  }

  /// Rows across the lanes: their maxima with the block's, and what these make of the exponents and of earlier sums.
  void raise_maxima(const FewQueriesState& of_head) const {
    const Floats d;
    for (std::int64_t row = 0; row < rows_; row += kLanes) {
      const Vec old_max = hn::LoadU(d, of_head.row_max + row);
      const Vec top = hn::Load(d, scratch_.top + row);
      const Vec new_max = hn::IfThenElse(hn::Gt(top, old_max), top, old_max);  // NaN is left to the sum
      const Vec shift = shift_of(new_max);
      hn::StoreU(new_max, d, of_head.row_max + row);
      hn::Store(shift, d, scratch_.shift + row);
      hn::Store(exp2(hn::Sub(old_max, shift)), d, scratch_.rescale + row);
    }
  }

  void rescale_output(float factor, float* HWY_RESTRICT output) const {
    const Floats d;
    for (std::int64_t c = 0; c < scratch_.columns_v; c += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, output + c), hn::Set(d, factor)), d, output + c);
    }
  }

  /// Products -> base-2 exponents with ALiBi and bias, from key `from` of the block on.
  static void add_terms(const ForwardTask& task, std::int64_t row, std::int64_t key, std::int64_t count,
                        std::int64_t from, std::int64_t last, float* scores) {
    const TermsPanel panel{.terms = task.terms,
                           .diagonal = task.visible.diagonal,
                           .group = task.q.group,
                           .row = row,
                           .rows = 1,
                           .key_begin = key,
                           .keys = count,
                           .more_rows = 0};
    add_row_terms(panel, task.score_scale.scale_log2, from, last, scores);
  }

  /// Keys that every row of a group sees are added together, the others row by row: a hidden value is never read.
  /// `values` are those of keys [first, last) of the block that begins at `key`.
  template <class T>
  HWY_INLINE void add_visible_values(std::int64_t head, const BlockRows<T>& values, std::int64_t key,
                                     std::int64_t first, std::int64_t last) {
    std::int64_t row = 0;
    if constexpr (kManyRegisters) {
      for (; row + 8 <= rows_; row += 8) add_group<8>(head, row, values, key, first, last);
    }
    for (; row + kRowGroup <= rows_; row += kRowGroup) add_group<kRowGroup>(head, row, values, key, first, last);
    if (kRowGroup > 2 && row + 2 <= rows_) {
      add_group<2>(head, row, values, key, first, last);
      row += 2;
    }
    if (row < rows_) add_group<1>(head, row, values, key, first, last);
  }

  template <int kRows, class T>
  HWY_INLINE void add_group(std::int64_t head, std::int64_t row, const BlockRows<T>& block, std::int64_t key,
                            std::int64_t first, std::int64_t last) {
    const BlockRows<T> values{block.data, block.stride, row == 0 ? block.ahead : 0};  // fetched once
    const float* p = scores(head) + row * kFewQueriesKeys + first;
    float* output = output_of(head) + row * scratch_.columns_v;
    std::int64_t begin[kRows];  // visible keys of each row, counted from `first`
    std::int64_t end[kRows];
    for (int i = 0; i < kRows; ++i) {
      begin[i] = std::clamp(begin_of(head)[row + i], first, last) - first;
      end[i] = std::clamp(end_of(head)[row + i], first, last) - first;
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

  const FewQueriesTask& task_;
  const ForwardTask& first_;
  const std::int64_t rows_;
  const std::int64_t panel_rows_;  // of them, those whose scores are made with queries across the lanes
  const bool fetches_ahead_;       // rows of the next step with those of this one
  const FewQueriesScratch scratch_;
};

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_FEW_QUERIES_INL_H_
