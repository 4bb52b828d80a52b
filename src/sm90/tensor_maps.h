// SPDX-License-Identifier: Apache-2.0
// Tensor maps of attention's tensors, with the axes that kernels/sm90/tile/tensor_map.h names.
#pragma once

#include <cstdint>

#include "gpu/params/rows.h"
#include "kernels/sm90/tile/tensor_map.h"
#include "runtime/device.h"

namespace strobe::sm90 {

/// Boxes of 128 bytes of columns by `rows`, of which `heads` neighbouring heads share each row of the tensor.
struct Box {
  int rows = 0;
  int heads = 1;
  bool reads_ahead = true;  // the other half of 256 bytes, which the box beside this one takes
};

/// How many rows the map's row axis has where sequences are reached from their end; 0 for batched tensors.
struct VarlenBound {
  bool varlen = false;
  std::int64_t rows = 0;
  // A packed 8-bit V: its columns are keys, and it is the column axis that has as many entries. Offsets count
  // kValueKeys columns.
  bool columns = false;
};

/// `any_memory` is mapped, and never read, where the tensor has no elements.
Status encode(const runtime::Driver& driver, const gpu::RowsView& tensor, const VarlenBound& bound, const Box& box,
              const void* any_memory, TensorMap& map);

}  // namespace strobe::sm90
