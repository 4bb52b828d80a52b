// SPDX-License-Identifier: Apache-2.0
// The two products of few queries, on keys and values where they lie: columns across the lanes.
#if defined(STROBE_CPU_FEW_QUERIES_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_FEW_QUERIES_PRODUCTS_INL_H_
#undef STROBE_CPU_FEW_QUERIES_PRODUCTS_INL_H_
#else
#define STROBE_CPU_FEW_QUERIES_PRODUCTS_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "cpu/kernels/pack-inl.h"
#include "cpu/kernels/task.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

// Query rows whose products are made together: a vector of keys or values is loaded once for all of them.
inline constexpr int kRowGroup = kManyRegisters ? 4 : 2;
// Keys whose products are summed together: their sums make one transposition.
inline constexpr int kKeyQuad = 4;
// Queries from which on they lie across the lanes, which saves the sums across lanes: three quarters of a vector.
inline constexpr std::int64_t kPanelLeast = HWY_MAX(kLanes * 3 / 4, 1);
// Keys that are multiplied by a vector of queries together.
inline constexpr std::int64_t kPanelKeys = 8;

// Keys of one head before the next head takes the same: their pages, of K or of V, are as many as hardware prefetchers
// follow. 8 and 16 keys are read at the speed of a copy, 64 at half of it.
inline constexpr std::int64_t kStep = 16;
static_assert(kStep % kLanes == 0);

/// Fetches the 16-bit rows, from `position` on, that a head takes in the next step: converting them leaves too few
/// loads under way.
HWY_INLINE void prefetch_step(const ForwardTask& task, const ConstRows& rows, std::int64_t position,
                              std::int64_t columns) {
  if (task.dtype == DType::float32 || task.stored.given()) return;
  const Source next{rows, position, std::min(kStep, task.visible.keys - position), columns};
  for (std::int64_t row = 0; row < kStep; ++row) prefetch_row<bfloat16>(next, row);
}

/// Neighbouring rows of K or V, in whole vectors. kFetches: reading one fetches the row kStep after it.
template <class T, bool kFetches = false>
struct BlockRows {
  const T* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t ahead = 0;  // from a row to the one that is fetched

  const T* operator[](std::int64_t index) const { return data + index * stride; }
};

/// Every 64 bytes of a row.
template <bool kFetches, class T>
HWY_INLINE void fetch_ahead(const T* at, std::int64_t column, std::int64_t ahead) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  if constexpr (kFetches) {
    if (column % kLine == 0) __builtin_prefetch(at + ahead, 0, 2);
  }
}

#if HWY_TARGET != HWY_SCALAR
using KeyQuad = hn::FixedTag<float, kKeyQuad>;

/// The sum of the 128-bit blocks of a vector of `lanes` lanes.
template <int lanes, class V>
HWY_INLINE hn::Vec<KeyQuad> sum_blocks(V v) {
  if constexpr (lanes == kKeyQuad) {
    return v;
  } else {
    const hn::FixedTag<float, lanes / 2> half;
    return sum_blocks<lanes / 2>(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
#endif

/// Sums of the lanes of four vectors.
HWY_INLINE void store_sums(FixedVec (&v)[kKeyQuad], float* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < kKeyQuad; ++i) to[i] = hn::GetLane(v[i]);
#else
  transpose_blocks(v);
  const Vec sums = hn::Add(hn::Add(v[0], v[1]), hn::Add(v[2], v[3]));
  hn::StoreU(sum_blocks<kLanes>(sums), KeyQuad(), to);
#endif
}

/// to[row * kFewQueriesKeys + i] = query `row` . keys[i] for kRows rows and kKeyQuad keys. `columns` are a multiple of
/// kVecs vectors, which one turn of the loop takes. kFetches and `ahead`: as of BlockRows.
template <int kRows, int kVecs, bool kFetches, class T>
HWY_INLINE void multiply_quad(const float* HWY_RESTRICT queries, std::int64_t columns, const T* const (&keys)[kKeyQuad],
                              std::int64_t ahead, float* HWY_RESTRICT to) {
  const Floats d;
  FixedVec sums[kRows][kKeyQuad];
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kKeyQuad; ++i) sums[row][i] = hn::Zero(d);
  }
  for (std::int64_t begin = 0; begin < columns; begin += kVecs * kLanes) {
    HWY_UNROLL(8) for (int n = 0; n < kVecs; ++n) {
      const std::int64_t c = begin + n * kLanes;
      FixedVec query[kRows];
      HWY_UNROLL(8) for (int row = 0; row < kRows; ++row) query[row] = hn::LoadU(d, queries + row * columns + c);
      HWY_UNROLL(4) for (int i = 0; i < kKeyQuad; ++i) {
        const Vec key = load(d, keys[i] + c);
        fetch_ahead<kFetches>(keys[i] + c, c, ahead);
        HWY_UNROLL(8) for (int row = 0; row < kRows; ++row) sums[row][i] = hn::MulAdd(query[row], key, sums[row][i]);
      }
    }
  }
  HWY_UNROLL(8) for (int row = 0; row < kRows; ++row) store_sums(sums[row], to + row * kFewQueriesKeys);
}

