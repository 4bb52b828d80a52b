// SPDX-License-Identifier: Apache-2.0
#include "reference/dense_cache.h"

#include <cstring>

namespace strobe::reference {
namespace {

std::int32_t number_at(const ConstTensorView& numbers, std::int64_t index, std::int64_t otherwise) {
  if (!numbers.given()) return static_cast<std::int32_t>(otherwise);
  return static_cast<const std::int32_t*>(numbers.data)[index * numbers.strides[0]];
}

}  // namespace

DenseCache::DenseCache(const ForwardArguments& arguments) : arguments_(arguments) {
  const Sequences& sequences = arguments.sequences;
  const ConstTensorView& table = arguments.page_table;
  batch_ = sequences.cu_seqlens_q.given() ? sequences.cu_seqlens_q.shape[0] - 1 : arguments.q.shape[0];
  seqlen_k_ = arguments.k.shape[1] * (table.given() ? table.shape[1] : 1);
  for (std::int64_t b = 0; b < batch_; ++b) {
    leftpad_.push_back(number_at(sequences.leftpad_k, b, 0));
    lengths_.push_back(number_at(sequences.seqused_k, b, seqlen_k_) - leftpad_.back());
  }
  k_view_ = copy(arguments.k, k_);
  v_view_ = copy(arguments.v, v_);
}

bool DenseCache::needed(const ForwardArguments& arguments) {
  return arguments.page_table.given() || arguments.sequences.leftpad_k.given() ||
         arguments.sequences.cache_batch_idx.given();
}

ConstTensorView DenseCache::copy(const ConstTensorView& cache, std::vector<std::byte>& bytes) const {
  const ConstTensorView& table = arguments_.page_table;
  const std::int64_t heads = cache.shape[2];
  const std::int64_t columns = cache.shape[3];
  const auto element_bytes = static_cast<std::int64_t>(size_of(cache.dtype));
  bytes.assign(static_cast<std::size_t>(batch_ * seqlen_k_ * heads * columns * element_bytes), std::byte{0});
  for (std::int64_t b = 0; b < batch_; ++b) {
    const std::int64_t own_entry = number_at(arguments_.sequences.cache_batch_idx, b, b);
    for (std::int64_t key = 0; key < lengths_[b]; ++key) {
      std::int64_t entry = own_entry;
      std::int64_t row = leftpad_[b] + key;
      if (table.given()) {
        entry = static_cast<const std::int32_t*>(table.data)[b * table.strides[0] + row / cache.shape[1]];
        row %= cache.shape[1];
      }
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t from = entry * cache.strides[0] + row * cache.strides[1] + head * cache.strides[2];
        const std::int64_t to = ((b * seqlen_k_ + key) * heads + head) * columns;
        std::memcpy(bytes.data() + to * element_bytes, static_cast<const std::byte*>(cache.data) + from * element_bytes,
                    static_cast<std::size_t>(columns * element_bytes));
      }
    }
  }
  ConstTensorView view = cache;
  view.data = bytes.data();
  view.shape = {batch_, seqlen_k_, heads, columns};
  view.strides = {seqlen_k_ * heads * columns, heads * columns, columns, 1};
  return view;
}

ForwardArguments DenseCache::arguments() const {
  ForwardArguments dense = arguments_;
  dense.k = k_view_;
  dense.v = v_view_;
  dense.page_table = {};
  dense.sequences.leftpad_k = {};
  dense.sequences.cache_batch_idx = {};
  dense.sequences.seqused_k = tensor(lengths_.data(), {batch_});
  return dense;
}

}  // namespace strobe::reference
