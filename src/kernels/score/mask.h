// SPDX-License-Identifier: Apache-2.0
// Which keys a row sees, and which key blocks need looking at element by element.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/score/fragment.h"
#include "kernels/score/modifiers/tree_mask.h"
#include "kernels/score/rule.h"
#include "kernels/sequence/visible_keys.h"

namespace strobe::score {

/// The visible keys of the rows of one tile of scores, block_n keys wide. The second row of a thread is `query_step`
/// queries after its first. Without `by_words` each score's column is compared: more instructions, fewer registers.
template <ScoreRule R, int block_n, int query_step, bool by_words = true>
class Mask {
 public:
  using Tree = TreeRows<R, query_step>;

  /// What the tile's first and last row see, and this thread's own. All are of `sequence`.
  __device__ __forceinline__ Mask(const sequence::KeyRange& first_row, const sequence::KeyRange& last_row,
                                  const sequence::KeyRange (&rows)[kRowsPerThread], const sequence::Sequence& sequence,
                                  const Tree& tree)
      : first_full_((last_row.first + block_n - 1) / block_n),
        last_full_(first_tree_block<R>(sequence, block_n, (first_row.last + 1) / block_n)),
        tree_(tree) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      rows_[r] = rows[r];
    }
  }

  // Blocks in [first_full, last_full) are visible to all rows.
  __device__ __forceinline__ int first_full() const { return first_full_; }
  __device__ __forceinline__ int last_full() const { return last_full_; }

  __device__ __forceinline__ bool needed(int n) const { return n >= last_full_ || (R.mask_left && n < first_full_); }

  /// Scores of keys that a row does not see become -inf, whatever they were.
  __device__ __forceinline__ void apply(float (&s)[block_n / 2], int n) const {
    const int first_column = n * block_n + fragment_column();
    if constexpr (by_words) {
      apply_words(s, first_column);
    } else {
      for_each_score(s, [&](float& x, int r, int column) {
        if (column > rows_[r].last - first_column || (R.mask_left && column < rows_[r].first - first_column)) {
          x = kMinusInfinity;
        }
      });
    }
    tree_.apply(s, n * block_n);
  }

 private:
  static constexpr int kWords = (block_n + kColumnsPerWord - 1) / kColumnsPerWord;

  __device__ __forceinline__ void apply_words(float (&s)[block_n / 2], int first_column) const {
    unsigned visible[kRowsPerThread][kWords];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
#pragma unroll
      for (int word = 0; word < kWords; ++word) {
        const int column = first_column + word * kColumnsPerWord;
        visible[r][word] = first_columns(rows_[r].last + 1 - column);
        if constexpr (R.mask_left) {
          visible[r][word] &= ~first_columns(rows_[r].first - column);
        }
      }
    }
    for_each_score(s, [&](float& x, int r, int column) {
      if (!has_column(visible[r][column / kColumnsPerWord], column)) {
        x = kMinusInfinity;
      }
    });
  }

  int first_full_, last_full_;
  sequence::KeyRange rows_[kRowsPerThread];
  Tree tree_;
};

}  // namespace strobe::score