/// multiply_quad() in a function of its own, whose registers hold all addresses.
template <int kRows, bool kFetches, class T>
HWY_NOINLINE void multiply_quad_apart(const float* HWY_RESTRICT queries, std::int64_t columns,
                                      const T* const (&keys)[kKeyQuad], std::int64_t ahead, float* HWY_RESTRICT to) {
  if (columns % (4 * kLanes) == 0) return multiply_quad<kRows, 4, kFetches>(queries, columns, keys, ahead, to);
  multiply_quad<kRows, 1, kFetches>(queries, columns, keys, ahead, to);
}

/// Products of queries with four keys; of rows that are few enough for registers, all columns of a usual head_dim in
/// one turn of the loop. Hardware prefetchers follow each load instruction by itself: its addresses are then one row
/// apart.
template <int kRows, bool kFetches, class T>
HWY_INLINE void multiply_quad_of(const float* HWY_RESTRICT queries, std::int64_t columns,
                                 const T* const (&keys)[kKeyQuad], std::int64_t ahead, float* HWY_RESTRICT to) {
  if constexpr (kRows == kRowGroup) return multiply_quad_apart<kRows, kFetches>(queries, columns, keys, ahead, to);
  if (columns % (4 * kLanes) != 0) {
    multiply_quad<kRows, 1, kFetches>(queries, columns, keys, ahead, to);
  } else if (columns % (8 * kLanes) == 0) {
    multiply_quad<kRows, 8, kFetches>(queries, columns, keys, ahead, to);
  } else {
    multiply_quad<kRows, 4, kFetches>(queries, columns, keys, ahead, to);
  }
}

/// Calls use(std::integral_constant<int, count>(), row) for the groups of rows whose products are made together.
template <class Use>
HWY_INLINE void for_each_row_group(std::int64_t rows, const Use& use) {
  std::int64_t row = 0;
  for (; row + kRowGroup <= rows; row += kRowGroup) use(std::integral_constant<int, kRowGroup>(), row);
  if (kRowGroup > 2 && row + 2 <= rows) {
    use(std::integral_constant<int, 2>(), row);
    row += 2;
  }
  if (row < rows) use(std::integral_constant<int, 1>(), row);
}

/// The products of every query with `count` keys, in whole quads.
template <class T, bool kFetches>
HWY_INLINE void multiply_queries(const float* HWY_RESTRICT queries, std::int64_t rows, std::int64_t columns,
                                 const BlockRows<T, kFetches>& keys, std::int64_t count, float* HWY_RESTRICT scores) {
  for (std::int64_t key = 0; key < count; key += kKeyQuad) {
    const T* quad[kKeyQuad];
    for (std::int64_t i = 0; i < kKeyQuad; ++i) quad[i] = keys[std::min(key + i, count - 1)];
    for_each_row_group(rows, [&](auto group, std::int64_t row) {
      const float* own = queries + row * columns;
      float* to = scores + row * kFewQueriesKeys + key;
      if (row == 0) return multiply_quad_of<group, kFetches>(own, columns, quad, keys.ahead, to);
      multiply_quad_of<group, false>(own, columns, quad, 0, to);  // fetched once
    });
  }
}

