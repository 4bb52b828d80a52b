// SPDX-License-Identifier: Apache-2.0
// Before a forward of sparse attention: the rows that each query's list names, in the order of the list, without what
// names nothing, keys behind the query's own position and whatever is out of range.
#pragma once

#include "kernels/auxiliary/listed_places_params.h"

namespace strobe::auxiliary {

/// A query and the keys that it may read.
struct ListedQuery {
  int sequence, position;
  int row;        // in tensors with the axes of q: of its sequence, packed of all
  int first_key;  // packed: of the sequence
  int keys;       // less than which it sees

  __device__ __forceinline__ long long offset(const QueryStrides& strides) const {
    return sequence * strides.sequence + row * strides.query;
  }
};

/// The last sequence that begins at packed row `row` or before has it.
__device__ __forceinline__ int sequence_of_row(const int* cu_seqlens, int sequences, int row) {
  int low = 0;
  int high = sequences;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (cu_seqlens[middle] <= row ? low : high) = middle;
  }
  return low;
}

__device__ __forceinline__ ListedQuery listed_query(const ListedPlacesParams& params, int number) {
  ListedQuery query{.sequence = 0, .position = number, .row = number, .first_key = 0, .keys = params.seqlen_k};
  int queries = params.seqlen_q;
  if (params.cu_seqlens_q != nullptr) {
    query.sequence = sequence_of_row(params.cu_seqlens_q, params.sequences, number);
    const int first = params.cu_seqlens_q[query.sequence];
    query.position = number - first;
    queries = params.cu_seqlens_q[query.sequence + 1] - first;
  } else if (!params.packed_q) {
    query.sequence = number / params.seqlen_q;
    query.position = query.row = number - query.sequence * params.seqlen_q;
  }
  if (params.cu_seqlens_k != nullptr) {
    query.first_key = min(max(params.cu_seqlens_k[query.sequence], 0), params.seqlen_k);
    query.keys =
        min(max(params.cu_seqlens_k[query.sequence + 1] - query.first_key, 0), params.seqlen_k - query.first_key);
  }
  if (params.seqused_k != nullptr) {
    query.keys = min(max(params.seqused_k[query.sequence], 0), query.keys);
  }
  if (params.causal) {
    query.keys = min(query.keys, query.position + 1 + query.keys - queries);
  }
  return query;
}

/// The place of a key less than query.keys in the first list's heads; -1 where its page does not exist.
template <ListedPlacesConfig C>
__device__ __forceinline__ int place_of_key(const ListedPlacesParams& params, const ListedQuery& query, int key) {
  int page = params.batched_k ? query.sequence : 0;
  int row = query.first_key + key;
  if (C.pages || params.in_pool) {
    page = params.by_page_size.quotient(key);
    row = params.by_page_size.remainder(key);
  }
  if constexpr (C.pages) {
    page = __ldg(params.page_table + query.sequence * params.table_sequence_stride + page * params.table_page_stride);
    if (page < 0 || page >= params.pages) {
      return -1;
    }
  }
  return static_cast<int>(page * params.page_step + row * params.row_step);
}

/// Grid: a CTA for each list.
template <ListedPlacesConfig C>
__global__ void __launch_bounds__(kListedPlacesThreads)
    find_listed_places(const __grid_constant__ ListedPlacesParams params) {
  constexpr int kWarp = 32;
  constexpr int kWarps = kListedPlacesThreads / kWarp;
  __shared__ int of_warp[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const int number = static_cast<int>(blockIdx.x) / params.lists;
  const int list = static_cast<int>(blockIdx.x) - number * params.lists;
  const ListedQuery query = listed_query(params, params.first_query + number);
  const int* const names = params.indices + query.offset(params.index_strides) + list * params.index_list_stride;
  int count = params.topk;
  if (params.topk_length != nullptr) {
    count = min(max(params.topk_length[query.offset(params.length_strides)], 0), count);
  }
  int* const places = params.places + static_cast<long long>(blockIdx.x) * params.width;
  const int most = count * params.block_size;
  int written = 0;
  for (int first = 0; first < most; first += kListedPlacesThreads) {
    const int own = first + thread;
    int place = -1;
    if (own < most) {
      const int name = __ldg(names + own / params.block_size);
      const long long key = static_cast<long long>(name) * params.block_size + own % params.block_size;
      if (name >= 0 && key < query.keys) {
        place = place_of_key<C>(params, query, static_cast<int>(key));
      }
    }
    const unsigned named = __ballot_sync(0xffffffffU, place >= 0);
    if (thread % kWarp == 0) {
      of_warp[thread / kWarp] = __popc(named);
    }
    __syncthreads();
    int before = written + __popc(named & ((1U << (thread % kWarp)) - 1));
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      before += warp < thread / kWarp ? of_warp[warp] : 0;
      written += of_warp[warp];
    }
    if (place >= 0) {
      places[before] = place + list * params.list_step;
    }
    __syncthreads();  // all have read of_warp
  }
  if (thread == 0) {
    params.counts[blockIdx.x] = written;
  }
}

}  // namespace strobe::auxiliary
