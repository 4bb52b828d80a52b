// SPDX-License-Identifier: Apache-2.0
// The backward of kernels/backward-inl.h in bfloat16 with float32 sums. `Unit` is what multiplies: TileUnit or DotUnit.
// As in the forward, queries lie across the lanes: S^T = K Q^T and dP^T = V dO^T make P^T and dS^T, which dV = P^T dO
// and dK = dS^T Q take as rows and dQ^T = K^T dS^T as pairs.
//
// While the vector units differentiate one block of 32 keys and 32 queries, matrix tiles make the products of the
// next. dQ^T is added to float32 sums in the order of the keys, as in the vector kernels.
#if defined(STROBE_CPU_BFLOAT16_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_BFLOAT16_BACKWARD_INL_H_
#undef STROBE_CPU_BFLOAT16_BACKWARD_INL_H_
#else
#define STROBE_CPU_BFLOAT16_BACKWARD_INL_H_
#endif

#include "cpu/bfloat16/attributes-inl.h"
#include "cpu/bfloat16/differentiate-inl.h"
#include "cpu/bfloat16/operands.h"
#include "cpu/bfloat16/pack-inl.h"
#include "cpu/bfloat16/scratch.h"
#include "cpu/kernels/bias_gradient-inl.h"
#include "cpu/kernels/turn.h"

STROBE_BEFORE_BFLOAT16_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

template <class Unit>
class Bfloat16BackwardBlock {
 public:
  Bfloat16BackwardBlock(const BackwardTask& task, std::byte* scratch)
      : task_(task),
        queries_of_(task.queries),
        scratch_(scratch, task.head_dim, task.head_dim_v, task.tiles),
        count_(task.key_end - task.key_begin),
        padded_keys_(round_up(count_, bf16::kBlock)),
        d_(scratch_.columns),
        dv_(scratch_.columns_v),
        bias_gradient_(task.bias_turn, task.key_begin, count_, d_bias_) {}

  void run() {
    [[maybe_unused]] const typename Unit::Session session;
    begin();
    for_each_query_block(task_, queries_of_, bias_gradient_, task_.tiles.block_m * d_,
                         [this](std::int64_t row_begin, std::int64_t row_end, bool is_last_head) {
                           is_last_head_ = is_last_head;
                           query_block(row_begin, row_end);
                         });
    finish();
  }

 private:
  /// Counted from the first key of the block, in whole blocks of kBlock.
  struct KeyRange {
    std::int64_t first = 0;
    std::int64_t last = 0;
  };

  void begin() {
    const Source keys{task_.k, task_.key_begin, count_, task_.head_dim};
    pack_rows<Unit, false>(keys, padded_keys_, d_, scratch_.keys);
    pack_rows<Unit, false>({task_.v, task_.key_begin, count_, task_.head_dim_v}, padded_keys_, dv_, scratch_.values);
    pack_row_pairs<Unit, true>(keys, padded_keys_, d_, scratch_.keys_transposed);
    std::fill_n(scratch_.dk, padded_keys_ * d_, 0.0F);
    std::fill_n(scratch_.dv, padded_keys_ * dv_, 0.0F);
    keys_finite_ = all_finite(scratch_.keys, padded_keys_ * d_);
  }

