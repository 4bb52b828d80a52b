// SPDX-License-Identifier: Apache-2.0
// Blocks of K and V in 8 bits, from shared memory to shared memory as 16-bit elements.
#pragma once

#include "kernels/math/stored.h"
#include "kernels/sm80/forward/tile_work.h"

namespace strobe::sm80::forward {

/// The blocks of K, or of V, that a group of warps converts. A warp takes 8 rows by 64 columns at a time. Four
/// lanes share a row of 16-byte chunks, and of eight neighbouring lanes the rows are r and r ^ 5: in the stored tile as
/// in the converted one, whose chunks are twice as many, no two of them meet in a bank.
template <Config C, typename Stored, typename Wide>
class StoredBlocks {
 public:
  /// Row r of the sequence has the scale at r >> shift.
  __device__ __forceinline__ StoredBlocks(const float* scales, int shift)
      : scales_(scales), shift_(shift), first_row_(first_row()) {}

  /// Fetches the scales of the block that is converted next, whose first key is `first`, of `used`.
  __device__ __forceinline__ void fetch_scales(int first, int used) {
#pragma unroll
    for (int i = 0; i < kAtomsPerWarp; ++i) {
      const int row = row_of(i);
      const int key = first + row;
      scale_[i] = is_row(row) && key >= 0 && key < used ? ptx::ld_global_nc(scales_ + (key >> shift_)) : 0.0F;
    }
  }

  /// Converts the elements of the stage at `stored` to 16 bits at `wide`.
  __device__ __forceinline__ void convert(const unsigned char* stored, unsigned char* wide) const {
#pragma unroll
    for (int first = 0; first < kPiecesPerLane; first += kPiecesAtOnce) {
      uint4 pieces[kPiecesAtOnce];
#pragma unroll
      for (int i = 0; i < kPiecesAtOnce; ++i) {
        if (exists(first + i)) {
          pieces[i] =
              *reinterpret_cast<const uint4*>(stored + chunk_offset<Stored>(row_of_piece(first + i), chunk(first + i)));
        }
      }
#pragma unroll
      for (int i = 0; i < kPiecesAtOnce; ++i) {
        if (exists(first + i)) {
          store(wide, row_of_piece(first + i), chunk(first + i), pieces[i], scale_[(first + i) / kColumnBlocks]);
        }
      }
    }
  }

 private:
  static constexpr int kPieces = 4;  // of 16 bytes, in 64 columns
  static constexpr int kAtomRows = 8;
  static constexpr int kColumns = Wide::kPanels * Wide::kPanelColumns;
  static constexpr int kColumnBlocks = (kColumns + 63) / 64;
  static constexpr int kAtoms = C.block_n / kAtomRows;
  static constexpr int kAtomsPerWarp = (kAtoms + row_warps(C) - 1) / row_warps(C);
  static constexpr int kPiecesPerLane = kAtomsPerWarp * kColumnBlocks;
  // Some are read before the first is written, as the compiler cannot know that they lie apart.
  static constexpr int kMostAtOnce = kColumnBlocks > 2 ? 1 : C.chunks_at_once;
  static constexpr int kPiecesAtOnce = kPiecesPerLane % kMostAtOnce == 0 ? kMostAtOnce : 1;

  /// All lanes call it together, as warp_of_cta() wants it.
  __device__ __forceinline__ static int first_row() {
    const int group = threadIdx.x % kWarpSize / kPieces;
    const int row = group / 2 ^ (group % 2 == 0 ? 0 : 5);
    return (row_warps(C) == 1 ? 0 : warp_of_cta() % row_warps(C)) * kAtomRows + row;
  }

  /// The block's row that this lane converts as its i-th.
  __device__ __forceinline__ int row_of(int i) const { return first_row_ + i * row_warps(C) * kAtomRows; }
  __device__ __forceinline__ static bool is_row(int row) { return kAtoms % row_warps(C) == 0 || row < C.block_n; }

  // Of a lane's pieces, row by row.
  __device__ __forceinline__ int row_of_piece(int i) const { return row_of(i / kColumnBlocks); }
  __device__ __forceinline__ static int chunk(int i) {
    return kPieces * (i % kColumnBlocks) + static_cast<int>(threadIdx.x % kPieces);
  }
  __device__ __forceinline__ bool exists(int i) const {
    const bool whole = (i % kColumnBlocks + 1) * kPieces * kChunkBytes <= kColumns;
    return (whole || chunk(i) * kChunkBytes < kColumns) && is_row(row_of_piece(i));
  }

  template <typename Tile>
  __device__ __forceinline__ static int chunk_offset(int row, int chunk) {
    return Tile::offset(row, chunk % Tile::kChunks) + chunk / Tile::kChunks * Tile::kPanelBytes;
  }

  /// The stored chunk of that number, as two chunks.
  __device__ __forceinline__ static void store(unsigned char* wide, int row, int chunk, const uint4& elements,
                                               float scale) {
    const uint2 a = to_pairs<C.stored, C.rule.element>(elements.x, scale);
    const uint2 b = to_pairs<C.stored, C.rule.element>(elements.y, scale);
    *reinterpret_cast<uint4*>(wide + chunk_offset<Wide>(row, 2 * chunk)) = {a.x, a.y, b.x, b.y};
    const uint2 c = to_pairs<C.stored, C.rule.element>(elements.z, scale);
    const uint2 d = to_pairs<C.stored, C.rule.element>(elements.w, scale);
    *reinterpret_cast<uint4*>(wide + chunk_offset<Wide>(row, 2 * chunk + 1)) = {c.x, c.y, d.x, d.y};
  }

  const float* scales_;
  int shift_;
  int first_row_;
  float scale_[kAtomsPerWarp];  // of the lane's rows of the next block
};

}  // namespace strobe::sm80::forward
