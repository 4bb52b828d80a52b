// Which keys a row sees, and which key blocks need looking at element by element.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/forward/params.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/score/fragment.h"
#include "kernels/score/online_softmax.h"

namespace strobe::hopper {

/// The visible keys of one warpgroup's rows.
template <KernelConfig C>
class Mask {
 public:
  __device__ __forceinline__ Mask(const ForwardParams& params, const TileWork& work, int warpgroup) {
    const int row = work.row_of(warpgroup);
    last_full_ = (last_key<C>(params, work, row) + 1) / C.block_n;
    first_full_ = (first_key<C>(params, work, row + kRowsPerWarpgroup - 1) + C.block_n - 1) / C.block_n;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      first_[r] = first_key<C>(params, work, row + fragment_row(r));
      last_[r] = last_key<C>(params, work, row + fragment_row(r));
    }
  }

  // Blocks in [first_full, last_full) are visible to all 64 rows.
  __device__ __forceinline__ int first_full() const { return first_full_; }
  __device__ __forceinline__ int last_full() const { return last_full_; }

  __device__ __forceinline__ bool needed(int n) const { return n >= last_full_ || (C.mask_left && n < first_full_); }

  /// Scores of keys that a row does not see become -inf, whatever they were.
  __device__ __forceinline__ void apply(float (&s)[C.block_n / 2], int n) const {
    const int column = n * C.block_n + fragment_column();
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int last_here = last_[r] - column;
      const int first_here = first_[r] - column;
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
  int first_full_, last_full_;
  int first_[kRowsPerThread], last_[kRowsPerThread];
};

}  // namespace strobe::hopper
