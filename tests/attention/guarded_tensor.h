// SPDX-License-Identifier: Apache-2.0
// A tensor in memory that notices every byte written outside its view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "guarded_memory.h"
#include "random.h"
#include "strobe/tensor.h"

namespace strobe::test {

/// How a view's elements lie in memory. The last stride is always 1.
enum class Layout : std::uint8_t {
  contiguous,
  padded,      // gaps between rows, heads and batch entries; the first element lies off every alignment
  transposed,  // heads outside rows: [batch, heads, seqlen, head_dim] in memory
  scrambled,   // the leading axes in any order, with gaps
};

/// Where a tensor's elements go.
struct Placement {
  Layout layout = Layout::contiguous;
  Guard guard = Guard::bytes;
  std::int64_t alignment = 1;  // elements: every stride and the first element's position are multiples of it
};

/// All its memory is NaN at first (integers: all ones), gaps and guards included, so that what is read there by mistake
/// shows in the result.
class GuardedTensor {
 public:
  GuardedTensor() = default;
  GuardedTensor(DType dtype, const std::vector<std::int64_t>& shape, const Placement& placement, Random& random);

  const TensorView& view() const { return view_; }
  std::int64_t size() const { return static_cast<std::int64_t>(offsets_.size()); }

  /// Elements in row-major order of the view's shape.
  void set(std::int64_t index, double value);
  /// Of int64.
  void set_bits(std::int64_t index, std::uint64_t bits);
  double get(std::int64_t index) const;

  /// Takes over the elements of a view of the same dtype and shape.
  void copy(const ConstTensorView& from);
  /// Whether it has the bits of such a view's elements.
  bool has_the_bits_of(const ConstTensorView& other) const;

  /// Turns every element into NaN again.
  void poison();

  /// True while every byte outside the view is as it was at first.
  bool guards_intact() const;

  /// True while no byte at all was written since the last poison().
  bool untouched() const;

  /// The bytes of the view's elements, in row-major order: for bitwise comparison.
  std::vector<std::byte> element_bytes() const;

  /// All bytes that the tensor holds, gaps and guards included: a copy of them on another device is the tensor there,
  /// with view().data at the same distance from the first byte.
  std::span<std::byte> memory() const { return memory_.accessible(); }

 private:
  void place(const std::vector<std::int64_t>& shape, const Placement& placement, Random& random);
  std::byte* element(std::int64_t index) const;

  TensorView view_;
  GuardedMemory memory_;
  std::vector<std::int64_t> offsets_;  // of each element from the view's first, in elements
};

}  // namespace strobe::test
