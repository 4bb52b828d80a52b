// SPDX-License-Identifier: Apache-2.0
// A random append and what it must write, in float64.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attention/guarded_tensor.h"
#include "strobe/cache.h"

namespace strobe::test {

/// Of a cache in 8 bits.
inline bool stored(DType dtype) { return dtype == DType::int8 || dtype == DType::float8_e4m3; }

struct AppendShape {
  std::int64_t batch = 3;
  std::int64_t heads_kv = 2;
  std::int64_t heads_q = 4;
  std::int64_t head_dim = 64;
  std::int64_t head_dim_v = 64;
  std::int64_t page_size = 0;  // 0: contiguous
  std::int64_t capacity = 40;  // rows that a sequence may have
  std::int64_t most_new = 9;   // rows that one of them gets at most; batched: all of them
  std::int64_t rotary_dim = 0;
  DType source = DType::float32;
  DType cache = DType::float32;
  DType table = DType::float32;
  bool packed = false;
  bool leftpad = false;
  bool batch_idx = false;
  bool interleaved = false;
  bool positions = false;
  bool queries = false;
  bool q_in_order = true;
  bool scales_by_batch = false;
  bool row_scales = false;  // of caches of 8 bits

  static AppendShape random(Random& random);
  std::string text() const;
};

class AppendCase {
 public:
  AppendCase(const AppendShape& shape, const Placement& placement, std::uint64_t seed);

  AppendArguments arguments() const {
    return arguments([](const GuardedTensor& tensor) { return tensor.view(); });
  }

  /// `place(tensor)` gives the view of each: those of host memory, or of copies.
  AppendArguments arguments(const std::function<TensorView(const GuardedTensor&)>& place) const;

  /// The caches hold what they held but for the appended rows, which and q_out are within the bound of float64.
  void expect_appended() const;

  /// The bytes of all outputs.
  std::vector<std::byte> output_bytes() const;

  /// change(row, column, x) gives the elements of k_new and v_new instead; before anything is appended. A row is one of
  /// a head.
  template <class Change>
  void change_new_rows(const Change& change) {
    for (GuardedTensor* const rows : {&k_new_, &v_new_}) {
      const std::int64_t columns = rows->view().shape[static_cast<std::size_t>(rows->view().rank - 1)];
      for (std::int64_t i = 0; i < rows->size(); ++i) rows->set(i, change(i / columns, i % columns, rows->get(i)));
    }
  }

  /// All tensors that the append writes.
  std::vector<GuardedTensor*> outputs();

  GuardedTensor k_cache, v_cache, q_out, k_row_descale, v_row_descale;

 private:
  struct Row {
    std::int64_t sequence, index;
  };

  void make_lengths(Random& random);
  void make_places(Random& random, const Placement& placement);
  void fill(GuardedTensor& tensor, Random& random) const;
  std::vector<Row> rows_of(const std::vector<std::int64_t>& counts) const;
  std::int64_t cache_row(std::int64_t sequence, std::int64_t row) const;
  std::int64_t rows_per_entry() const { return shape_.page_size > 0 ? shape_.page_size : shape_.capacity; }
  double position(const GuardedTensor& given, const Row& row, std::int64_t flat, bool in_order) const;
  /// One of the two caches, with what belongs to it.
  struct Cached {
    const GuardedTensor &cache, &from, &descale, &row_descale;
    const std::vector<std::byte>&before, &scales_before;
    bool rotated;
  };
  void expect_cache(const Cached& cached) const;
  double expect_row_scale(const Cached& cached, std::int64_t scale, const std::vector<double>& wanted,
                          const std::vector<double>& slack) const;
  void expect_queries() const;

  /// Columns of a row in float64, and how far the float32 of them may be off.
  void rotate(const GuardedTensor& from, std::int64_t first, std::int64_t position, std::vector<double>& wanted,
              std::vector<double>& slack) const;

  AppendShape shape_;
  std::vector<std::int64_t> lengths_, counts_, counts_q_, padding_, entries_;
  std::vector<std::vector<std::int64_t>> pages_;
  GuardedTensor k_new_, v_new_, q_, cos_, sin_, positions_, positions_q_, k_descale_, v_descale_;
  GuardedTensor cache_seqlens_, cu_seqlens_new_, cu_seqlens_q_, page_table_, leftpad_k_, cache_batch_idx_;
  std::vector<std::byte> k_before_, v_before_, k_scales_before_, v_scales_before_;
};

}  // namespace strobe::test
