// SPDX-License-Identifier: Apache-2.0
// The query heads of one query that read one key head, and where their rows and those of their keys lie.
#pragma once

#include "kernels/auxiliary/sparse_backward/params.h"

namespace strobe::auxiliary {

/// Unit `number` of a wave.
struct SparseUnit {
  const SparseBackwardParams& params;
  long long number;
  int query;  // of the wave
  int head_kv;
  int row;  // query of all
  int entry, position;

  __device__ __forceinline__ SparseUnit(const SparseBackwardParams& all, int unit)
      : params(all),
        number(unit),
        query(unit / all.heads_kv),
        head_kv(unit - query * all.heads_kv),
        row(all.first_query + query),
        entry(all.by_seqlen_q.quotient(row)),
        position(all.by_seqlen_q.remainder(row)) {}

  /// The row of a head of the unit; null where it has fewer.
  __device__ __forceinline__ unsigned short* head_row(const Rows& rows, int head) const {
    return head < params.group ? rows.row(entry, position, head_kv * params.group + head) : nullptr;
  }

  /// The list of a source, counted through all queries.
  __device__ __forceinline__ long long list(const SparseRows& source) const {
    return static_cast<long long>(query) * source.lists + (source.lists > 1 ? head_kv : 0);
  }
  __device__ __forceinline__ int keys(const SparseRows& source) const { return source.counts[list(source)]; }

  /// The row of key `key` of a source's list, which has it.
  __device__ __forceinline__ const unsigned short* key_row(const SparseRows& source, const Rows& rows, int key) const {
    const int place = __ldg(source.places + list(source) * source.width + key);
    return rows.row(source.by_page_rows.quotient(place), source.by_page_rows.remainder(place), head_kv);
  }

  /// P or dS of a source's keys from `key` on.
  __device__ __forceinline__ unsigned short* weights(unsigned short* of_all, const SparseRows& source, int key) const {
    return of_all + (number * params.unit_keys + source.first_key + key) * weight_heads(params.group);
  }
};

/// A unit and a tile of the keys of a source's list, of a grid whose blocks are units * tiles of keys.
struct SparseUnitKeys {
  SparseUnit unit;
  int first_key;
  int keys;  // from first_key on; not above 0: none

  __device__ __forceinline__ static SparseUnitKeys of(const SparseBackwardParams& params, const SparseRows& source,
                                                      int block) {
    const int tiles_of_list = (source.width + kSparseKeys - 1) / kSparseKeys;
    const int number = block / tiles_of_list;
    const SparseUnit unit(params, number);
    const int first_key = (block - number * tiles_of_list) * kSparseKeys;
    return {unit, first_key, unit.keys(source) - first_key};
  }
};

}  // namespace strobe::auxiliary
