// Which keys a row sees, and which key blocks need looking at element by element.
#pragma once

#include "kernels/common/forward_params.h"
#include "kernels/common/kernel_config.h"
#include "kernels/common/online_softmax.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/hopper/tile/fragment.h"

namespace strobe::hopper {

/// The visible keys of one warpgroup's rows: row i sees [first(i), last(i)].
template <KernelConfig C>
class Mask {
 public:
  __device__ __forceinline__ Mask(const ForwardParams& params, const TileWork& work, int warpgroup)
      : keys_(work.k.used), diagonal_(work.diagonal), left_(params.mask_left), right_(params.mask_right) {
    const int row = work.row_of(warpgroup);
    // Blocks in [first_full, last_full) are visible to all 64 rows.
    last_full_ = (last(row) + 1) / C.block_n;
    first_full_ = (first(row + kRowsPerWarpgroup - 1) + C.block_n - 1) / C.block_n;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      row_[r] = row + fragment_row(r);
    }
  }

  __device__ __forceinline__ int first_full() const { return first_full_; }
  __device__ __forceinline__ int last_full() const { return last_full_; }

  /// Scores of keys that a row does not see become -inf, whatever they were.
  __device__ __forceinline__ void apply(float (&s)[C.block_n / 2], int n) const {
    const int column = n * C.block_n + fragment_column();
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int last_here = last(row_[r]) - column;
      const int first_here = first(row_[r]) - column;
#pragma unroll
      for (int j = 0; j < C.block_n / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int key = 8 * j + c;
          if (key > last_here || (C.mask_left && key < first_here)) {
            s[4 * j + 2 * r + c] = kMinusInfinity;
          }
        }
      }
    }
  }

 private:
  __device__ __forceinline__ int last(int row) const {
    return C.mask_right ? max(min(keys_ - 1, row + diagonal_ + right_), -1) : keys_ - 1;
  }
  __device__ __forceinline__ int first(int row) const {
    return C.mask_left ? max(0, row + diagonal_ - left_) : 0;
  }

  int keys_, diagonal_, left_, right_;
  int first_full_, last_full_;
  int row_[kRowsPerThread];
};

}  // namespace strobe::hopper
