// SPDX-License-Identifier: Apache-2.0
// Tiles of the quantiser between global memory, shared memory and registers: rows come in whole, each thread holds a
// row or half of one, and 8-bit elements leave by way of the shared memory that the tile came in.
#pragma once

#include "kernels/auxiliary/source.h"
#include "kernels/ptx/async_copy.h"

namespace strobe::auxiliary {

constexpr int kHalfSlice = kSliceColumns / 2;

/// Where a column's numbers of so many bytes lie: slices 16 bytes further apart than they are long, since the threads
/// of a row read the same place of each at once.
template <QuantizeConfig C, int bytes>
constexpr int spread(int column) {
  const bool shares_rows = row_slices(C.head_dim > C.head_dim_v ? C.head_dim : C.head_dim_v) > 1;
  return column + (shares_rows ? column / kSliceColumns * (16 / bytes) : 0);
}

/// The places of one tile of rows of head_dim columns.
template <QuantizeConfig C, int head_dim>
struct TileShape {
  static constexpr int kHeadDim = head_dim;
  static constexpr int kRows = tile_rows(C);
  static constexpr int kSlices = row_slices(head_dim);
  static constexpr int kThreads = kRows * kSlices;
  static constexpr int kColumns = head_dim < kSliceColumns ? head_dim : kSliceColumns;  // of a slice
  static constexpr int kLastSlice = (head_dim - 1) / kSliceColumns;                     // that has columns
  static constexpr int kLastColumns = head_dim - kLastSlice * kSliceColumns;
  static constexpr int kSliceBytes = slice_bytes(C, head_dim);
  static constexpr int kVectors = head_dim / kVector<C.source>;  // of a row
  static constexpr int kSliceVectors = kColumns / kVector<C.source>;
  static constexpr int kValuePitch = kRows + 8;  // bytes from column to column of a tile of V

  // Slices of 128 bytes and more begin at the same bank: parts of them lie in an order that depends on the slice.
  static constexpr bool kSwizzled = kSliceBytes >= 128;

  /// Where 16 bytes of a slice lie in a tile.
  static constexpr int vector_at(int slice, int vector) {
    return slice * kSliceBytes + (kSwizzled ? vector ^ (slice & 7) : vector) * 16;
  }
  /// What parts of a slice's elements are swizzled by: the bit that tells halves of a row apart is the third, as
  /// threads write parts 4 apart of one slice at once or the same parts of neighbours.
  static constexpr int part_key(int slice) {
    if constexpr (!kSwizzled) return 0;
    if constexpr (kSlices == 1) return slice & 15;
    const int low = kSlices == 2 ? (slice >> 1 & 1) | (slice & 1) << 2 : (slice & 1) | (slice & 2) << 1;
    return low | (slice >> 2 & 1) << 1 | (slice & 8);
  }
  /// Where 8 bytes of its elements lie, when those have taken its place.
  static constexpr int part_at(int slice, int part) { return slice * kSliceBytes + (part ^ part_key(slice)) * 8; }
  /// Where a column of V lies; threads of a warp write to two or four of them at once.
  static constexpr int column_at(int column) { return column * kValuePitch + column / kHalfSlice * 16; }
};

/// One tile: rows of one head, from `first` of its sequence on.
struct TilePlace {
  int batch, head, first;
  int rows;   // packed variants: of the sequence
  int start;  // of the sequence in a packed tensor, or 0
};

/// The place of `tensor`'s tile at row `first`.
template <QuantizeConfig C>
__device__ __forceinline__ TilePlace place_of(const QuantizedTensor& tensor, int batch, int head, int first,
                                              int sequences) {
  TilePlace place{batch, head, first, 0, 0};
  if constexpr (C.packed) {
    place.rows = tensor.rows;
    if (tensor.cu_seqlens != nullptr && batch < sequences) {
      const SequenceSpan span = packed_span(tensor.cu_seqlens, batch, tensor.total, tensor.rows);
      place.rows = span.rows;
      place.start = span.start;
    }
  }
  return place;
}

/// Rows of the place's sequence.
template <QuantizeConfig C>
__device__ __forceinline__ int rows_of(const QuantizedTensor& tensor, const TilePlace& place) {
  return C.packed ? place.rows : tensor.rows;
}

/// threadIdx.x, which the compiler must not know: it would keep addresses that depend on it from tile to tile, in
/// registers that rows need.
__device__ __forceinline__ int thread_of_tile() {
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  return thread;
}

/// What this thread does in a tile.
template <class Shape>
struct Slice {
  int thread = thread_of_tile();
  int row = thread / Shape::kSlices;
  int index = thread % Shape::kSlices;

