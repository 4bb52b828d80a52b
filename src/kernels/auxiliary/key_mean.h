// SPDX-License-Identifier: Apache-2.0
// The mean of the keys of every head, of rows that are finite: sums of blocks of rows, then the sum of those. float64,
// in the order that call/eight_bit.h prescribes.
#pragma once

#include "kernels/auxiliary/source.h"

namespace strobe::auxiliary {

/// store(column, sum, count) of the phases, added in order.
template <int head_dim, class Store>
__device__ __forceinline__ void add_phases(const double (&sums)[kMeanPhases][head_dim],
                                           const int (&counts)[kMeanPhases], const Store& store) {
  int count = 0;
#pragma unroll
  for (const int one : counts) count += one;
  for (int c = threadIdx.x; c < head_dim; c += blockDim.x) {
    double sum = sums[0][c];
#pragma unroll
    for (int phase = 1; phase < kMeanPhases; ++phase) sum += sums[phase][c];
    store(c, sum, count);
  }
}

/// Where the sums of a head's blocks of rows lie: from which on, and how far apart. Blocks of packed sequences begin
/// where no two share one.
struct ChunkPlaces {
  long long first;
  int step;
};

__device__ __forceinline__ ChunkPlaces packed_chunks(int start, int batch, int head, int heads) {
  return {static_cast<long long>(start / kMeanRows + batch) * heads + head, heads};
}

/// The rows of one chunk of a head, and where their sums go.
struct MeanChunk {
  int batch, head;  // the head within its batch
  int start;        // the sequence's first row
  int first, rows;  // the chunk's first row of the sequence, and the sequence's rows
  long long place;
};

/// The chunk of CTA blockIdx.x.
template <KeyMeanConfig C>
__device__ __forceinline__ MeanChunk mean_chunk(const KeyMeanParams& params) {
  const int head = blockIdx.x / params.chunks;
  const int chunk = blockIdx.x - head * params.chunks;
  const int batch = head / params.heads;
  MeanChunk own{batch, head - batch * params.heads, 0, chunk * kMeanRows, params.rows, blockIdx.x};
  if constexpr (C.packed) {
    const SequenceSpan span = packed_span(params.cu_seqlens, batch, params.total, params.rows);
    own.start = span.start;
    own.rows = span.rows;
    const ChunkPlaces places = packed_chunks(own.start, batch, own.head, params.heads);
    own.place = places.first + chunk * places.step;
  }
  return own;
}

/// Sums of a thread's columns over the rows of its phase that are finite, and how many these are.
template <KeyMeanConfig C>
struct ColumnSums {
  static constexpr int kLanes = mean_lanes(C.head_dim);  // threads that share a row
  static constexpr int kVectors = kMeanColumns / kVector<C.source>;
  static constexpr int kRowsAtOnce = C.source == Element::fp32 ? 8 : 16;  // that are on their way at once

  double sum[kMeanColumns] = {};
  int count = 0;

  /// Adds kRowsAtOnce rows from `first` on, kMeanPhases apart, of those before `rows`. `k`: the sequence's first row.
  __device__ __forceinline__ void add(const KeyMeanParams& params, const char* k, int first, int rows, int column) {
    const unsigned row_lanes = (kLanes == 32 ? ~0U : (1U << kLanes) - 1) << (threadIdx.x % 32 / kLanes * kLanes);
    uint4 bits[kRowsAtOnce][kVectors];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int row = first + i * kMeanPhases;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        bits[i][j] = make_uint4(0, 0, 0, 0);
        if (row < rows && column < C.head_dim) {
          bits[i][j] = load_vector<C.source, C.aligned>(k, row * params.k_row + column + j * kVector<C.source>);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      float x[kMeanColumns];
      unsigned nan = 0;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        widen<C.source>(bits[i][j], x + j * kVector<C.source>);
        find_not_finite<C.source>(bits[i][j], nan);
      }
      const unsigned bad = __ballot_sync(0xffffffffU, !is_zero<C.source>(nan));
      if (first + i * kMeanPhases < rows && (bad & row_lanes) == 0) {
        ++count;
#pragma unroll
        for (int c = 0; c < kMeanColumns; ++c) sum[c] += static_cast<double>(x[c]);
      }
    }
  }
};

