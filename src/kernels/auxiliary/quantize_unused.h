// SPDX-License-Identifier: Apache-2.0
// Packed sequences: what the quantiser writes where there are no rows. Scales and shifts of positions behind a
// sequence's end, V's columns between two sequences, and rows behind the last one.
#pragma once

#include "kernels/auxiliary/quantize_tile.h"

namespace strobe::auxiliary {

enum class Role : unsigned char { query, key, value };

constexpr unsigned kInfinityBits = 0x7f800000U;

/// The scale of rows whose largest magnitude has these bits.
__device__ __forceinline__ float scale_of(const QuantizeParams& params, unsigned bits) {
  return bits < kInfinityBits ? fmaxf(__fdiv_rn(__uint_as_float(bits), params.largest_element), params.smallest_scale)
                              : __uint_as_float(0x7fc00000U);
}

/// Whether a job's rows all lie behind its sequence's end, or its sequence is what lies behind the last one.
__device__ __forceinline__ bool has_no_rows(const QuantizeParams& params, const TilePlace& place, bool keys) {
  const bool packed = (keys ? params.k : params.q).cu_seqlens != nullptr;
  return packed && (place.batch == params.sequences || place.first >= place.rows);
}

/// Scales and shifts of a tile without rows.
template <QuantizeConfig C, Role role>
__device__ __forceinline__ void write_scales(const QuantizeParams& params, const QuantizedTensor& tensor,
                                             const TilePlace& place, int first) {
  // One scale for all is that of other sequences' rows.
  const unsigned bits = tensor.shared && tensor.largest != nullptr ? *tensor.largest : 0U;
  for (int i = threadIdx.x; i < tile_rows(C); i += blockDim.x) {
    const int row = first + i;
    if (row >= max(tensor.rows, 1)) return;
    const int unit = row >> tensor.unit_shift;
    if (row == unit << tensor.unit_shift && (!tensor.shared || place.batch + place.head == 0)) {
      tensor.scales[place.batch * tensor.scale_batch + place.head * tensor.scale_head + unit] = scale_of(params, bits);
    }
    if (role == Role::query && params.mean != nullptr && row < tensor.rows) {
      params.q_shift[place.batch * params.shift_batch + place.head * params.shift_head + row] = 0.0F;
    }
  }
}

/// Zeros to columns [first, end) of a head of V, multiples of 32.
template <QuantizeConfig C>
__device__ __forceinline__ void clear_columns(const QuantizedTensor& v, int head, long long first, long long end) {
  unsigned char* const to = v.to + head * v.to_head;
  for (int column = threadIdx.x; column < C.head_dim_v; column += blockDim.x) {
    for (long long at = first; at < end; at += 8) store_8<C.aligned>(to + column * v.to_row + at, make_uint2(0, 0));
  }
}

/// Columns behind those of a sequence's keys, up to where the next one's begin.
template <QuantizeConfig C>
__device__ __forceinline__ void clear_behind_keys(const QuantizedTensor& v, const TilePlace& place) {
  if (v.cu_seqlens == nullptr) return;
  const int end = min(max(v.cu_seqlens[place.batch + 1], 0), v.total);
  const int keys = (place.rows + kValueKeys - 1) / kValueKeys * kValueKeys;
  clear_columns<C>(v, place.head, packed_value_start(place.start, place.batch) + keys,
                   packed_value_start(end, place.batch + 1));
}

/// Zeros to every `step`-th row of a head of Q or K from `first` on.
template <QuantizeConfig C>
__device__ __forceinline__ void clear_rows(const QuantizedTensor& tensor, int head, int first, int step) {
  for (int row = first; row < tensor.total; row += step) {
    unsigned char* const to = tensor.to + head * tensor.to_head + row * tensor.to_row;
    for (int column = threadIdx.x * 8; column < C.head_dim; column += blockDim.x * 8) {
      store_8<C.aligned>(to + column, make_uint2(0, 0));
    }
  }
}

/// All that a job without rows writes.
template <QuantizeConfig C>
__device__ __forceinline__ void write_unused(const QuantizeParams& params, const TilePlace& place, bool keys) {
  const QuantizedTensor& tensor = keys ? params.k : params.q;
  if (place.batch < params.sequences) {
    if (keys) {
      write_scales<C, Role::key>(params, params.k, place, place.first);
      write_scales<C, Role::value>(params, params.v, place, place.first);
      if (place.first == 0) clear_behind_keys<C>(params.v, place);
    } else {
      write_scales<C, Role::query>(params, params.q, place, place.first);
      write_scales<C, Role::query>(params, params.q, place, place.first + tile_rows(C));
    }
    return;
  }
  const int used = min(max(tensor.cu_seqlens[params.sequences], 0), tensor.total);
  const int job = place.first / (tile_rows(C) * (keys ? 1 : 2));
  clear_rows<C>(tensor, place.head, used + job, keys ? params.key_jobs : params.query_jobs);
  if (keys && job == 0) {
    clear_columns<C>(params.v, place.head, packed_value_start(used, params.sequences),
                     packed_value_start(tensor.total, params.sequences));
  }
}

}  // namespace strobe::auxiliary