  __device__ bool active() const { return thread < Shape::kThreads; }
  /// Whether the row has column c of this slice.
  __device__ bool has(int c) const {
    if constexpr (Shape::kSlices * Shape::kColumns == Shape::kHeadDim) return true;
    return index < Shape::kLastSlice || (index == Shape::kLastSlice && c < Shape::kLastColumns);
  }
};

/// The columns that a thread's numbers are of, and what is left to multiply them by.
struct Halves {
  int first[2];     // of x[0] and of x[kHalfSlice]
  bool negated[2];  // numbers that are to change their sign

  /// Those of a slice in its order.
  static __device__ __forceinline__ Halves in_order(int slice) {
    return {{slice * kSliceColumns, slice * kSliceColumns + kHalfSlice}, {false, false}};
  }
};

/// How the threads of a block share `parts` parts of each of `rows` rows. On regular trips a thread keeps its part, and
/// comes to a row kStep further.
template <int threads, int rows, int parts>
struct ThreadTrips {
  static constexpr bool kRegular = threads % parts == 0 && (rows % (threads / parts) == 0 || threads / parts >= rows);
  static constexpr int kStep = kRegular ? threads / parts : 1;
  static constexpr int kCount = (rows + kStep - 1) / kStep;

  /// step(row, part, trip, address, exists): the row and part of the first trip; where this trip's row begins, counted
  /// from `first`; whether it is less than `limit`.
  template <class Byte, class Step>
  static __device__ __forceinline__ void regular(int limit, Byte* first, long long row_bytes, const Step& step) {
    const int part = threadIdx.x % parts;
    const int row = threadIdx.x / parts;
    if (kStep > rows && row >= rows) return;
    Byte* at = first + row * row_bytes;
    const long long step_bytes = kStep * row_bytes;
    limit -= row;
#pragma unroll
    for (int trip = 0; trip < kCount; ++trip) {
      step(row, part, trip, at, trip * kStep < limit);
      at += step_bytes;
    }
  }

  template <class Step>
  static __device__ __forceinline__ void any(const Step& step) {
    for (int i = threadIdx.x; i < rows * parts; i += threads) step(i / parts, i % parts);
  }
};

template <bool aligned, Element source>
__device__ __forceinline__ void copy_vector(unsigned char* to, const char* from, bool is_there) {
  if constexpr (aligned) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    ptx::cp_async_16_alone(address, from, is_there ? 16 : 0);
  } else {
    *reinterpret_cast<uint4*>(to) = is_there ? load_vector<source, false>(from, 0) : make_uint4(0, 0, 0, 0);
  }
}

