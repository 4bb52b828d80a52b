// SPDX-License-Identifier: Apache-2.0
#include "cpu/call.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "call/arithmetic.h"

namespace strobe::cpu {
namespace {

template <class T, class Pointer>
T* at(const BasicTensorView<Pointer>& tensor, std::int64_t offset) {
  return static_cast<T*>(tensor.data) + offset;
}

template <class Pointer>
Pointer advanced(Pointer data, DType dtype, std::int64_t elements) {
  using Byte = std::conditional_t<std::is_same_v<Pointer, const void*>, const std::byte, std::byte>;
  return static_cast<Byte*>(data) + elements * static_cast<std::int64_t>(size_of(dtype));
}

/// Strides of the position and head axes: [batch, position, head, column] or packed [position, head, column].
template <class Pointer>
GroupRows<Pointer> rows_at(const BasicTensorView<Pointer>& tensor, bool packed, const SequenceSide& side,
                           std::int64_t head, std::int64_t group) {
  const std::int64_t position_stride = tensor.strides[packed ? 0 : 1];
  const std::int64_t head_stride = tensor.strides[packed ? 1 : 2];
  const std::int64_t offset = sequence_offset(tensor, side) + side.leftpad * position_stride + head * head_stride;
  return {advanced(tensor.data, tensor.dtype, offset), position_stride, head_stride, group};
}

/// lse is [batch, head, position] or packed [head, position].
template <class T, class Pointer>
GroupRows<T*> lse_rows_at(const AttentionProblem& problem, const BasicTensorView<Pointer>& tensor,
                          const Sequence& sequence, std::int64_t group_index) {
  if (!tensor.given()) return {};
  const std::int64_t head_stride = tensor.strides[problem.packed_q ? 0 : 1];
  const std::int64_t position_stride = tensor.strides[problem.packed_q ? 1 : 2];
  const std::int64_t start = sequence.q.begin * (problem.packed_q ? position_stride : tensor.strides[0]);
  const std::int64_t group = heads_per_group(problem);
  return {at<T>(tensor, start + group_index * group * head_stride), position_stride, head_stride, group};
}

/// Calls clear(begin, first, last) for every range of unused positions: `begin` as in SequenceSide, positions counted
/// from it.
template <class Clear>
void for_each_unused(const AttentionProblem& problem, const Batch& batch, Side side, const Clear& clear) {
  const bool query = side == Side::query;
  std::int64_t end = 0;
  for (const Sequence& sequence : batch.sequences) {
    const SequenceSide& own = query ? sequence.q : sequence.k;
    if (own.length < own.slots) clear(own.begin, own.length, own.slots);
    end = own.begin + own.slots;
  }
  const std::int64_t total = query ? problem.total_q : problem.total_k;
  if ((query ? problem.packed_q : problem.packed_k) && end < total) clear(end, 0, total - end);
}

}  // namespace

Batch make_batch(const Call& call, const Sequences& given, Sequence* sequences) {
  const AttentionProblem& problem = call.problem;
  std::int64_t row_blocks = 0;
  std::int64_t key_blocks = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence sequence{
        .q = query_side(b, problem.seqlen_q, given),
        .k = key_side(b, problem.seqlen_k, given),
        .first_row_block = row_blocks,
        .first_key_block = key_blocks,
    };
    new (sequences + b) Sequence(sequence);
    const cpu::Tiles& tiles = call.plan.tiles;
    row_blocks += ceil_div(sequence.q.length * heads_per_group(problem), tiles.block_m);
    key_blocks += ceil_div(sequence.k.length, tiles.block_n);
  }
  return {{sequences, static_cast<std::size_t>(problem.batch)}, row_blocks, key_blocks};
}

template <class Pointer>
GroupRows<Pointer> query_rows(const AttentionProblem& problem, const BasicTensorView<Pointer>& tensor,
                              const Sequence& sequence, std::int64_t group) {
  return rows_at(tensor, problem.packed_q, sequence.q, group * heads_per_group(problem), heads_per_group(problem));
}

template <class Pointer>
GroupRows<Pointer> key_rows(const AttentionProblem& problem, const BasicTensorView<Pointer>& tensor,
                            const Sequence& sequence, std::int64_t head_kv) {
  return rows_at(tensor, problem.packed_k, sequence.k, head_kv, 1);
}

