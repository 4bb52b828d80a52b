// SPDX-License-Identifier: Apache-2.0
#include "reference/tensors.h"

namespace strobe::reference {
namespace {

std::int64_t length_at(const ConstTensorView& lengths, std::int64_t index) {
  return static_cast<const std::int32_t*>(lengths.data)[index * lengths.strides[0]];
}

struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

RowRange rows_of(const ConstTensorView& view, const ConstTensorView& cu_seqlens, const ConstTensorView& seqused,
                 std::int64_t index) {
  RowRange rows;
  if (cu_seqlens.given()) {
    rows.first = length_at(cu_seqlens, index);
    rows.count = length_at(cu_seqlens, index + 1) - rows.first;
  } else {
    rows.first = index * view.shape[1];
    rows.count = view.shape[1];
  }
  if (seqused.given()) rows.count = length_at(seqused, index);
  return rows;
}

template <class T>
double load_as(const void* data, std::int64_t offset) {
  return static_cast<double>(to_float(static_cast<const T*>(data)[offset]));
}

}  // namespace

std::vector<SequenceRows> sequence_rows(const ConstTensorView& q, const ConstTensorView& k,
                                        const Sequences& sequences) {
  const std::int64_t batch = sequences.cu_seqlens_q.given()   ? sequences.cu_seqlens_q.shape[0] - 1
                             : sequences.cu_seqlens_k.given() ? sequences.cu_seqlens_k.shape[0] - 1
                                                              : q.shape[0];
  std::vector<SequenceRows> result;
  for (std::int64_t index = 0; index < batch; ++index) {
    const RowRange rows_q = rows_of(q, sequences.cu_seqlens_q, sequences.seqused_q, index);
    const RowRange rows_k = rows_of(k, sequences.cu_seqlens_k, sequences.seqused_k, index);
    SequenceRows rows{index, rows_q.first, rows_k.first, rows_q.count, rows_k.count};
    rows.is_part = sequences.offset_q.given() || sequences.offset_k.given();
    if (sequences.offset_q.given()) rows.position_q = length_at(sequences.offset_q, index);
    if (sequences.offset_k.given()) rows.position_k = length_at(sequences.offset_k, index);
    result.push_back(rows);
  }
  return result;
}

double load(const ConstTensorView& view, std::int64_t offset) {
  switch (view.dtype) {
    case DType::float32: return load_as<float>(view.data, offset);
    case DType::float16: return load_as<float16>(view.data, offset);
    case DType::bfloat16: return load_as<bfloat16>(view.data, offset);
    case DType::float8_e4m3: return load_as<float8_e4m3>(view.data, offset);
    case DType::int8: return static_cast<const std::int8_t*>(view.data)[offset];
    case DType::uint8: return static_cast<const std::uint8_t*>(view.data)[offset];
    case DType::int32: return static_cast<const std::int32_t*>(view.data)[offset];
    case DType::int64: return static_cast<double>(static_cast<const std::int64_t*>(view.data)[offset]);
  }
  return 0.0;
}

std::int64_t element_count(const ConstTensorView& view) {
  std::int64_t count = view.given() ? 1 : 0;
  for (int axis = 0; axis < view.rank; ++axis) count *= view.shape[axis];
  return count;
}

std::vector<double> elements(const ConstTensorView& view) {
  std::vector<double> result;
  const std::int64_t count = element_count(view);
  result.reserve(static_cast<std::size_t>(count));
  for (std::int64_t index = 0; index < count; ++index) {
    std::int64_t offset = 0;
    std::int64_t rest = index;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      offset += rest % view.shape[axis] * view.strides[axis];
      rest /= view.shape[axis];
    }
    result.push_back(load(view, offset));
  }
  return result;
}

double d_lse_at(const ConstTensorView& d_lse, std::int64_t row, std::int64_t head, std::int64_t rows_per_entry) {
  if (!d_lse.given()) return 0.0;
  const std::int64_t batch_offset = d_lse.rank == 3 ? row / rows_per_entry * d_lse.strides[0] : 0;
  return load(d_lse, batch_offset + head * d_lse.strides[d_lse.rank - 2] +
                         row % rows_per_entry * d_lse.strides[d_lse.rank - 1]);
}

std::vector<double> read_head(const ConstTensorView& view, std::int64_t first, std::int64_t rows, std::int64_t head) {
  const int row_axis = view.rank - 3;
  const std::int64_t head_dim = head_dim_of(view);
  std::vector<double> result;
  result.reserve(static_cast<std::size_t>(rows * head_dim));
  for (std::int64_t row = first; row < first + rows; ++row) {
    std::int64_t offset = row % view.shape[row_axis] * view.strides[row_axis] + head * view.strides[row_axis + 1];
    if (row_axis == 1) offset += row / view.shape[1] * view.strides[0];
    for (std::int64_t column = 0; column < head_dim; ++column) {
      result.push_back(load(view, offset + column * view.strides[view.rank - 1]));
    }
  }
  return result;
}

std::vector<double> join_columns(const std::vector<double>& left, const std::vector<double>& right, std::int64_t rows) {
  std::vector<double> joined;
  joined.reserve(left.size() + right.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const std::vector<double>* matrix : {&left, &right}) {
      const auto columns = static_cast<std::int64_t>(matrix->size()) / rows;
      joined.insert(joined.end(), matrix->begin() + row * columns, matrix->begin() + (row + 1) * columns);
    }
  }
  return joined;
}

std::vector<double> transpose(const std::vector<double>& matrix, std::int64_t rows, std::int64_t columns) {
  std::vector<double> result(matrix.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column)
      result[column * rows + row] = matrix[row * columns + column];
  }
  return result;
}

}  // namespace strobe::reference