/// Starts to load rows from `first` on to `tile`; zeros beyond the last.
template <QuantizeConfig C, int head_dim>
__device__ __forceinline__ void load_tile(const QuantizedTensor& tensor, const TilePlace& at, unsigned char* tile) {
  using Shape = TileShape<C, head_dim>;
  using Parts = ThreadTrips<quantize_threads(C), Shape::kRows, Shape::kVectors>;
  const long long row_bytes = tensor.from_row * bytes_of(C.source);
  const char* from = static_cast<const char*>(tensor.from) + (at.start + at.first) * row_bytes +
                     (at.batch * tensor.from_batch + at.head * tensor.from_head) * bytes_of(C.source);
  const int limit = rows_of<C>(tensor, at) - at.first;
  const auto place = [&](int row, int vector) {
    return tile + Shape::vector_at(row * Shape::kSlices + vector / Shape::kSliceVectors, vector % Shape::kSliceVectors);
  };
  if constexpr (Parts::kRegular && Parts::kStep * Shape::kSlices % 8 == 0) {
    Parts::regular(limit, from, row_bytes, [&](int row, int vector, int trip, const char* row_from, bool is_there) {
      copy_vector<C.aligned, C.source>(place(row, vector) + trip * Parts::kStep * Shape::kSlices * Shape::kSliceBytes,
                                       row_from + vector * 16, is_there);
    });
  } else {
    Parts::any([&](int row, int vector) {
      copy_vector<C.aligned, C.source>(place(row, vector), from + row * row_bytes + vector * 16, row < limit);
    });
  }
}

/// Ends what wait_for_tiles() counts as one tile.
__device__ __forceinline__ void commit_tile() { ptx::cp_async_commit_group(); }

/// Waits until all but the last `left` tiles that were started are there, for all threads.
template <int left>
__device__ __forceinline__ void wait_for_tiles() {
  ptx::cp_async_wait_group<left>();
  __syncthreads();
}

/// What becomes of half a slice: x * factor + zero, rounded, where all bits of `keep` are set, or zeros where none is.
struct Rounding {
  float factor;
  float zero;  // -0, which changes nothing, or +0, so that a negative factor leaves zeros positive
  unsigned keep;

  static __device__ __forceinline__ Rounding of(float inverse_scale, bool negated, bool keep) {
    return {negated ? -inverse_scale : inverse_scale, negated ? 0.0F : -0.0F, keep ? ~0U : 0U};
  }
};

/// Four numbers as bytes: the first is the lowest. `signed_zeros`: Rounding::zero may be +0.
template <bool e4m3, bool signed_zeros>
__device__ __forceinline__ unsigned round_four(const float* x, const Rounding& rounding) {
  if constexpr (e4m3) {
    float scaled[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scaled[i] = signed_zeros ? __fmaf_rn(x[i], rounding.factor, rounding.zero) : x[i] * rounding.factor;
    }
    return ptx::cvt_e4m3x4(scaled[0], scaled[1], scaled[2], scaled[3]) & rounding.keep;
  } else {
    constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    unsigned rounded[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[i] = __float_as_uint(__fmaf_rn(x[i], rounding.factor, kRound));
    return __byte_perm(__byte_perm(rounded[0], rounded[1], 0x0040), __byte_perm(rounded[2], rounded[3], 0x0040),
                       0x5410) &
           rounding.keep;
  }
}

/// Rounds this thread's numbers of a row of Q or K into the shared memory that the row came in.
template <class Shape, bool e4m3>
__device__ __forceinline__ void stage_row(const float (&x)[Shape::kColumns], const Halves& halves,
                                          const Rounding (&rounding)[2], const Slice<Shape>& slice,
                                          unsigned char* tile) {
  constexpr bool kSigned = Shape::kSlices > 1;
#pragma unroll
  for (int c = 0; c < Shape::kColumns; c += 8) {
    const int half = c / kHalfSlice;
    const int own = slice.row * Shape::kSlices + halves.first[half] / kSliceColumns;
    const int part = halves.first[half] % kSliceColumns / 8 ^ c % kHalfSlice / 8;
    *reinterpret_cast<uint2*>(tile + Shape::part_at(own, part)) = make_uint2(
        round_four<e4m3, kSigned>(&x[c], rounding[half]), round_four<e4m3, kSigned>(&x[c + 4], rounding[half]));
  }
}

/// Rounds this thread's numbers of a row of V into their place in a tile of columns.
template <class Shape, bool e4m3>
__device__ __forceinline__ void stage_values(const float (&x)[Shape::kColumns], const Halves& halves,
                                             const Rounding (&rounding)[2], const Slice<Shape>& slice,
                                             unsigned char* tile) {
#pragma unroll
  for (int c = 0; c < Shape::kColumns; c += 4) {
    const int half = c / kHalfSlice;
    unsigned char* const to =
        tile + Shape::column_at(halves.first[half]) + c % kHalfSlice * Shape::kValuePitch + value_position(slice.row);
    if (slice.has(c)) {
      const unsigned four = round_four<e4m3, (Shape::kSlices > 1)>(&x[c], rounding[half]);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i * Shape::kValuePitch] = static_cast<unsigned char>(four >> (8 * i));
    }
  }
}

