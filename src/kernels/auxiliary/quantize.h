// SPDX-License-Identifier: Apache-2.0
// Q, K and V in 8 bits (strobe/quantize.h, docs/eight-bit.md). A block loads two tiles at once, of K and V or two of Q.
// A thread holds up to 64 columns of a row, so that six steps of the Hadamard transform need no other thread, and
// everything up to the rounding happens in registers. Results have the bits of the CPU engine's.
#pragma once

#include "kernels/auxiliary/quantize_rotate.h"
#include "kernels/auxiliary/quantize_shift.h"
#include "kernels/auxiliary/quantize_tile.h"
#include "kernels/auxiliary/quantize_unused.h"

namespace strobe::auxiliary {

constexpr unsigned kNaNBits = 0x7fc00000U;  // larger than the bits of every other magnitude

/// What the threads of a block share besides tiles.
template <QuantizeConfig C>
struct QuantizeShared {
  // Of the rotations of Q and K and of V, where the sources' elements have theirs; none where they are not rotated.
  // spread() as the means are.
  uint4 sign_bits[2][spread<C, bytes_of(C.source)>(kMostColumns) / kVector<C.source>];
  alignas(16) double mean[spread<C, 8>(C.head_dim)];       // for q_shift, times kMeanFactor
  alignas(16) float minus_mean[spread<C, 4>(C.head_dim)];  // with the rotation's signs
  unsigned warp_largest[quantize_threads(C) / 32];
  bool key_finite[tile_rows(C)];  // of the tile of K, for that of V
};

/// Where the c-th number of a slice is whose halves lie the other way round where `swap` is kHalfSlice.
__device__ __forceinline__ int swapped(int c, int swap) { return c < kHalfSlice ? c + swap : c - swap; }

/// The row's slice, widened, with the signs of the rotation. `swap`: kHalfSlice, to read its halves the other way
/// round, or 0.
template <QuantizeConfig C, int head_dim>
__device__ __forceinline__ void read_slice(const unsigned char* tile, const uint4* sign_bits,
                                           const Slice<TileShape<C, head_dim>>& slice, int swap,
                                           float (&x)[TileShape<C, head_dim>::kColumns]) {
  using Shape = TileShape<C, head_dim>;
#pragma unroll
  for (int c = 0; c < Shape::kColumns; c += kVector<C.source>) {
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (slice.has(c)) {
      const int vector = c / kVector<C.source> ^ swap / kVector<C.source>;
      bits = *reinterpret_cast<const uint4*>(tile + Shape::vector_at(slice.thread, vector));
      const int first = spread<C, bytes_of(C.source)>(slice.index * kSliceColumns) + swapped(c, swap);
      const uint4 signs = sign_bits[first / kVector<C.source>];
      bits = make_uint4(bits.x ^ signs.x, bits.y ^ signs.y, bits.z ^ signs.z, bits.w ^ signs.w);
    }
    widen<C.source>(bits, x + c);
  }
}

/// Whether all elements of the row's slice are finite. `at_once`: vectors that are read before the first is looked at.
template <QuantizeConfig C, int head_dim, int at_once>
__device__ __forceinline__ bool slice_is_finite(const unsigned char* tile, const Slice<TileShape<C, head_dim>>& slice) {
  using Shape = TileShape<C, head_dim>;
  constexpr int kChains = at_once > 1 ? 2 : 1;
  unsigned nan[kChains] = {};
#pragma unroll at_once
  for (int c = 0; c < Shape::kColumns; c += kVector<C.source>) {
    if (!slice.has(c)) continue;
    const unsigned char* const vector = tile + Shape::vector_at(slice.thread, c / kVector<C.source>);
    find_not_finite<C.source>(*reinterpret_cast<const uint4*>(vector), nan[c / kVector<C.source> % kChains]);
  }
  return is_zero<C.source>(nan[0]) && is_zero<C.source>(nan[kChains - 1]);
}

/// Whether it is so in all threads of this one's row.
template <int slices>
__device__ __forceinline__ bool all_of_row(bool is) {
  const unsigned row = ((1U << slices) - 1) << (threadIdx.x % 32 / slices * slices);
  return (~__ballot_sync(0xffffffffU, is) & row) == 0;
}

/// Mean and rotation; the bits of the row's largest magnitude, of which `factor` is left out of x.
template <QuantizeConfig C, int head_dim, Role role>
__device__ __forceinline__ unsigned transform(bool rotated, float factor, const QuantizeShared<C>& shared,
                                              const Slice<TileShape<C, head_dim>>& slice, int swap,
                                              float (&x)[TileShape<C, head_dim>::kColumns]) {
  using Shape = TileShape<C, head_dim>;
  if constexpr (role == Role::key) {
#pragma unroll
    for (int c = 0; c < Shape::kColumns; c += 4) {
      if (slice.has(c)) {
        const float4 four = *reinterpret_cast<const float4*>(
            shared.minus_mean + spread<C, 4>(slice.index * kSliceColumns) + swapped(c, swap));
        x[c] += four.x;
        x[c + 1] += four.y;
        x[c + 2] += four.z;
        x[c + 3] += four.w;
      }
    }
  }
  unsigned bits = rotated ? rotate<C, head_dim>(x, slice) : largest_magnitude(x);
  bits = __float_as_uint(__uint_as_float(bits) * factor);
#pragma unroll
  for (int lane_bit = 1; lane_bit < Shape::kSlices; lane_bit *= 2) {
    bits = max(bits, __shfl_xor_sync(0xffffffffU, bits, lane_bit));
  }
  return bits;
}

/// Whether a number of a rotated row tells that all of its elements are finite. The others are asked before they fill
/// the registers.
template <QuantizeConfig C, int head_dim>
constexpr bool numbers_tell() {
  return mixes_all<head_dim>() && C.source != Element::fp32;
}

/// Whether all elements of a rotated row are finite: `any` of its numbers tells it of nearly all rows. The others are
/// read again in a loop, as numbers of the row fill the registers.
template <QuantizeConfig C, int head_dim>
__device__ __forceinline__ bool rotated_is_finite(float any, const unsigned char* tile) {
  using Shape = TileShape<C, head_dim>;
  if (__all_sync(0xffffffffU, fabsf(any) < __uint_as_float(kInfinityBits))) return true;
  return all_of_row<Shape::kSlices>(slice_is_finite<C, head_dim, 1>(tile, Slice<Shape>()));
}

/// The largest of the rows that share this one's scale.
template <QuantizeConfig C, int head_dim>
__device__ __forceinline__ unsigned largest_of_unit(const QuantizedTensor& tensor, const TilePlace& place,
                                                    const Slice<TileShape<C, head_dim>>& slice, unsigned bits,
                                                    QuantizeShared<C>& shared) {
  using Shape = TileShape<C, head_dim>;
  if (tensor.largest != nullptr) {
    const long long head = tensor.shared ? 0 : place.batch * tensor.heads + place.head;
    const int unit = min(place.first + slice.row, max(tensor.rows - 1, 0)) >> tensor.unit_shift;
    return tensor.largest[head * tensor.largest_head + unit];
  }
  if (tensor.unit_shift == 0) return bits;
  const unsigned warp_largest = __reduce_max_sync(0xffffffffU, bits);
  if (threadIdx.x % 32 == 0) shared.warp_largest[threadIdx.x / 32] = warp_largest;
  __syncthreads();
  const int warps = (Shape::kSlices << tensor.unit_shift) / 32;
  const int first = threadIdx.x / 32 / warps * warps;
  for (int i = 0; i < warps; ++i) bits = max(bits, shared.warp_largest[first + i]);
  return bits;
}

/// Finds the largest magnitudes of units that are larger than tiles.
template <QuantizeConfig C, class Shape>
__device__ __forceinline__ void measure(const QuantizedTensor& tensor, const TilePlace& place,
                                        const Slice<Shape>& slice, unsigned bits) {
  const unsigned warp_largest = __reduce_max_sync(0xffffffffU, bits);
  const int first = place.first + slice.row;
  if (threadIdx.x % 32 != 0 || first >= rows_of<C>(tensor, place)) return;
  const long long head = tensor.shared ? 0 : place.batch * tensor.heads + place.head;
  const int unit = first >> tensor.unit_shift;
  atomicMax(tensor.largest + head * tensor.largest_head + unit, warp_largest);
}

template <class Shape>
__device__ __forceinline__ void store_scale(const QuantizedTensor& tensor, const TilePlace& place,
                                            const Slice<Shape>& slice, float scale) {
  const int row = place.first + slice.row;
  const int unit = row >> tensor.unit_shift;
  const bool first_of_unit = row == unit << tensor.unit_shift && (!tensor.shared || place.batch + place.head == 0);
  if (slice.index != 0 || !first_of_unit || row >= max(tensor.rows, 1)) return;
  tensor.scales[place.batch * tensor.scale_batch + place.head * tensor.scale_head + unit] = scale;
}

/// A tile that has arrived in shared memory.
template <QuantizeConfig C, int head_dim, Role role>
__device__ __forceinline__ void quantize_tile(const QuantizeParams& params, const QuantizedTensor& tensor,
                                              const TilePlace& place, unsigned char* tile, QuantizeShared<C>& shared) {
  using Shape = TileShape<C, head_dim>;
  const Slice<Shape> slice;
  if (C.measure && tensor.largest == nullptr) return;
  const float factor = tensor.rotated ? later_factor<head_dim>() : 1.0F;
  float x[Shape::kColumns];
  bool finite = true;
  unsigned bits = 0;
  if (slice.active()) {
    if constexpr (role == Role::query && !C.measure) {
      if (params.mean != nullptr) {
        const float shift = shift_of<C, head_dim>(tile, slice, shared.mean);
        if (!slice.index != 0 && place.first + slice.row < tensor.rows) {
          params.q_shift[place.batch * params.shift_batch + place.head * params.shift_head + place.first + slice.row] =
              !C.packed || place.first + slice.row < place.rows ? shift : 0.0F;
        }
      }
    }
    constexpr int kVectors = Shape::kSliceVectors;
    const bool numbers_tell_it = numbers_tell<C, head_dim>() && tensor.rotated;
    if (!numbers_tell_it) finite = all_of_row<Shape::kSlices>(slice_is_finite<C, head_dim, kVectors>(tile, slice));
    const int swap = exchanges<head_dim>() && tensor.rotated && (slice.index & 1) != 0 ? kHalfSlice : 0;
    read_slice<C, head_dim>(tile, shared.sign_bits[role == Role::value ? 1 : 0], slice, swap, x);
    bits = transform<C, head_dim, role>(tensor.rotated, factor, shared, slice, swap, x);
    if (numbers_tell_it) finite = rotated_is_finite<C, head_dim>(x[0], tile);
    if constexpr (role == Role::key) shared.key_finite[slice.row] = finite;
    const bool counts = finite && (role != Role::value || !params.values_tell || shared.key_finite[slice.row]);
    if (!counts) bits = role == Role::key && params.values_tell ? 0U : kNaNBits;
    if (place.first + slice.row >= rows_of<C>(tensor, place)) bits = 0;
  }
  if constexpr (C.measure) {
    if (slice.active() && tensor.largest != nullptr) measure<C>(tensor, place, slice, bits);
    return;
  }
  bits = largest_of_unit<C, head_dim>(tensor, place, slice, bits, shared);
  if constexpr (role == Role::value) __syncthreads();  // the tile has been read, and is written in another order
  if (slice.active()) {
    const bool has_scale = bits < kInfinityBits;
    const float scale = scale_of(params, bits);
    store_scale(tensor, place, slice, scale);
    const bool is_kept = finite && has_scale && place.first + slice.row < rows_of<C>(tensor, place);
    const float inverse_scale = __frcp_rn(scale) * factor;
    const Halves halves = halves_of<head_dim>(tensor.rotated, slice.index);
    const Rounding rounding[2] = {Rounding::of(inverse_scale, halves.negated[0], is_kept),
                                  Rounding::of(inverse_scale, halves.negated[1], is_kept)};
    if constexpr (role == Role::value) {
      stage_values<Shape, C.e4m3>(x, halves, rounding, slice, tile);
    } else {
      __syncwarp();  // the row's other threads have read it
      stage_row<Shape, C.e4m3>(x, halves, rounding, slice, tile);
    }
  }
  __syncthreads();
  if constexpr (role == Role::value) {
    store_values<C, head_dim>(tensor, place, tile);
  } else {
    store_rows<C, head_dim>(tensor, place, tile);
  }
}

template <QuantizeConfig C>
__device__ __forceinline__ void load_signs(const QuantizeParams& params, QuantizeShared<C>& shared) {
  constexpr int kWords = kMostColumns * bytes_of(C.source) / 4;
  for (int i = threadIdx.x; i < kWords; i += blockDim.x) {
    const int column = i * kMostColumns / kWords;
    const unsigned bits = static_cast<unsigned>(params.signs[column / 64] >> (column % 64));
    const unsigned word = C.source == Element::fp32 ? bits << 31 : (bits & 1) << 15 | (bits & 2) << 30;
    const int at = spread<C, bytes_of(C.source)>(column) * bytes_of(C.source) / 4;
    reinterpret_cast<unsigned*>(shared.sign_bits[0])[at] = params.q.rotated ? word : 0U;
    reinterpret_cast<unsigned*>(shared.sign_bits[1])[at] = params.v.rotated ? word : 0U;
  }
}

/// What a CTA quantises: two tiles, of K and V, or neighbours of Q.
struct Job {
  bool keys;
  TilePlace place;  // of the first
};

template <QuantizeConfig C>
__device__ __forceinline__ Job job_of(const QuantizeParams& params, int index) {
  const bool keys = index < params.key_blocks;
  const int job = keys ? params.key_blocks - 1 - index : index - params.key_blocks;
  const int jobs = keys ? params.key_jobs : params.query_jobs;
  const int heads = keys ? params.k.heads : params.q.heads;
  const int flat = job / jobs;
  const int batch = flat / heads;
  const int first = (job - flat * jobs) * tile_rows(C) * (keys ? 1 : 2);
  return {keys, place_of<C>(keys ? params.k : params.q, batch, flat - batch * heads, first, params.sequences)};
}

/// Starts to load one of the job's tiles.
template <QuantizeConfig C>
__device__ __forceinline__ void load_job(const QuantizeParams& params, const Job& job, int which, unsigned char* tile) {
  TilePlace place = job.place;
  if (!job.keys) {
    place.first += which * tile_rows(C);
    load_tile<C, C.head_dim>(params.q, place, tile);
  } else if (which == 0) {
    load_tile<C, C.head_dim>(params.k, place, tile);
  } else {
    load_tile<C, C.head_dim_v>(params.v, place, tile);
  }
}

template <QuantizeConfig C>
__device__ __forceinline__ void run_job(const QuantizeParams& params, const Job& job, int which, unsigned char* tile,
                                        QuantizeShared<C>& shared) {
  if (!job.keys) {
    TilePlace place = job.place;
    place.first += which * tile_rows(C);
    quantize_tile<C, C.head_dim, Role::query>(params, params.q, place, tile, shared);
  } else if (which == 0) {
    quantize_tile<C, C.head_dim, Role::key>(params, params.k, job.place, tile, shared);
  } else {
    quantize_tile<C, C.head_dim_v, Role::value>(params, params.v, job.place, tile, shared);
  }
}

/// The mean of the keys of the job's head.
template <QuantizeConfig C>
__device__ __forceinline__ void load_mean(const QuantizeParams& params, const Job& job, QuantizeShared<C>& shared) {
  const int head = job.keys ? job.place.head : job.place.head / params.heads_per_kv;
  const float* from = params.mean + (static_cast<long long>(job.place.batch) * params.k.heads + head) * C.head_dim;
  for (int c = threadIdx.x; c < C.head_dim; c += blockDim.x) {
    const float mean = params.mean == nullptr ? 0.0F : from[c];
    const bool flipped = params.k.rotated && (params.signs[c / 64] >> (c % 64) & 1) != 0;
    shared.mean[spread<C, 8>(c)] = static_cast<double>(mean) * kMeanFactor<C.source>;
    shared.minus_mean[spread<C, 4>(c)] = flipped ? mean : -mean;
  }
}

/// Grid: the jobs. Those of K and V come first, the last ones first, since the kernels before have left the last keys
/// in L2.
template <QuantizeConfig C>
__global__ void __launch_bounds__(quantize_threads(C), quantize_blocks(C))
    quantize(const __grid_constant__ QuantizeParams params) {
  extern __shared__ uint4 smem[];
  __shared__ QuantizeShared<C> shared;
  unsigned char* const tiles = reinterpret_cast<unsigned char*>(smem);
  const auto tile = [&](int which) { return tiles + which * tile_smem_bytes(C, C.head_dim); };
  ptx::griddepcontrol_launch_dependents();
  const Job job = job_of<C>(params, blockIdx.x);
  if constexpr (C.packed) {
    if (has_no_rows(params, job.place, job.keys)) {
      ptx::griddepcontrol_wait();
      if constexpr (!C.measure) write_unused<C>(params, job.place, job.keys);
      return;
    }
    if (!C.measure && job.keys && job.place.first == 0) clear_behind_keys<C>(params.v, job.place);
  }
  load_job<C>(params, job, 0, tile(0));
  commit_tile();
  load_job<C>(params, job, 1, tile(1));
  commit_tile();
  load_signs<C>(params, shared);
  ptx::griddepcontrol_wait();
  load_mean<C>(params, job, shared);
  wait_for_tiles<1>();
#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    run_job<C>(params, job, which, tile(which), shared);
    wait_for_tiles<0>();
  }
}

}  // namespace strobe::auxiliary