  /// Query rows [row_begin, row_end) against all keys of the block.
  void query_block(std::int64_t row_begin, std::int64_t row_end) {
    row_begin_ = row_begin;
    rows_ = row_end - row_begin;
    if (text_hides_all()) {
      return pass_hidden_block(task_, queries_of_, bias_gradient_, row_begin, row_end, is_last_head_);
    }
    padded_rows_ = round_up(rows_, bf16::kBlock);
    const Source queries{queries_of_.q, row_begin, rows_, task_.head_dim};
    const Source d_o{queries_of_.d_o, row_begin, rows_, task_.head_dim_v};
    pack_rows<Unit, true>(queries, padded_rows_, d_, scratch_.queries_transposed);
    pack_row_pairs<Unit, false>(queries, padded_rows_, d_, scratch_.queries);
    pack_rows<Unit, true>(d_o, padded_rows_, dv_, scratch_.d_o_transposed);
    pack_row_pairs<Unit, false>(d_o, padded_rows_, dv_, scratch_.d_o);
    load_statistics();
    const bool uniform =
        scratch_.visible_begin[rows_ - 1] <= task_.key_begin && scratch_.visible_end[0] >= task_.key_end;
    // A hidden pair has P = dS = 0, and 0 * NaN is NaN: such a block takes the path that skips hidden pairs.
    const bool hidden_poison =
        (!uniform || has_text_mask()) && !(keys_finite_ && all_finite(scratch_.queries, padded_rows_ * d_) &&
                                           all_finite(scratch_.d_o, padded_rows_ * dv_));
    bias_gradient_.wait(row_end, queries_of_.q.group, task_.tiles.block_m);
    differentiate();
    if (is_last_head_) bias_gradient_.pass(row_begin / task_.tiles.block_m + 1);
    if (hidden_poison) {
      add_visible_key_gradients();
    } else {
      for (std::int64_t key = 0; key < padded_keys_; key += bf16::kBlock) add_key_gradients(key);
    }
    add_query_gradient(hidden_poison);
  }

  bool has_text_mask() const { return queries_of_.expression.has_mask(); }

  /// Every key of the block from the current rows.
  bool text_hides_all() const {
    const ExpressionPanel panel{.row = row_begin_,
                                .rows = rows_,
                                .group = queries_of_.q.group,
                                .key = task_.key_begin,
                                .keys = count_,
                                .along = count_,
                                .width = bf16::kBlock};
    return tile_visibility(queries_of_.expression, panel) == TileVisibility::hidden;
  }

  void load_statistics() {
    for (std::int64_t row = 0; row < rows_; ++row) {
      scratch_.shift[row] = plain_nan(queries_of_.normalizers.shift[row_begin_ + row]);
      scratch_.log2_sum[row] = queries_of_.normalizers.log2_sum[row_begin_ + row];
      scratch_.delta[row] = plain_nan(queries_of_.delta[row_begin_ + row]);
      const std::int64_t position = (row_begin_ + row) / queries_of_.q.group;
      scratch_.visible_begin[row] = task_.visible.begin(position);
      scratch_.visible_end[row] = task_.visible.end(position);
    }
    for (std::int64_t row = rows_; row < padded_rows_; ++row) {  // padding sees no key
      scratch_.shift[row] = kInfinity;
      scratch_.log2_sum[row] = 0.0F;
      scratch_.delta[row] = 0.0F;
      scratch_.visible_begin[row] = task_.visible.keys;
      scratch_.visible_end[row] = scratch_.visible_end[rows_ - 1];
    }
  }

  /// The caller's LSE and dLSE may bring NaN with any bits: Unit::narrow_pairs takes those of arithmetic alone.
  static float plain_nan(float value) { return value == value ? value : std::numeric_limits<float>::quiet_NaN(); }

  /// The keys, in whole blocks, that any of the kBlock queries from `row` on sees.
  KeyRange keys_of(std::int64_t row) const {
    const std::int64_t last_row = std::min(row + bf16::kBlock, rows_) - 1;
    const std::int64_t first = std::clamp<std::int64_t>(scratch_.visible_begin[row] - task_.key_begin, 0, count_);
    const std::int64_t last = std::clamp<std::int64_t>(scratch_.visible_end[last_row] - task_.key_begin, 0, count_);
    if (first >= last) return {};
    return {round_down(first, bf16::kBlock), round_up(last, bf16::kBlock)};
  }

  /// P^T and dS^T of every block of keys and queries that see each other.
  void differentiate() {
    Pairs made;  // waits for its derivative
    for (std::int64_t row = 0; row < padded_rows_; row += bf16::kBlock) {
      const KeyRange keys = keys_of(row);
      if (bias_gradient_.writes_all()) clear_bias_gradient(row, keys);
      for (std::int64_t key = keys.first; key < keys.last; key += bf16::kBlock) {
        const Pairs next = pairs(key, row);
        stage(next, made);
        made = next;
      }
    }
    stage({}, made);
  }