ConstRows cache_rows(const AttentionProblem& problem, const ConstTensorView& tensor, const ConstTensorView& page_table,
                     const Sequence& sequence, std::int64_t head_kv) {
  if (!page_table.given()) return key_rows(problem, tensor, sequence, head_kv);
  return {.data = advanced(tensor.data, tensor.dtype, head_kv * tensor.strides[2]),
          .position_stride = tensor.strides[1],
          .pages = {.table = at<const std::int32_t>(page_table, sequence.k.begin * page_table.strides[0]),
                    .size = problem.page_size,
                    .page_stride = tensor.strides[0],
                    .first = sequence.k.leftpad}};
}

template ConstRows query_rows(const AttentionProblem&, const ConstTensorView&, const Sequence&, std::int64_t);
template MutableRows query_rows(const AttentionProblem&, const TensorView&, const Sequence&, std::int64_t);
template ConstRows key_rows(const AttentionProblem&, const ConstTensorView&, const Sequence&, std::int64_t);
template MutableRows key_rows(const AttentionProblem&, const TensorView&, const Sequence&, std::int64_t);

GroupRows<float*> lse_rows(const AttentionProblem& problem, const TensorView& tensor, const Sequence& sequence,
                           std::int64_t group) {
  return lse_rows_at<float>(problem, tensor, sequence, group);
}

GroupRows<const float*> lse_rows(const AttentionProblem& problem, const ConstTensorView& tensor,
                                 const Sequence& sequence, std::int64_t group) {
  return lse_rows_at<const float>(problem, tensor, sequence, group);
}

void clear_unused(const AttentionProblem& problem, const Batch& batch, Side side, const TensorView& tensor) {
  const bool packed = side == Side::query ? problem.packed_q : problem.packed_k;
  const std::int64_t heads = tensor.shape[packed ? 1 : 2];
  const std::int64_t columns = tensor.shape[packed ? 2 : 3];
  for_each_unused(problem, batch, side, [&](std::int64_t begin, std::int64_t first, std::int64_t last) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto rows = rows_at(tensor, packed, SequenceSide{.begin = begin}, head, 1);
      for (std::int64_t position = first; position < last; ++position) {
        std::memset(advanced(rows.data, tensor.dtype, rows.offset(position)), 0,
                    static_cast<std::size_t>(columns) * size_of(tensor.dtype));
      }
    }
  });
}

void clear_unused_lse(const AttentionProblem& problem, const Batch& batch, const TensorView& lse, float value) {
  if (!lse.given()) return;
  for_each_unused(problem, batch, Side::query, [&](std::int64_t begin, std::int64_t first, std::int64_t last) {
    const Sequence sequence{.q = {.begin = begin}};
    for (std::int64_t group = 0; group < head_groups(problem); ++group) {
      const GroupRows<float*> rows = lse_rows(problem, lse, sequence, group);
      for (std::int64_t row = first * rows.group; row < last * rows.group; ++row) rows.data[rows.offset(row)] = value;
    }
  });
}

const Sequence& sequence_of(std::span<const Sequence> sequences, std::int64_t Sequence::* member, std::int64_t block) {
  const auto after = std::upper_bound(sequences.begin(), sequences.end(), block,
                                      [member](std::int64_t value, const Sequence& s) { return value < s.*member; });
  return *(after - 1);
}

BlockPlace row_block_place(const AttentionProblem& problem, const Batch& batch, std::int64_t index) {
  const std::int64_t groups = head_groups(problem);
  const std::int64_t block = batch.row_blocks - 1 - index / groups;
  const Sequence& sequence = sequence_of(batch.sequences, &Sequence::first_row_block, block);
  return {sequence, index % groups, block - sequence.first_row_block};
}

BlockPlace key_block_place(const AttentionProblem& problem, const Batch& batch, std::int64_t index) {
  const std::int64_t block = index / problem.heads_kv;
  const Sequence& sequence = sequence_of(batch.sequences, &Sequence::first_key_block, block);
  return {sequence, index % problem.heads_kv, block - sequence.first_key_block};
}

}  // namespace strobe::cpu