/// Grid: chunks * heads * batch; kMeanPhases * mean_lanes threads, of which neighbours share a row.
template <KeyMeanConfig C>
__global__ void __launch_bounds__(kMeanPhases* mean_lanes(C.head_dim))
    sum_keys(const __grid_constant__ KeyMeanParams params) {
  ptx::griddepcontrol_launch_dependents();
  using Sums = ColumnSums<C>;
  __shared__ double sums[kMeanPhases][C.head_dim];
  __shared__ int counts[kMeanPhases];
  const MeanChunk chunk = mean_chunk<C>(params);
  if (C.packed && chunk.first >= chunk.rows) return;
  const int phase = threadIdx.x / Sums::kLanes;
  const int column = threadIdx.x % Sums::kLanes * kMeanColumns;
  const char* k =
      static_cast<const char*>(params.k) +
      (chunk.batch * params.k_batch + chunk.start * params.k_row + chunk.head * params.k_head) * bytes_of(C.source);
  Sums own;
#pragma unroll
  for (int trip = 0; trip < kMeanRows / kMeanPhases / Sums::kRowsAtOnce; ++trip) {
    own.add(params, k, chunk.first + trip * Sums::kRowsAtOnce * kMeanPhases + phase, chunk.rows, column);
  }
#pragma unroll
  for (int c = 0; c < kMeanColumns; ++c) {
    if (column < C.head_dim) sums[phase][column + c] = own.sum[c];
  }
  if (column == 0) counts[phase] = own.count;
  __syncthreads();
  double* to = params.sums + chunk.place * C.head_dim;
  add_phases(sums, counts, [&](int c, double total, int finite) {
    to[c] = total;
    if (c == 0) params.counts[chunk.place] = finite;
  });
}

/// Grid: heads * batch; kFinishThreads threads.
template <int head_dim>
__global__ void __launch_bounds__(kFinishThreads) finish_key_mean(const __grid_constant__ KeyMeanParams params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  constexpr int kColumnsAtOnce = kFinishThreads / kMeanPhases;
  __shared__ double sums[kMeanPhases][head_dim];
  __shared__ int counts[kMeanPhases];
  ChunkPlaces places{static_cast<long long>(blockIdx.x) * params.chunks, 1};
  int chunks = params.chunks;
  if (params.cu_seqlens != nullptr) {
    const int batch = blockIdx.x / params.heads;
    const SequenceSpan span = packed_span(params.cu_seqlens, batch, params.total, params.rows);
    places = packed_chunks(span.start, batch, blockIdx.x - batch * params.heads, params.heads);
    chunks = (span.rows + kMeanRows - 1) / kMeanRows;
  }
  const int phase = threadIdx.x / kColumnsAtOnce;
  for (int c = threadIdx.x % kColumnsAtOnce; c < head_dim; c += kColumnsAtOnce) {
    double sum = 0.0;
    int count = 0;
#pragma unroll 8
    for (int chunk = phase; chunk < chunks; chunk += kMeanPhases) {
      const long long place = places.first + chunk * places.step;
      sum += params.sums[place * head_dim + c];
      if (c == 0) count += params.counts[place];
    }
    sums[phase][c] = sum;
    if (c == 0) counts[phase] = count;
  }
  __syncthreads();
  float* mean = params.mean + static_cast<long long>(blockIdx.x) * head_dim;
  add_phases(sums, counts, [&](int c, double sum, int count) {
    mean[c] = count == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(count));
  });
}

}  // namespace strobe::auxiliary
