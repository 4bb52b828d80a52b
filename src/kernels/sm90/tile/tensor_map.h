// SPDX-License-Identifier: Apache-2.0
// A tensor map as a kernel parameter, and the order of its axes: what the host encodes and TMA instructions name.
// Plain C++ without std headers, shared by host and device.
#pragma once

namespace strobe::sm90 {

/// A CUtensorMap, opaque to the device.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

/// What the tensor map of a bias describes, whose axes are key, query, head and batch.
struct BiasBoxParams {
  int per_batch, per_head;  // 1, or 0: batch or head coordinates are always 0
  int rows;                 // of a box; 1 where all queries have the same
};

/// The axes of every other map. In varlen variants a sequence's rows are reached from its end: the row axis has `bound`
/// entries and the map begins that many rows before the tensor, so that entry bound - count + i at offset start + count
/// is row start + i, and every entry from `bound` on lies outside: TMA reads zeros there, never a neighbour's values,
/// and writes nothing. Batched tensors use offset 0.
/// Keys are the columns of an 8-bit V, and where it is packed they are reached from their end in the same way: an
/// offset is 32 columns, which is what sequences begin at multiples of.
enum class Axis { column, row, offset, head, batch };
inline constexpr int kAxes = 5;

/// Axes from the innermost on; where query heads are packed, a box takes its heads before its rows.
struct AxisOrder {
  Axis axis[kAxes];
};
constexpr AxisOrder axis_order(bool packed_heads) {
  return packed_heads ? AxisOrder{{Axis::column, Axis::head, Axis::row, Axis::offset, Axis::batch}}
                      : AxisOrder{{Axis::column, Axis::row, Axis::offset, Axis::head, Axis::batch}};
}

/// Where a box begins, axis by axis.
struct BoxStart {
  int column, row, offset, head, batch;

  constexpr int at(Axis axis) const {
    switch (axis) {
      case Axis::column: return column;
      case Axis::row: return row;
      case Axis::offset: return offset;
      case Axis::head: return head;
      default: return batch;
    }
  }
};

/// The first of `count` rows that begin at row `start` of a varlen tensor whose map's row axis has `bound` entries.
struct RowStart {
  int row, offset;
};
constexpr RowStart varlen_row(int start, int count, int bound) { return {bound - count, start + count}; }

/// The first row of the page that holds row `row` of a sequence of `used` rows as its row `row_in_page`. A page's entry
/// of the map is what a varlen sequence is: its rows behind the sequence's end are outside.
constexpr RowStart page_start(int row, int row_in_page, int used, int page_size) {
  const int left = used - (row - row_in_page);
  return varlen_row(0, left < page_size ? left : page_size, page_size);
}

}  // namespace strobe::sm90