/// Products of kRows queries, if that is the size of a group, with kStep keys.
template <int kRows, class T, bool kFetches>
HWY_INLINE void multiply_step(const float* HWY_RESTRICT queries, std::int64_t columns,
                              const BlockRows<T, kFetches>& keys, float* HWY_RESTRICT scores) {
  for (std::int64_t key = 0; key < kStep; key += kKeyQuad) {
    const T* const quad[kKeyQuad] = {keys[key], keys[key + 1], keys[key + 2], keys[key + 3]};
    multiply_quad_of<kRows, kFetches>(queries, columns, quad, keys.ahead, scores + key);
  }
}

/// Of `rows` queries, those that lie across the lanes of whole vectors; the others' columns do.
constexpr std::int64_t panel_rows(std::int64_t rows) {
  return rows % kLanes >= kPanelLeast ? rows : round_down(rows, kLanes);
}

/// to[key][lane] = query of the lane . keys[key] for kPanelKeys keys; `panel` holds a vector of queries per column.
HWY_INLINE void multiply_panel(const float* HWY_RESTRICT panel, std::int64_t columns,
                               const float* const (&keys)[kPanelKeys], float* HWY_RESTRICT to) {
  const Floats d;
  FixedVec sums[kPanelKeys];
  for (FixedVec& sum : sums) sum = hn::Zero(d);
  for (std::int64_t c = 0; c < columns; ++c) {
    const Vec query = hn::Load(d, panel + c * kLanes);
    HWY_UNROLL(8) for (int i = 0; i < kPanelKeys; ++i) sums[i] = hn::MulAdd(hn::Set(d, keys[i][c]), query, sums[i]);
  }
  for (int i = 0; i < kPanelKeys; ++i) hn::Store(sums[i], d, to + i * kLanes);
}

/// The products of a vector of queries with `count` keys, in whole groups of kTransposedRows.
HWY_INLINE void multiply_panel_queries(const float* panel, std::int64_t columns, const BlockRows<float>& keys,
                                       std::int64_t count, float* HWY_RESTRICT scores) {
  constexpr std::int64_t kTogether = HWY_MAX(kTransposedRows, kPanelKeys);
  HWY_ALIGN float products[kTogether * kLanes];
  for (std::int64_t key = 0; key < count; key += kTogether) {
    for (std::int64_t part = 0; part < kTogether; part += kPanelKeys) {
      const float* some[kPanelKeys];
      for (std::int64_t i = 0; i < kPanelKeys; ++i) some[i] = keys[std::min(key + part + i, count - 1)];
      multiply_panel(panel, columns, some, products + part * kLanes);
    }
    for (std::int64_t part = 0; part < kTogether; part += kTransposedRows) {
      const float* together[kTransposedRows];
      for (std::int64_t i = 0; i < kTransposedRows; ++i) together[i] = products + (part + i) * kLanes;
      transpose_rows(together, kLanes, kFewQueriesKeys, scores + key + part);
    }
  }
}

/// Calls run(std::integral_constant<int, rows>()) for 1 to kRowGroup rows.
template <class Run>
HWY_INLINE void with_row_group(std::int64_t rows, const Run& run) {
  static_assert(kRowGroup <= 4);
  if (rows == 1) return run(std::integral_constant<int, 1>());
  if (rows == 2 || kRowGroup == 2) return run(std::integral_constant<int, 2>());
  if (rows == 3) return run(std::integral_constant<int, 3>());
  return run(std::integral_constant<int, 4>());
}

