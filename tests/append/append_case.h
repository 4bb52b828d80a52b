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

  /// All that an append writes.
  std::vector<std::byte> output_bytes() const;

  GuardedTensor k_cache, v_cache, q_out;

 private:
  struct Row {
    std::int64_t sequence, index;
  };

  void make_lengths(Random& random);
  void make_places(Random& random, const Placement& placement);
  void fill(GuardedTensor& tensor, Random& random) const;
  std::vector<Row> rows_of(const std::vector<std::int64_t>& counts) const;
  std::int64_t cache_row(std::int64_t sequence, std::int64_t row) const;
  double position(const GuardedTensor& given, const Row& row, std::int64_t flat, bool in_order) const;
  void expect_cache(const GuardedTensor& cache, const std::vector<std::byte>& before, const GuardedTensor& from,
                    const GuardedTensor& descale, std::int64_t columns, bool rotated) const;
  void expect_queries() const;

  /// Columns of a row in float64, and how far the float32 of them may be off.
  void rotate(const GuardedTensor& from, std::int64_t first, std::int64_t position, std::vector<double>& wanted,
              std::vector<double>& slack) const;

  AppendShape shape_;
  std::vector<std::int64_t> lengths_, counts_, counts_q_, padding_, entries_;
  std::vector<std::vector<std::int64_t>> pages_;
  GuardedTensor k_new_, v_new_, q_, cos_, sin_, positions_, positions_q_, k_descale_, v_descale_;
  GuardedTensor cache_seqlens_, cu_seqlens_new_, cu_seqlens_q_, page_table_, leftpad_k_, cache_batch_idx_;
  std::vector<std::byte> k_before_, v_before_;
};

}  // namespace strobe::test