  Pairs pairs(std::int64_t key, std::int64_t row) {
    const std::int64_t begin = task_.key_begin + key;
    half_ = 1 - half_;
    return {.key = key,
            .row = row,
            .given = true,
            .masked = scratch_.visible_begin[row + bf16::kBlock - 1] > begin ||
                      scratch_.visible_end[row] < begin + bf16::kBlock,
            .scores = scratch_.scores + half_ * bf16::kBlock * bf16::kBlock,
            .d_probabilities = scratch_.d_probabilities + half_ * bf16::kBlock * bf16::kBlock};
  }

  void stage(const Pairs& next, const Pairs& made) {
    const std::int64_t steps = (d_ + dv_) / bf16::kTileDepth;
    Differentiation<Unit> derivative(task_, queries_of_, {row_begin_, row_begin_ + rows_}, made, memory_of(made));
    derivative.pace(next.given ? steps : 0);
    const auto between = [&derivative] { derivative.advance(); };
    if (next.given) {
      Unit::multiply({scratch_.keys + next.key * d_, bf16::kTileRows * d_},
                     {scratch_.queries_transposed + next.row * d_, bf16::kTileRows * d_}, d_ / bf16::kTileDepth,
                     {next.scores, bf16::kBlock}, between);
      Unit::multiply({scratch_.values + next.key * dv_, bf16::kTileRows * dv_},
                     {scratch_.d_o_transposed + next.row * dv_, bf16::kTileRows * dv_}, dv_ / bf16::kTileDepth,
                     {next.d_probabilities, bf16::kBlock}, between);
    }
    derivative.finish();
    derivative.add_to_captures(task_.capture_turn);
    if (made.given && bias_gradient_.wanted()) store_bias_gradient(made);
  }

  void store_bias_gradient(const Pairs& made) {
    for (std::int64_t tile = 0; tile < 4; ++tile) {
      float* keys = unsloped_ + tile * bf16::kTileRows * bf16::kTileRows;
      Unit::transpose(keys);
      float* panel = d_bias_ + tile % 2 * bf16::kTileRows * bf16::kBlock + tile / 2 * bf16::kTileRows;
      for (std::int64_t row = 0; row < bf16::kTileRows; ++row) {
        std::copy_n(keys + row * bf16::kTileRows, bf16::kTileRows, panel + row * bf16::kBlock);
      }
    }
    const std::int64_t rows = std::min(bf16::kBlock, rows_ - made.row);
    bias_gradient_.template store<bf16::kBlock>(made.key, row_begin_ + made.row, 0, rows, rows);
  }

  /// Zeros for the keys that none of the kBlock queries from `row` on sees.
  void clear_bias_gradient(std::int64_t row, const KeyRange& seen) const {
    const std::int64_t begin = row_begin_ + row;
    const std::int64_t end = row_begin_ + std::min(row + bf16::kBlock, rows_);
    const std::int64_t last = std::min(seen.last, count_);
    bias_gradient_.store_zeros(0, seen.first, begin, end);
    bias_gradient_.store_zeros(last, count_ - last, begin, end);
  }

  DerivativeMemory memory_of(const Pairs& made) {
    const std::int64_t rows = made.key * padded_rows_ + made.row * bf16::kTileRows;
    return {.probability_rows = scratch_.probability_rows + rows,
            .d_score_rows = scratch_.d_score_rows + rows,
            .row_group_stride = bf16::kTileRows * padded_rows_,
            .d_score_pairs = scratch_.d_score_pairs + made.row * padded_keys_ + made.key * bf16::kTileRows,
            .pair_group_stride = bf16::kTileRows * padded_keys_,
            .unsloped = bias_gradient_.wanted() ? unsloped_ : nullptr,
            .given_scores = task_.capture_turn.own != nullptr ? given_scores_ : nullptr,
            .d_text = task_.capture_turn.own != nullptr ? d_text_ : nullptr,
            .shift = scratch_.shift + made.row,
            .log2_sum = scratch_.log2_sum + made.row,
            .delta = scratch_.delta + made.row,
            .visible_begin = scratch_.visible_begin + made.row,
            .visible_end = scratch_.visible_end + made.row};
  }