/// 8 bytes of a row that need not lie at a multiple of them.
template <bool aligned>
__device__ __forceinline__ void store_8(unsigned char* to, const uint2& bytes) {
  if constexpr (aligned) {
    *reinterpret_cast<uint2*>(to) = bytes;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = static_cast<unsigned char>((i < 4 ? bytes.x : bytes.y) >> (8 * (i % 4)));
  }
}

/// Rows of Q or K from shared memory to where they belong.
template <QuantizeConfig C, int head_dim>
__device__ __forceinline__ void store_rows(const QuantizedTensor& tensor, const TilePlace& at,
                                           const unsigned char* tile) {
  using Shape = TileShape<C, head_dim>;
  using Parts = ThreadTrips<quantize_threads(C), Shape::kRows, head_dim / 8>;
  constexpr int kSliceParts = Shape::kColumns / 8;
  unsigned char* const to =
      tensor.to + at.batch * tensor.to_batch + at.head * tensor.to_head + (at.start + at.first) * tensor.to_row;
  const int limit = rows_of<C>(tensor, at) - at.first;
  const auto place = [&](int row, int part) {
    return tile + Shape::part_at(row * Shape::kSlices + part / kSliceParts, part % kSliceParts);
  };
  const auto store = [&](const unsigned char* from, unsigned char* part_to, bool is_there) {
    if (is_there) store_8<C.aligned>(part_to, *reinterpret_cast<const uint2*>(from));
  };
  if constexpr (Parts::kRegular && Parts::kStep * Shape::kSlices % 16 == 0) {
    Parts::regular(limit, to, tensor.to_row, [&](int row, int part, int trip, unsigned char* row_to, bool is_there) {
      store(place(row, part) + trip * Parts::kStep * Shape::kSlices * Shape::kSliceBytes, row_to + part * 8, is_there);
    });
  } else {
    Parts::any([&](int row, int part) { store(place(row, part), to + row * tensor.to_row + part * 8, row < limit); });
  }
}

/// Columns of V from shared memory to where they belong, padding included.
template <QuantizeConfig C, int head_dim>
__device__ __forceinline__ void store_values(const QuantizedTensor& tensor, const TilePlace& place,
                                             const unsigned char* tile) {
  using Shape = TileShape<C, head_dim>;
  using Parts = ThreadTrips<quantize_threads(C), head_dim, Shape::kRows / 8>;
  unsigned char* to = tensor.to + place.batch * tensor.to_batch + place.head * tensor.to_head + place.first;
  if constexpr (C.packed) {
    if (tensor.cu_seqlens != nullptr) to += packed_value_start(place.start, place.batch);
  }
  const int keys = (rows_of<C>(tensor, place) + kValueKeys - 1) / kValueKeys * kValueKeys - place.first;
  const auto store = [&](int at, unsigned char* column, int part) {
    if (part * 8 < keys) store_8<C.aligned>(column + part * 8, *reinterpret_cast<const uint2*>(tile + at + part * 8));
  };
  if constexpr (Parts::kRegular && kHalfSlice % Parts::kStep == 0) {
    Parts::regular(head_dim, to, tensor.to_row, [&](int column, int part, int trip, unsigned char* column_to, bool) {
      store(column * Shape::kValuePitch + Shape::column_at(trip * Parts::kStep), column_to, part);
    });
  } else {
    Parts::any([&](int column, int part) { store(Shape::column_at(column), to + column * tensor.to_row, part); });
  }
}

}  // namespace strobe::auxiliary