/// The products of kRows queries with `count` keys, keys across the lanes of kVecs vectors at a time: each is one sum
/// in the order of the columns, as those of multiply_panel() and of tiles are. Writes whole groups of kVecs vectors.
template <int kRows, int kVecs>
HWY_INLINE void multiply_across_keys(const float* HWY_RESTRICT queries, std::int64_t columns,
                                     const BlockRows<float>& keys, std::int64_t count, float* HWY_RESTRICT scores) {
  static_assert(kTransposedRows == kLanes);
  constexpr std::int64_t kColumns = 64;
  constexpr std::int64_t kWidth = kVecs * kLanes;
  const Floats d;
  HWY_ALIGN float transposed[kColumns * kWidth];
  for (std::int64_t key = 0; key < count; key += kWidth) {
    FixedVec sums[kRows][kVecs];
    for (auto& row : sums) {
      for (FixedVec& sum : row) sum = hn::Zero(d);
    }
    for (std::int64_t first = 0; first < columns; first += kColumns) {
      const std::int64_t some = std::min(kColumns, columns - first);
      for (std::int64_t n = 0; n < kWidth; n += kLanes) {
        const float* together[kTransposedRows];
        for (std::int64_t i = 0; i < kLanes; ++i) together[i] = keys[std::min(key + n + i, count - 1)] + first;
        transpose_rows(together, some, kWidth, transposed + n);
      }
      for (std::int64_t c = 0; c < some; ++c) {
        HWY_UNROLL(4) for (int row = 0; row < kRows; ++row) {
          const Vec query = hn::Set(d, queries[row * columns + first + c]);
          HWY_UNROLL(4) for (int n = 0; n < kVecs; ++n) {
            sums[row][n] = hn::MulAdd(hn::Load(d, transposed + c * kWidth + n * kLanes), query, sums[row][n]);
          }
        }
      }
    }
    for (int row = 0; row < kRows; ++row) {
      for (int n = 0; n < kVecs; ++n) hn::StoreU(sums[row][n], d, scores + row * kFewQueriesKeys + key + n * kLanes);
    }
  }
}

/// output[row][column lanes] += sum of p[row][key] * values[key] for kRows rows, kVecs vectors of columns and keys
/// [first, last), in the order of the keys.
template <int kRows, int kVecs, class T, bool kFetches>
HWY_INLINE void add_columns(const float* HWY_RESTRICT p, const BlockRows<T, kFetches>& values, std::int64_t first,
                            std::int64_t last, std::int64_t column, float* HWY_RESTRICT output, std::int64_t stride) {
  const Floats d;
  FixedVec sums[kRows][kVecs];
  for (int row = 0; row < kRows; ++row) {
    for (int n = 0; n < kVecs; ++n) sums[row][n] = hn::LoadU(d, output + row * stride + column + n * kLanes);
  }
  const T* HWY_RESTRICT value = values[first] + column;
  for (std::int64_t key = first; key < last; ++key, value += values.stride) {
    FixedVec weight[kRows];
    HWY_UNROLL(8) for (int row = 0; row < kRows; ++row) weight[row] = hn::Set(d, p[row * kFewQueriesKeys + key]);
    HWY_UNROLL(8) for (int n = 0; n < kVecs; ++n) {
      const Vec v = load(d, value + n * kLanes);
      fetch_ahead<kFetches>(value + n * kLanes, column + n * kLanes, values.ahead);
      HWY_UNROLL(8) for (int row = 0; row < kRows; ++row) sums[row][n] = hn::MulAdd(weight[row], v, sums[row][n]);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int n = 0; n < kVecs; ++n) hn::StoreU(sums[row][n], d, output + row * stride + column + n * kLanes);
  }
}

/// Adds P V of keys [first, last) to all columns of the output.
template <int kRows, class T, bool kFetches>
HWY_INLINE void add_values(const float* p, const BlockRows<T, kFetches>& values, std::int64_t first, std::int64_t last,
                           std::int64_t columns, float* output) {
  // Eight sums or sixteen: enough to hide an addition's latency, and few enough for the registers.
  constexpr int kVecs = kRows == 8 ? 2 : (kRows == 1 || (kRows == 2 && kManyRegisters) ? 8 : 4);
  std::int64_t column = 0;
  for (; column + kVecs * kLanes <= columns; column += kVecs * kLanes) {
    add_columns<kRows, kVecs>(p, values, first, last, column, output, columns);
  }
  if (kVecs == 8 && column + 4 * kLanes <= columns) {
    add_columns<kRows, 4>(p, values, first, last, column, output, columns);
    column += 4 * kLanes;
  }
  for (; column < columns; column += kLanes) {
    add_columns<kRows, 1>(p, values, first, last, column, output, columns);
  }
}

/// Calls use(std::integral_constant<int, count>(), row) for the groups of rows whose values are added together.
template <class Use>
HWY_INLINE void for_each_value_group(std::int64_t rows, const Use& use) {
  std::int64_t row = 0;
  if constexpr (kManyRegisters) {
    for (; row + 8 <= rows; row += 8) use(std::integral_constant<int, 8>(), row);
  }
  for_each_row_group(rows - row, [&](auto group, std::int64_t index) { use(group, row + index); });
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_FEW_QUERIES_PRODUCTS_INL_H_