  /// dV += P^T dO and dK += dS^T Q for kBlock keys, over the queries that see any of them.
  void add_key_gradients(std::int64_t key) {
    std::int64_t first = 0;
    while (first < padded_rows_ && !sees(first, key)) first += bf16::kBlock;
    std::int64_t last = first;
    while (last < padded_rows_ && sees(last, key)) last += bf16::kBlock;
    const std::int64_t steps = (last - first) / bf16::kTileDepth;
    if (steps == 0) return;
    const std::int64_t rows = key * padded_rows_ + first * bf16::kTileRows;
    add_columns(scratch_.probability_rows + rows, scratch_.d_o + first * bf16::kTileRows, steps, dv_,
                scratch_.dv + key * dv_);
    add_columns(scratch_.d_score_rows + rows, scratch_.queries + first * bf16::kTileRows, steps, d_,
                scratch_.dk + key * d_);
  }

  bool sees(std::int64_t row, std::int64_t key) const {
    const KeyRange keys = keys_of(row);
    return key >= keys.first && key < keys.last;
  }

  /// sums [kBlock, columns] += rows * right, over `steps` blocks of queries.
  void add_columns(const bfloat16* rows, const bfloat16* right, std::int64_t steps, std::int64_t columns, float* sums) {
    for (std::int64_t c = 0; c < columns; c += bf16::kBlock) {
      Unit::multiply_add({rows, bf16::kTileRows * padded_rows_},
                         {right + c * padded_rows_, bf16::kTileRows * padded_rows_}, steps, {sums + c, columns}, [] {});
    }
  }

  /// Adds to dK and dV over visible pairs alone.
  void add_visible_key_gradients() {
    for (std::int64_t row = 0; row < rows_; ++row) {
      const bfloat16* q = row_of(queries_of_.q, row_begin_ + row);
      const bfloat16* d_o = row_of(queries_of_.d_o, row_begin_ + row);
      for_each_visible(row, [&](std::int64_t key) {
        const std::int64_t at = round_down(key, bf16::kTileRows) * padded_rows_ +
                                row / bf16::kTileDepth * bf16::kTileElements +
                                key % bf16::kTileRows * bf16::kTileDepth + row % bf16::kTileDepth;
        add_weighted(to_float(scratch_.probability_rows[at]), d_o, task_.head_dim_v, scratch_.dv + key * dv_, 1);
        add_weighted(to_float(scratch_.d_score_rows[at]), q, task_.head_dim, scratch_.dk + key * d_, 1);
      });
    }
  }

  template <class Visit>
  void for_each_visible(std::int64_t row, const Visit& visit) const {
    const std::int64_t last = std::min(scratch_.visible_end[row], task_.key_end) - task_.key_begin;
    for (std::int64_t key = std::max<std::int64_t>(scratch_.visible_begin[row] - task_.key_begin, 0); key < last;
         ++key) {
      visit(key);
    }
  }

  static const bfloat16* row_of(const ConstRows& rows, std::int64_t row) {
    return static_cast<const bfloat16*>(rows.data) + rows.offset(row);
  }

  /// A factor of 0 is that of a pair that a text's mask hides; NaN is seen.
  void add_weighted(float factor, const bfloat16* from, std::int64_t count, float* to, std::int64_t stride) const {
    if (factor != 0.0F || !has_text_mask()) add_multiple(factor, from, count, to, stride);
  }

  static void add_multiple(float factor, const bfloat16* HWY_RESTRICT from, std::int64_t count, float* HWY_RESTRICT to,
                           std::int64_t stride) {
    for (std::int64_t i = 0; i < count; ++i) to[i * stride] += factor * to_float(from[i]);
  }

  /// dQ^T sums of the block += K^T dS^T, when all key blocks before this one have added theirs.
  void add_query_gradient(bool hidden_poison) {
    std::atomic<std::int32_t>& turn = queries_of_.turn[row_begin_ / task_.tiles.block_m];
    const auto own = static_cast<std::int32_t>(task_.key_begin / task_.tiles.block_n);
    wait_for_turn(turn, own);
    float* sums = queries_of_.dq + row_begin_ * d_;
    for (std::int64_t row = 0; row < padded_rows_; row += bf16::kBlock) {
      hidden_poison ? add_visible_queries(row, sums + row * d_) : add_queries(row, sums + row * d_);
    }
    pass_turn(turn, own, queries_of_.blocks, row_begin_ / queries_of_.q.group, task_.tiles.block_n, task_.visible.keys);
  }

