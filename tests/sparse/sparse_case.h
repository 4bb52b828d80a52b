// SPDX-License-Identifier: Apache-2.0
// A sparse call of random shapes, sources and lists. Rows that no list names are NaN, and so are gaps and outputs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "attention/guarded_tensor.h"
#include "strobe/sparse.h"

namespace strobe::test {

/// How the keys of a source lie.
enum class KeyLayout : std::uint8_t { batched, packed, pages, pool };

struct SourceShape {
  KeyLayout layout = KeyLayout::batched;
  RowFormat k_format{};  // of no parts: the elements of `dtype`
  RowFormat v_format{};
  DType dtype = DType::float32;
  bool v_apart = true;
  std::int64_t block_size = 1;
  std::int64_t topk = 8;
  std::int64_t page_size = 8;
  std::int64_t max_keys = 40;
  bool list_per_head = false;
  bool lengths = false;  // topk_length
  bool used = false;     // seqused_k
  bool causal = false;
};

struct SparseShape {
  bool packed = false;
  std::int64_t batch = 2;
  std::int64_t max_queries = 3;
  std::int64_t heads_kv = 1;
  std::int64_t group = 4;
  std::int64_t head_dim = 32;
  std::int64_t head_dim_v = 32;
  DType dtype = DType::float32;
  bool sink = false;
  bool lse = true;
  bool contiguous = false;  // each tensor's elements, and rows begin at multiples of 16 bytes: as GPUs take them
  std::vector<SourceShape> sources = {SourceShape{}};
  SparseOptions options{};
};

/// A shape that a seed chooses.
SparseShape random_shape(std::uint64_t seed);

/// Likewise one that the gpu engine takes: of one dtype, without row formats. `wide`: of more than 256 columns.
SparseShape random_gpu_shape(std::uint64_t seed, bool wide = false);

/// Likewise one whose rows are in formats, or of other dtypes than q.
SparseShape random_gpu_format_shape(std::uint64_t seed, bool wide = false);

std::string describe(const SparseShape& shape);

/// A tensor of bytes or numbers of a source, and what keeps it.
struct SourceTensors {
  std::optional<GuardedTensor> k, v;
  std::vector<std::uint8_t> k_bytes, v_bytes;
  GuardedTensor indices, topk_length, cu_seqlens_k, page_table, seqused_k;
};

class SparseCase {
 public:
  SparseCase(const SparseShape& the_shape, std::uint64_t seed);

  const SparseForwardArguments& arguments() const { return arguments_; }
  SparseForwardArguments& arguments() { return arguments_; }

  /// The arguments with copies elsewhere, place(tensor) being where one is, and place(view, bytes) where a cache in a
  /// format is.
  template <class Place>
  SparseForwardArguments placed(const Place& place) const {
    SparseForwardArguments a = arguments_;
    const auto replace = [&](auto& view, const GuardedTensor& tensor) {
      if (view.given()) view = place(tensor);
    };
    replace(a.q, q);
    replace(a.o, o);
    replace(a.lse, lse);
    replace(a.sink, sink);
    replace(a.cu_seqlens_q, cu_seqlens_q);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      SparseSource& source = a.sources[i];
      const SourceTensors& t = *tensors[i];
      if (t.k) replace(source.k, *t.k);
      if (t.v) replace(source.v, *t.v);
      if constexpr (std::is_invocable_v<Place, ConstTensorView, std::vector<std::uint8_t>>) {
        if (source.k_format.given()) source.k = place(source.k, t.k_bytes);
        if (source.v_format.given()) source.v = place(source.v, t.v_bytes);
      }
      replace(source.indices, t.indices);
      replace(source.topk_length, t.topk_length);
      replace(source.cu_seqlens_k, t.cu_seqlens_k);
      replace(source.page_table, t.page_table);
      replace(source.seqused_k, t.seqused_k);
    }
    return a;
  }

  SparseShape shape;
  GuardedTensor q, o, lse, sink, cu_seqlens_q;
  std::vector<std::unique_ptr<SourceTensors>> tensors;

 private:
  void make_source(std::size_t index);
  void make_lists(std::size_t index, const std::vector<std::int64_t>& lengths);
  void fill_rows(std::size_t index);

  Random random_;
  Placement placement_;
  std::vector<std::int64_t> queries_;  // of each sequence
  SparseForwardArguments arguments_;
};

}  // namespace strobe::test
