// SPDX-License-Identifier: Apache-2.0
#include "gpu/params/rows.h"

#include <fmt/format.h>

#include <initializer_list>
#include <utility>

namespace strobe::gpu {
namespace {

std::int64_t step(std::int64_t extent, std::int64_t stride) { return extent > 1 ? stride : 0; }

/// The whole check in a few instructions without a division: every run of a plan comes here.
bool is_aligned(const RowsView& tensor) {
  const std::int64_t strides = step(tensor.batch(), tensor.batch_stride()) | step(tensor.rows(), tensor.stride(3)) |
                               step(tensor.extent(2), tensor.stride(2));
  const std::int64_t elements = access_elements(tensor.view.dtype);  // a power of two
  return strides >= 0 && (strides & (elements - 1)) == 0 &&
         reinterpret_cast<std::uintptr_t>(tensor.view.data) % kAccessBytes == 0;
}

/// Names what is not aligned.
Status check_alignment(const RowsView& tensor) {
  if (tensor.empty() || is_aligned(tensor)) return {};
  if (reinterpret_cast<std::uintptr_t>(tensor.view.data) % kAccessBytes != 0) {
    return {StatusCode::invalid_argument,
            fmt::format("{} is not aligned to {} bytes, as the gpu engine needs", tensor.name, kAccessBytes)};
  }
  const std::int64_t elements = access_elements(tensor.view.dtype);
  for (const auto& [axis, stride] : {std::pair{"batch", step(tensor.batch(), tensor.batch_stride())},
                                     std::pair{"row", step(tensor.rows(), tensor.stride(3))},
                                     std::pair{"head", step(tensor.extent(2), tensor.stride(2))}}) {
    if (stride % elements != 0 || stride < 0) {
      return {StatusCode::unsupported, fmt::format("{} has {} stride {}: the gpu engine takes multiples of {} elements",
                                                   tensor.name, axis, stride, elements)};
    }
  }
  return {};
}

Status check_all(std::initializer_list<RowsView> tensors) {
  for (const RowsView& tensor : tensors) {
    if (Status status = check_alignment(tensor); !status.ok()) return status;
  }
  return {};
}

}  // namespace

ConstTensorView rows_of_v(const AttentionProblem& problem, const ConstTensorView& v) {
  if (!problem.eight_bit.given()) return v;
  ConstTensorView rows = v;
  if (problem.packed_k) {
    std::swap(rows.shape[0], rows.shape[1]);
    std::swap(rows.strides[0], rows.strides[1]);
    return rows;
  }
  rows.shape = {v.shape[0], v.shape[2], v.shape[1], v.shape[3]};
  rows.strides = {v.strides[0], v.strides[2], v.strides[1], v.strides[3]};
  return rows;
}

Status check_alignments(const AttentionProblem& problem, const ForwardArguments& a) {
  if (a.k.dtype != stored_dtype(problem)) return check_all({{"q", a.q}, {"o", a.o}});  // rows in a format lie anywhere
  Status status = check_all({{"q", a.q}, {"k", a.k}, {"v", rows_of_v(problem, a.v)}, {"o", a.o}});
  return status.ok() && problem.has_qv ? check_alignment({"qv", a.qv}) : status;
}

Status check_alignments(const BackwardArguments& a) {
  return check_all(
      {{"q", a.q}, {"k", a.k}, {"v", a.v}, {"o", a.o}, {"d_o", a.d_o}, {"dq", a.dq}, {"dk", a.dk}, {"dv", a.dv}});
}

Rows rows_of(const RowsView& tensor) {
  return {static_cast<unsigned short*>(const_cast<void*>(tensor.view.data)), tensor.batch_stride(), tensor.stride(3),
          tensor.stride(2)};
}

Rows rows_of(const RowsView& tensor, DType dtype) {
  Rows rows = rows_of(tensor);
  if (dtype == DType::float32) {
    rows.batch_stride *= 2;
    rows.row_stride *= 2;
    rows.head_stride *= 2;
  }
  return rows;
}

Rows rows_of_pairs(const RowsView& tensor) {
  Rows rows = rows_of(tensor);
  rows.batch_stride /= 2;
  rows.row_stride /= 2;
  rows.head_stride /= 2;
  return rows;
}

}  // namespace strobe::gpu