  /// sums [head_dim, kBlock queries] += K^T dS^T.
  void add_queries(std::int64_t row, float* sums) {
    const KeyRange keys = keys_of(row);
    const std::int64_t steps = (keys.last - keys.first) / bf16::kTileDepth;
    if (steps == 0) return;
    const std::int64_t first = keys.first * bf16::kTileRows;
    for (std::int64_t c = 0; c < d_; c += bf16::kBlock) {
      Unit::multiply_add({scratch_.keys_transposed + c * padded_keys_ + first, bf16::kTileRows * padded_keys_},
                         {scratch_.d_score_pairs + row * padded_keys_ + first, bf16::kTileRows * padded_keys_}, steps,
                         {sums + c * bf16::kBlock, bf16::kBlock}, [] {});
    }
  }

  void add_visible_queries(std::int64_t first_row, float* HWY_RESTRICT sums) const {
    for (std::int64_t row = first_row; row < std::min(first_row + bf16::kBlock, rows_); ++row) {
      for_each_visible(row, [&](std::int64_t key) {
        const bfloat16* pairs = scratch_.d_score_pairs + round_down(row, bf16::kTileRows) * padded_keys_ +
                                key / bf16::kTileDepth * bf16::kTileElements;
        const float ds =
            to_float(pairs[key % bf16::kTileDepth / 2 * bf16::kTileDepth + row % bf16::kTileRows * 2 + key % 2]);
        add_weighted(ds, row_of(task_.k, task_.key_begin + key), task_.head_dim, sums + row % bf16::kBlock,
                     bf16::kBlock);
      });
    }
  }

  void finish() {
    for (std::int64_t key = 0; key < count_; ++key) {
      for (std::int64_t c = 0; c < task_.head_dim; ++c) scratch_.row[c] = scratch_.dk[key * d_ + c] * task_.scale;
      store_result(task_.dtype, task_.dk, task_.key_begin + key, scratch_.row, task_.head_dim);
      store_result(task_.dtype, task_.dv, task_.key_begin + key, scratch_.dv + key * dv_, task_.head_dim_v);
    }
    pass_captures(task_.capture_turn);
  }

  const BackwardTask& task_;
  BackwardQueries queries_of_;  // the current head's, or group's
  const bf16::BackwardScratch scratch_;
  const std::int64_t count_;                                   // keys of this block
  const std::int64_t padded_keys_;                             // in whole blocks of kBlock
  const std::int64_t d_;                                       // head_dim likewise
  const std::int64_t dv_;                                      // head_dim_v likewise
  HWY_ALIGN float unsloped_[bf16::kBlock * bf16::kBlock];      // dS of one block of pairs before the softcap's slope
  HWY_ALIGN float given_scores_[bf16::kBlock * bf16::kBlock];  // to a text
  HWY_ALIGN float d_text_[bf16::kBlock * bf16::kBlock];        // dS of what it made of them
  HWY_ALIGN float d_bias_[bf16::kBlock * bf16::kBlock];        // the same as rows of keys
  BiasGradient bias_gradient_;
  bool is_last_head_ = true;
  std::int64_t row_begin_ = 0;  // of the current block of queries
  std::int64_t rows_ = 0;
  std::int64_t padded_rows_ = 0;
  std::int64_t half_ = 0;  // of the score buffers, which the latest pairs took
  bool keys_finite_ = true;
};

/// dQ of a block of rows from the transposed sums of Bfloat16BackwardBlock.
template <class Conversions>
void bfloat16_write_query_gradient(const QueryGradientTask& task) {
  HWY_ALIGN float factors[bf16::kBlock];
  std::fill_n(factors, bf16::kBlock, task.scale);
  for (std::int64_t row = task.row_begin; row < task.row_end; row += bf16::kBlock) {
    const OutputRows to{task.dq, row, std::min(bf16::kBlock, task.row_end - row), task.head_dim};
    store_transposed<Conversions>(task.sums + (row - task.row_begin) * task.row_stride, task.row_stride, factors, to);
  }
}

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_BFLOAT16_NAMESPACE();

#endif  // STROBE_CPU_BFLOAT16_BACKWARD_INL_H_
